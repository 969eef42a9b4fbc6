"""One entry into a guest, from the host's side."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

import wasmtime

from sandbox.wasm import capi

if TYPE_CHECKING:
    from sandbox.wasm.channel import Channel
    from sandbox.wasm.gate import Gate

_running = threading.local()


class Stop(Exception):
    """Raised inside a host function to end the guest; it never leaves the host function."""


class Refusal(Exception):
    """Raised inside a host function to answer the guest an error number."""

    def __init__(self, error: int) -> None:
        super().__init__(error)
        self.error = error


class Call:
    """What may end a guest, and what has ended it.

    Host functions are defined once per process and find their call here, through the thread that
    runs the guest. Nothing they raise reaches wasmtime: it becomes a trap, and the cause is kept.
    """

    gate: Gate
    channel: Channel

    def __init__(self, *, deadline: float | None = None, cancel: threading.Event | None = None) -> None:
        self.deadline = deadline
        self.cancel = cancel
        self.stopped_by: str | None = None
        self.exit_code: int | None = None
        self.trap: Exception | None = None  # met inside a function that wasmtime ran for the host
        self.failure: BaseException | None = None
        self._wake = threading.Event()

    def __enter__(self) -> Self:
        _running.call = self
        return self

    def __exit__(self, *exc: object) -> None:
        _running.call = None

    def interrupt(self, reason: str) -> None:
        """Ask the guest to end; called from other threads."""
        if self.stopped_by is None:
            self.stopped_by = reason
        self._wake.set()

    def check(self) -> None:
        """Raise Stop when the guest must end; host functions that take long call it as they go."""
        if self.stopped_by is not None or self.exit_code is not None or self.failure is not None:
            raise Stop

    def exit(self, code: int) -> None:
        """End the guest with an exit code of its own."""
        self.exit_code = code
        raise Stop

    def wait(self, seconds: float) -> None:
        """Sleep for the guest; ends early, by Stop, when the guest must end."""
        self._wake.wait(min(seconds, threading.TIMEOUT_MAX))
        self.check()

    def record(self, cause: BaseException) -> None:
        """Keep what a host function raised, for the thread that made the call."""
        if isinstance(cause, Stop):
            return
        if isinstance(cause, wasmtime.Trap | wasmtime.WasmtimeError):
            self.trap = self.trap or cause
        elif self.failure is None:
            self.failure = cause


def running_call() -> Call:
    """The call that this thread is inside."""
    call: Call = _running.call
    return call


def _on_epoch(_context: int, _data: int, ticks: Any, _kind: Any) -> int:
    call = running_call()
    try:
        call.check()
    except BaseException as cause:  # noqa: BLE001 - nothing may be raised into wasmtime
        call.record(cause)
        return capi.new_error(b"stopped by the host")
    ticks[0] = 1
    return 0


# Goes on, unless this thread's call must end: the epoch moves for every guest at once.
on_epoch = capi.EpochCallback(_on_epoch)
