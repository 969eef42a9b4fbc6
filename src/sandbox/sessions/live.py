"""The interpreters that are in memory between the turns of their sessions."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from sandbox.wasm import threads

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sandbox.events import SandboxLogger
    from sandbox.images import Image
    from sandbox.interpreter import Outcome, Request
    from sandbox.lasting import LastingInterpreter
    from sandbox.sessions.statefolder import Stamp, StateFolder
    from sandbox.snapshots import Snapshot

    Start = Callable[[Image, Snapshot | None], LastingInterpreter]

MOST_LIVE = 1000
MOST_LIVE_BYTES = 4 << 30
SAVE_WITHIN_SECONDS = 1.0
# How long a turn waits for another process to write down a turn that is already over.
LOCK_WAIT_SECONDS = 30.0
RETRY_SECONDS = 1.0


class LiveSession:
    """One stateful session in this process: its interpreter, and what of it is not saved yet.

    One thread at a time holds `_turn`, from the beginning of a turn until its memory is captured,
    which goes on after the caller has the result. The lock file is held for as long as memory is
    ahead of disk, so that a turn in another process waits for the save.
    """

    def __init__(self, folder: StateFolder, logger: SandboxLogger) -> None:
        self._folder = folder
        self._logger = logger
        self._turn = threading.Lock()
        self._interpreter: LastingInterpreter | None = None
        self._image: Image | None = None
        self._pending: Snapshot | None = None
        self._lock = -1
        self._generation = 0
        self._base: tuple[object, Stamp | None] | None = None  # the save that memory goes on from
        self.due = 0.0
        self.bytes = 0

    @property
    def is_live(self) -> bool:
        """Whether its interpreter is in memory."""
        return self._interpreter is not None

    @property
    def is_ahead(self) -> bool:
        """Whether something of it is in memory alone."""
        return self._pending is not None

    def take_turn(
        self,
        request: Request,
        *,
        image: Image,
        start: Start,
        save_within: float,
        settled: Callable[[LiveSession], None],
    ) -> Outcome:
        """Run one turn; a limit that stops it takes the interpreter back to before."""
        self._turn.acquire()
        try:
            self._go_on()
        except BaseException:
            self._turn.release()
            raise

        def run() -> Outcome:
            outcome = self._run(request, image, start)
            if outcome.state != "rolled_back" and save_within <= 0:
                self._capture()
                self.write()
                return replace(outcome, state="saved")
            return outcome

        def settle() -> None:
            try:
                if self._interpreter is not None and self._base is not None and save_within > 0:
                    self._capture()
                    self.due = time.monotonic() + save_within
                    self._interpreter.rest()
                self._give_up_lock()
            except Exception as error:  # noqa: BLE001 - nobody waits for this thread
                self._logger.error("session.state.failed", error=str(error))
            finally:
                self._turn.release()
                settled(self)

        return threads.run(run, interrupt=self._interrupt, afterwards=settle)

    def _go_on(self) -> None:
        """Hold the lock file, and forget an interpreter that another process has overtaken."""
        self._folder.make()
        if self._lock < 0:
            self._lock = self._folder.lock(LOCK_WAIT_SECONDS)
        if self._base is not None and self._base != (self._folder.identity(), self._folder.stamp()):
            self._drop()

    def _run(self, request: Request, image: Image, start: Start) -> Outcome:
        begins = self._interpreter is None
        if self._interpreter is None:
            self._interpreter = self._start(image, start)
        try:
            outcome = self._interpreter.run(replace(request, renew=begins))
        except BaseException:
            self._roll_back()
            raise
        if outcome.stopped_by is not None or not self._interpreter.is_sound:
            self._roll_back()
            return replace(outcome, state="rolled_back")
        return replace(outcome, state="live")

    def _start(self, image: Image, start: Start) -> LastingInterpreter:
        snapshot = self._pending
        if snapshot is None or self._image is None:
            found = self._folder.load(image.recipe.guest)
            self._base = self._folder.identity(), self._folder.stamp()
            self._image, snapshot, self._generation = image, None, 0
            if found is not None:
                header, snapshot, self._image = found
                self._generation = header.generation
        return start(self._image, snapshot)

    def _roll_back(self) -> None:
        """Let go of the interpreter; the next turn begins from what was captured or saved before."""
        if self._interpreter is not None:
            self._interpreter.close()
            self._interpreter = None

    def _interrupt(self) -> None:
        if self._interpreter is not None:
            self._interpreter.interrupt()

    def _capture(self) -> None:
        if self._interpreter is not None:
            self._pending = self._interpreter.capture()
            self.bytes = len(self._pending.data)

    def write(self) -> None:
        """Save what is ahead of disk; the caller holds the turn."""
        if self._pending is None or self._image is None:
            return
        if self._base is None or self._base[0] != self._folder.identity():
            self._pending = None  # the session was deleted
        else:
            self._folder.save(self._pending, self._image, self._generation + 1)
            self._generation += 1
            self._base = self._folder.identity(), self._folder.stamp()
            self._pending = None
        self._give_up_lock()

    def save(self) -> None:
        """Have everything on disk."""
        with self._turn:
            self.write()

    def save_if_due(self, now: float) -> None:
        """Save when its time has come; a turn that runs saves in its own time."""
        if self._pending is None or self.due > now:
            return
        if not self._turn.acquire(blocking=False):
            self.due = now + RETRY_SECONDS / 10
            return
        try:
            self.write()
        except OSError as error:
            # Kept in memory; the disk is asked again in a while, and at the next turn.
            self.due = now + RETRY_SECONDS
            self._logger.error("session.state.failed", error=str(error))
        finally:
            self._turn.release()

    def hibernate(self) -> None:
        """Have everything on disk and nothing in memory."""
        with self._turn:
            self.write()
            self._roll_back()
            self.bytes = 0

    def discard(self) -> None:
        """Forget everything that is in memory; what is saved stays."""
        with self._turn:
            self._drop()
            self._give_up_lock()

    def _drop(self) -> None:
        self._roll_back()
        self._pending, self._base, self.bytes = None, None, 0

    def _give_up_lock(self) -> None:
        if self._lock >= 0 and self._pending is None:
            os.close(self._lock)
            self._lock = -1


class LiveSessions:
    """All stateful sessions of this process, bounded in number and memory, oldest use out first."""

    def __init__(self) -> None:
        self.most = MOST_LIVE
        self.most_bytes = MOST_LIVE_BYTES
        # One object for a session, for as long as a sandbox or its interpreter needs it.
        self._sessions: WeakValueDictionary[tuple[str, str], LiveSession] = WeakValueDictionary()
        self._live: OrderedDict[LiveSession, int] = OrderedDict()  # with their bytes, last used last
        self._live_bytes = 0
        self._ahead: set[LiveSession] = set()
        self._changed = threading.Condition()
        self._saver: threading.Thread | None = None
        self._wakes_at = 0.0

    def get(self, root: Path, session_id: str, make: Callable[[], LiveSession]) -> LiveSession:
        """The one object for a session in this process."""
        key = os.path.realpath(root), session_id
        with self._changed:
            found = self._sessions.get(key)
            if found is None:
                found = self._sessions[key] = make()
            return found

    def find(self, root: Path, session_id: str) -> LiveSession | None:
        """The session, if this process knows it."""
        with self._changed:
            return self._sessions.get((os.path.realpath(root), session_id))

    def forget(self, root: Path, session_id: str) -> None:
        """Let go of what is in memory of a session that was deleted, or put back."""
        session = self.find(root, session_id)
        if session is not None:
            session.discard()
            self.settled(session)

    def settled(self, session: LiveSession) -> None:
        """Something of a session has changed: save it when it is due, and keep to the bounds."""
        with self._changed:
            self._count(session)
            if session.is_ahead:
                self._ahead.add(session)
            self._start_saver()
            if (session.is_ahead and session.due < self._wakes_at) or self._excess():
                self._changed.notify()

    def save_all(self) -> None:
        """Have everything on disk, as the process is about to exit."""
        with self._changed:
            ahead, self._ahead = self._ahead, set()
        for session in ahead:
            session.save()

    def _count(self, session: LiveSession) -> None:
        self._live_bytes -= self._live.pop(session, 0)
        if session.is_live:
            self._live[session] = session.bytes
            self._live_bytes += session.bytes

    def _start_saver(self) -> None:
        if self._saver is None:
            self._saver = threading.Thread(target=self._keep_saving, name="sandbox-saver", daemon=True)
            self._saver.start()
            atexit.register(self.save_all)

    def _keep_saving(self) -> None:
        while True:
            with self._changed:
                self._wakes_at = min((session.due for session in self._ahead), default=float("inf"))
                pause = self._wakes_at - time.monotonic()
                if pause > 0 and not self._excess():
                    self._changed.wait(min(pause, threading.TIMEOUT_MAX))
                ahead = list(self._ahead)
                oldest = next(iter(self._live)) if self._excess() else None
            for session in ahead:
                self._save(session)
            if oldest is not None:
                oldest.hibernate()
                self.settled(oldest)

    def _save(self, session: LiveSession) -> None:
        session.save_if_due(time.monotonic())
        with self._changed:
            if not session.is_ahead:
                self._ahead.discard(session)

    def _excess(self) -> bool:
        """Whether more is in memory than the bounds allow; the last one used always stays."""
        return len(self._live) > max(1, self.most) or (
            self._live_bytes > self.most_bytes and len(self._live) > 1
        )


live_sessions = LiveSessions()
