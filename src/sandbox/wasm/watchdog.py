"""Ends calls whose time is up or whose caller asks for it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

# A caller's event cannot be waited for together with others, so it is looked at this often.
CANCEL_POLL_SECONDS = 0.01


class Watched(Protocol):
    """A call that can be ended from outside."""

    deadline: float | None
    cancel: threading.Event | None

    def interrupt(self, reason: str) -> None: ...


class Watchdog:
    """One thread that sleeps until a deadline is due, then rings `bell` for the guests to notice.

    Guests check the epoch of their engine; it is advanced only when some call must end, so a
    host where nothing times out pays for no ticks.
    """

    def __init__(self, bell: Callable[[], None]) -> None:
        self._bell = bell
        self._calls: set[Watched] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._wakes_at = float("inf")

    def add(self, call: Watched) -> None:
        """Watch a call from now on; one without a limit costs nothing."""
        if call.deadline is None and call.cancel is None:
            return
        if _end_if_due(call):  # asked to end before it began
            self._bell()
            return
        with self._changed:
            self._calls.add(call)
            self._start()
            if self._due_at(call) < self._wakes_at:
                self._changed.notify()

    def remove(self, call: Watched) -> None:
        """Forget a call that has ended."""
        with self._changed:
            self._calls.discard(call)

    def interrupt(self, call: Watched, reason: str) -> None:
        """End one call now."""
        call.interrupt(reason)
        self._bell()

    def interrupt_all(self, reason: str) -> None:
        """End every watched call, as the process is about to exit."""
        if self._thread is None or not self._thread.is_alive():
            return  # nothing was watched, or a forked child has only a copy of the lock
        with self._changed:
            calls = list(self._calls)
        for call in calls:
            call.interrupt(reason)
        self._bell()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="sandbox-watchdog", daemon=True)
            self._thread.start()

    @staticmethod
    def _due_at(call: Watched) -> float:
        deadline = float("inf") if call.deadline is None else call.deadline
        return deadline if call.cancel is None else min(deadline, time.monotonic() + CANCEL_POLL_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._wakes_at = min(map(self._due_at, self._calls), default=float("inf"))
                pause = self._wakes_at - time.monotonic()
                if pause > 0:
                    self._changed.wait(min(pause, threading.TIMEOUT_MAX))
                ended = [call for call in self._calls if _end_if_due(call)]
                self._calls.difference_update(ended)
            if ended:
                self._bell()


def _end_if_due(call: Watched) -> bool:
    if call.cancel is not None and call.cancel.is_set():
        call.interrupt("cancelled")
        return True
    if call.deadline is not None and time.monotonic() >= call.deadline:
        call.interrupt("timeout")
        return True
    return False
