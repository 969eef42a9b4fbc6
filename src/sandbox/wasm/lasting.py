"""The gate of a guest whose memory outlives its instance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandbox.wasm import abi
from sandbox.wasm.gate import Gate

if TYPE_CHECKING:
    from collections.abc import Iterable


class LastingGate(Gate):
    """Keeps the guest's clock going, and its old descriptors from naming new files."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.clock_offset = 0  # nanoseconds that passed for the guest in earlier instances

    def now(self, clock: int) -> int | None:
        """The guest's own clock, in nanoseconds."""
        moment = super().now(clock)
        return moment if moment is None or clock != abi.CLOCK_MONOTONIC else moment + self.clock_offset

    def clock_time_get(self, clock: int, _precision: int, out: int) -> int:
        moment = self.now(clock)
        return abi.EINVAL if moment is None else self._answer(abi.U64, out, moment & abi.MOST_U64)

    def open_numbers(self) -> list[int]:
        """The numbers that the guest itself holds open."""
        return self._held.opened()

    def occupy(self, numbers: Iterable[int]) -> None:
        """Keep numbers that the guest held open in an earlier instance from naming other files."""
        self._held.occupy(numbers)
