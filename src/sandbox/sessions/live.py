"""One stateful session in this process: its interpreter, and what of it is not saved yet."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from sandbox.wasm import threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sandbox.events import SandboxLogger
    from sandbox.images import Image
    from sandbox.interpreter import Outcome, Request
    from sandbox.lasting import LastingInterpreter
    from sandbox.sessions.statefolder import Stamp, StateFolder
    from sandbox.snapshots import Snapshot

# How long a turn waits for another process to write down a turn that is already over.
LOCK_WAIT_SECONDS = 30.0
RETRY_SECONDS = 1.0
EXIT_WAIT_SECONDS = 5.0
NEVER = float("inf")


class Terms:
    """What a sandbox gives its turns: from where they start, and under which limits.

    An interpreter serves one sandbox's terms; another's turn takes its memory over into one of its own.
    """

    def __init__(
        self,
        image: Image,
        memory_bytes: int,
        start: Callable[[Image, Snapshot | None], LastingInterpreter],
        limits: object,
    ) -> None:
        self.image = image
        self.memory_bytes = memory_bytes
        self.start = start
        self.limits = limits  # compared, never looked into


class LiveSession:
    """The interpreter of a session, between its turns or in one.

    `_turn` is held from the beginning of a turn until its memory is captured, which goes on after
    the caller has the result; `_disk` while something is written, beside a turn that may run; and
    `_guard` for an instant, where both change the same fields. The lock file is held for as long
    as memory is, or may come to be, ahead of disk: a turn in another process waits for the save.
    """

    def __init__(self, folder: StateFolder, logger: SandboxLogger) -> None:
        self._folder = folder
        self._logger = logger
        self._turn = threading.Lock()
        self._disk = threading.Lock()
        self._guard = threading.Lock()
        self._interpreter: LastingInterpreter | None = None
        self._limits: object = None
        self._image: Image | None = None
        self._pending: Snapshot | None = None
        self._lock = -1
        self._in_turn = False
        self._generation = 0
        self._base: tuple[Stamp | None, Stamp | None] | None = None  # the save that memory goes on from
        self.due = NEVER  # when what is ahead of disk must be on it
        self.bytes = 0  # that its interpreter has written, as far as is known

    @property
    def is_live(self) -> bool:
        """Whether its interpreter is in memory."""
        return self._interpreter is not None

    @property
    def is_ahead(self) -> bool:
        """Whether something of it is in memory alone."""
        return self._pending is not None

    @property
    def pending_bytes(self) -> int | None:
        """How much waits to be written; None where nothing does."""
        pending = self._pending
        return None if pending is None else pending.bytes

    def take_turn(
        self,
        request: Request,
        terms: Terms,
        *,
        save_within: float,
        settled: Callable[[LiveSession], None],
        make_room: Callable[[LiveSession], None],
    ) -> Outcome:
        """Run one turn; a limit that stops it takes the interpreter back to before.

        `make_room` is called before an interpreter starts, `settled` when all of the turn is over.
        """
        begun = []

        def run() -> Outcome:
            begun.append(True)
            outcome = self._run(request, terms, make_room)
            if outcome.state == "live" and save_within <= 0:
                self._capture(0)
                return replace(outcome, state="saved" if self.try_to_save(dense=False) else "live")
            return outcome

        def settle() -> None:
            try:
                self._settle(save_within)
            except Exception as error:  # noqa: BLE001 - nobody waits for this thread
                self._complain(error)
            finally:
                self._turn.release()
                settled(self)

        self._turn.acquire()
        try:
            self._go_on(terms)
            return threads.run(run, interrupt=self._interrupt, afterwards=settle)
        except BaseException:
            if not begun:
                self._end_turn()
                self._turn.release()
            raise

    def _go_on(self, terms: Terms) -> None:
        """Hold the lock file, and let go of an interpreter that is not the one to go on with."""
        with self._guard:
            self._in_turn = True
        self._folder.make()
        if self._lock < 0 or not self._folder.is_locked_by(self._lock):
            self._take_lock()
        if self._interpreter is not None and self._limits != terms.limits:
            self._close_interpreter()

    def _take_lock(self) -> None:
        stale, self._lock = self._lock, -1
        if stale >= 0:  # of a folder that was deleted
            os.close(stale)
        self._lock = self._folder.lock(LOCK_WAIT_SECONDS)
        if self._base is not None and self._base != self._folder.mark():
            self._forget()

    def _run(self, request: Request, terms: Terms, make_room: Callable[[LiveSession], None]) -> Outcome:
        begins = self._interpreter is None
        if self._interpreter is None:
            make_room(self)
            self._interpreter = self._start(terms)
        try:
            outcome = self._interpreter.run(replace(request, renew=begins))
        except BaseException:
            self._close_interpreter()
            raise
        if outcome.stopped_by is not None or not self._interpreter.is_sound:
            self._close_interpreter()
            return replace(outcome, state="rolled_back")
        return replace(outcome, state="live")

    def _start(self, terms: Terms) -> LastingInterpreter:
        snapshot = self._pending
        if snapshot is None or self._image is None:
            snapshot = self._load(terms)
        self._limits = terms.limits
        return terms.start(self._image or terms.image, snapshot)

    def _load(self, terms: Terms) -> Snapshot | None:
        with self._disk:  # a save that is on its way is the one to go on from
            found = self._folder.load(terms.image.recipe.guest, terms.memory_bytes)
            self._base = self._folder.mark()
        if found is None:
            self._image, self._generation = terms.image, 0
            return None
        header, snapshot, self._image = found
        self._generation = header.generation
        return snapshot

    def _settle(self, save_within: float) -> None:
        """Capture what the turn left, and end it; the caller has its result already."""
        try:
            if self._interpreter is not None:
                if save_within > 0:
                    self._capture(save_within)
                else:
                    self._interpreter.rest()
        finally:
            self._end_turn()

    def _capture(self, save_within: float) -> None:
        if self._interpreter is None:
            return
        snapshot = self._interpreter.capture(self._pending)
        with self._guard:
            self._pending = snapshot
            self.bytes = snapshot.bytes
            # The first turn that is not on disk sets the time, however many follow it.
            self.due = min(self.due, time.monotonic() + save_within)

    def _close_interpreter(self) -> None:
        """Let go of the interpreter; the next turn begins from what was captured or saved before."""
        if self._interpreter is not None:
            self._interpreter.close()
            self._interpreter = None
            self.bytes = 0

    def _interrupt(self) -> None:
        if self._interpreter is not None:
            self._interpreter.interrupt()

    def _end_turn(self) -> None:
        with self._guard:
            self._in_turn = False
            self._give_up_lock()

    def _give_up_lock(self) -> None:
        if self._lock >= 0 and self._pending is None and not self._in_turn:
            os.close(self._lock)
            self._lock = -1

    def save(self) -> None:
        """Have everything on disk, that of a turn which is just over included."""
        with self._turn:
            self._write(dense=False)

    def save_at_exit(self) -> None:
        """Have on disk what can be; a turn that does not end in time is left out."""
        settled = self._turn.acquire(timeout=EXIT_WAIT_SECONDS)
        self.try_to_save()
        if settled:
            self._turn.release()

    def save_and_rest(self) -> None:
        """Write what is ahead of disk, and hold no folder open until the next turn.

        Not right after a turn, because another one often follows at once.
        """
        self.try_to_save()
        if self._turn.acquire(blocking=False):
            try:
                if self._interpreter is not None:
                    self._interpreter.rest()
            finally:
                self._turn.release()

    def try_to_save(self, *, dense: bool = True) -> bool:
        """Write what is ahead of disk, beside a turn that may run; False, and a log entry, where it fails."""
        try:
            self._write(dense=dense)
        except Exception as error:  # noqa: BLE001 - kept in memory, and tried again
            self._complain(error)
            return False
        return True

    def _write(self, *, dense: bool = True, shared: bool = False) -> None:
        with self._disk:
            with self._guard:
                snapshot, image, lock = self._pending, self._image, self._lock
                self.due = NEVER
            if snapshot is None or image is None:
                return
            try:
                generation = self._generation + 1
                if self._folder.save(snapshot, image, generation, lock=lock, dense=dense, shared=shared):
                    self._generation += 1
                    self._base = self._folder.mark()
            except BaseException:
                with self._guard:
                    self.due = min(self.due, time.monotonic() + RETRY_SECONDS)
                raise
            with self._guard:
                if self._pending is snapshot:
                    self._pending = None
                self._give_up_lock()

    def _complain(self, error: Exception) -> None:
        self._logger.error("session.state.failed", error=f"{type(error).__name__}: {error}")

    def hibernate(self) -> None:
        """Have everything on disk and nothing in memory."""
        with self._turn:
            self._leave_memory()

    def hibernate_if_idle(self) -> bool:
        """Hibernate, unless a turn runs or the disk refuses."""
        if not self._turn.acquire(blocking=False):
            return False
        try:
            self._leave_memory()
        except Exception as error:  # noqa: BLE001 - it stays in memory
            self._complain(error)
            return False
        finally:
            self._turn.release()
        return True

    def _leave_memory(self) -> None:
        self._write()
        self._close_interpreter()

    def discard(self) -> None:
        """Forget everything that is in memory; what is saved stays."""
        with self._turn, self._disk:
            self._forget()

    def begin_anew(self) -> None:
        """Forget everything, what is saved included; SessionInUse where another process has a turn."""
        with self._turn, self._disk:
            self._forget()
            with self._folder_lock():
                self._folder.discard()

    def _forget(self) -> None:
        self._close_interpreter()
        with self._guard:
            self._pending, self._base, self.due = None, None, NEVER
            self._give_up_lock()

    @contextmanager
    def settled_state(self) -> Iterator[StateFolder]:
        """The saved state with nothing ahead of it, here or in another process, until the block ends.

        The caller holds the session's own lock, so that no turn begins meanwhile.
        """
        with self._turn:
            self._write(dense=False, shared=True)
        with self._folder_lock():
            yield self._folder

    @contextmanager
    def _folder_lock(self) -> Iterator[None]:
        if not self._folder.path.is_dir():
            yield  # nothing was ever saved
            return
        lock = self._folder.lock(LOCK_WAIT_SECONDS)
        try:
            yield
        finally:
            os.close(lock)
