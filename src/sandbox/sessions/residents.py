"""The stateful sessions of this process, bounded in number and memory."""

from __future__ import annotations

import atexit
import heapq
import itertools
import os
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from sandbox.events import SandboxLogger
from sandbox.scratch import scratch
from sandbox.sessions.live import NEVER, LiveSession
from sandbox.sessions.statefolder import StateFolder
from sandbox.wasm.engine import watchdog

if TYPE_CHECKING:
    from pathlib import Path

MOST_LIVE = 1000
MOST_LIVE_BYTES = 4 << 30
# What may wait to be written: each session holds a lock file and a copy of its pages meanwhile.
MOST_AHEAD = 64
MOST_AHEAD_BYTES = 256 << 20


class LiveSessions:
    """All stateful sessions of this process; those used longest ago are hibernated first.

    What a turn costs here does not grow with their number.
    """

    def __init__(self) -> None:
        self.most = MOST_LIVE
        self.most_bytes = MOST_LIVE_BYTES
        # One object for a session, for as long as a sandbox or its interpreter needs it.
        self._sessions: WeakValueDictionary[tuple[str, str], LiveSession] = WeakValueDictionary()
        self._live: OrderedDict[LiveSession, int] = OrderedDict()  # with their bytes, last used last
        self._live_bytes = 0
        self._ahead: dict[LiveSession, int] = {}  # with the bytes that wait to be written
        self._ahead_bytes = 0
        self._queue: list[tuple[float, int, LiveSession]] = []  # a heap, by when they are due
        self._queued: dict[LiveSession, float] = {}  # the earliest entry of each
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._saver: threading.Thread | None = None
        self._saves_at_exit = False

    def get(self, root: Path, session_id: str, logger: SandboxLogger | None = None) -> LiveSession:
        """The one object for a session in this process."""
        key = os.path.realpath(root), session_id
        with self._changed:
            found = self._sessions.get(key)
            if found is None:
                self._save_at_exit()
                folder = StateFolder(root, session_id)
                found = self._sessions[key] = LiveSession(folder, logger or SandboxLogger())
            return found

    def forget(self, root: Path, session_id: str) -> None:
        """Let go of what is in memory of a session that was deleted, or put back."""
        with self._changed:
            session = self._sessions.get((os.path.realpath(root), session_id))
        if session is not None:
            session.discard()
            self.note(session)

    def settled(self, session: LiveSession) -> None:
        """A turn is over: have it saved when it is due, and keep to the bounds."""
        if self._note(session, used=True):
            session.save_and_rest()
            self.note(session)
        self._make_room()

    def make_room(self, session: LiveSession) -> None:
        """Hibernate others until the interpreter of this one may start."""
        with self._changed:
            self._live.setdefault(session, 0)
            self._live.move_to_end(session)
        self._make_room()

    def note(self, session: LiveSession) -> None:
        """Take account of a session that was saved, hibernated or emptied."""
        self._note(session, used=False)

    def _note(self, session: LiveSession, *, used: bool) -> bool:
        """Count a session anew; whether too much waits to be written."""
        with self._changed:
            self._count(session)
            if used and session in self._live:
                self._live.move_to_end(session)
            if session in self._ahead and session.due < self._queued.get(session, NEVER):
                self._enqueue(session, session.due)
            return len(self._ahead) > MOST_AHEAD or self._ahead_bytes > MOST_AHEAD_BYTES

    def _enqueue(self, session: LiveSession, due: float) -> None:
        self._queued[session] = due
        heapq.heappush(self._queue, (due, next(self._numbers), session))
        self._start_saver()
        if self._queue[0][2] is session:
            self._changed.notify()

    def save_all(self) -> None:
        """Have everything on disk, as the process is about to exit; turns that run are cancelled."""
        watchdog.interrupt_all("cancelled")
        with self._changed:
            sessions = list(self._sessions.values())
        for session in sessions:
            session.save_at_exit()

    def _count(self, session: LiveSession) -> None:
        self._live_bytes += _recount(self._live, session, session.bytes if session.is_live else None)
        self._ahead_bytes += _recount(self._ahead, session, session.pending_bytes)

    def _make_room(self) -> None:
        passed: set[LiveSession] = set()
        while (oldest := self._oldest(passed)) is not None:
            passed.add(oldest)
            if oldest.hibernate_if_idle():
                self.note(oldest)

    def _oldest(self, passed: set[LiveSession]) -> LiveSession | None:
        """The session to hibernate next; those in `passed` are in a turn, and the last used stays."""
        with self._changed:
            in_excess = len(self._live) > max(1, self.most)
            too_large = self._live_bytes > self.most_bytes and len(self._live) > 1
            if not (in_excess or too_large):
                return None
            return next((session for session in self._live if session not in passed), None)

    def _save_at_exit(self) -> None:
        if not self._saves_at_exit:
            self._saves_at_exit = True
            scratch.empty()  # so that the folders of running guests go after them, not before
            atexit.register(self.save_all)

    def _start_saver(self) -> None:
        if self._saver is None:
            self._saver = threading.Thread(target=self._keep_saving, name="sandbox-saver", daemon=True)
            self._saver.start()

    def _keep_saving(self) -> None:
        while True:
            session = self._next_due()
            if session.due <= time.monotonic():  # else it was saved, or put off, meanwhile
                session.save_and_rest()
            self.note(session)
            del session

    def _next_due(self) -> LiveSession:
        with self._changed:
            while not self._queue or self._queue[0][0] > time.monotonic():
                due = self._queue[0][0] if self._queue else NEVER
                self._changed.wait(min(max(0.0, due - time.monotonic()), threading.TIMEOUT_MAX))
            due, _, session = heapq.heappop(self._queue)
            if self._queued.get(session) == due:
                del self._queued[session]
            return session


def _recount(counts: dict[LiveSession, int], session: LiveSession, size: int | None) -> int:
    """Note the bytes of a session, None where it has none; how many more those are than before."""
    before = counts.get(session, 0)
    if size is None:
        counts.pop(session, None)
        return -before
    counts[session] = size
    return size - before


live_sessions = LiveSessions()
