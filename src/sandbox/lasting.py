"""An interpreter whose memory goes on after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandbox.errors import PolicyValidationError
from sandbox.interpreter import Interpreter
from sandbox.snapshots import capture
from sandbox.wasm import abi
from sandbox.wasm.lasting import LastingGate

if TYPE_CHECKING:
    from sandbox.interpreter import Outcome, Request
    from sandbox.snapshots import Snapshot


class LastingInterpreter(Interpreter):
    """Captured between jobs, and filled in again in another instance, process or machine."""

    def __init__(self, *parts: Any, snapshot: Snapshot | None = None, **options: Any) -> None:
        self._clock_ns = 0 if snapshot is None else snapshot.clock_ns
        self._rests = False
        self._tmp_was_used = False
        super().__init__(*parts, **options, lasting=True)
        if snapshot is not None:
            self._go_on_from(snapshot)

    def _open_world(self) -> None:
        super()._open_world()
        self._gate.clock_offset = self._clock_ns

    def _go_on_from(self, snapshot: Snapshot) -> None:
        limit = self._policy.memory_bytes
        if snapshot.size > limit:
            self.close()
            needs = f"the saved interpreter alone needs {snapshot.size} bytes"
            raise PolicyValidationError("memory_bytes", limit, needs)
        snapshot.fill(self._instance)
        self._gate.occupy(snapshot.descriptors)

    @property
    def _gate(self) -> LastingGate:
        gate = self._instance.gate
        if not isinstance(gate, LastingGate):
            raise TypeError("a lasting interpreter needs a lasting gate")
        return gate

    def run(self, request: Request) -> Outcome:
        """Do one job; raises only what the host's own functions raised."""
        if self._rests:
            self._open_world()
            self._rests = False
        return super().run(request)

    def capture(self, before: Snapshot | None = None) -> Snapshot:
        """Its memory, between jobs; what it holds open does not come along."""
        numbers = [] if self._rests else self._gate.open_numbers()
        return capture(self._instance, numbers, self._now(), before)

    def rest(self) -> None:
        """Hold no folder open while nothing runs; files that the guest holds open keep it awake."""
        if not self._rests and not self._gate.open_numbers():
            self._clock_ns = self._now()
            self._tmp_was_used = self._used_tmp()
            self._instance.close_world()
            self._rests = True

    def _now(self) -> int:
        """The guest's monotonic clock, or a moment more."""
        return self._clock_ns if self._rests else self._gate.now(abi.CLOCK_MONOTONIC) or 0

    def _used_tmp(self) -> bool:
        return self._tmp_was_used or (not self._rests and super()._used_tmp())
