"""The one channel between the host and the driver inside the guest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox.wasm import abi

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox.wasm.memory import Memory

DONE = 0
FAULT = -2 & 0xFFFFFFFF
ASK_DRIVER = b"D"
REPORT = b"R"
PIN = b"P"
MOST_REPORT_BYTES = 1 << 20


class NoRoom(Exception):
    """The guest's memory has no room for what the host answers."""


@dataclass(frozen=True)
class Building:
    """What a guest gets and says besides, while an image is made of it."""

    driver: bytes  # its source
    pin: Callable[[bytes], None]  # what to do with the addresses of objects


class Channel:
    """Keeps the last report of the driver.

    The guest can say anything here, at any time: a report is bytes for the caller to distrust.
    """

    def __init__(
        self, memory: Memory, allocate: Callable[[int], int], building: Building | None = None
    ) -> None:
        self._building = building
        self._memory = memory
        self._allocate = allocate
        self.report = b""

    def answer(self, address: int, length: int, out_address: int, out_length: int) -> int:
        """Answer one request: 0, or a fault where it is not understood; NoRoom where it does not fit."""
        if length > MOST_REPORT_BYTES and self._building is None:
            return FAULT
        request = self._memory.read(address, length)
        if not request or not self._memory.within(out_address, 4) or not self._memory.within(out_length, 4):
            return FAULT
        if request[:1] == REPORT:
            self.report = request[1:]
            return self._reply(b"", out_address, out_length)
        if self._building is not None and request == ASK_DRIVER:
            return self._reply(self._building.driver, out_address, out_length)
        if self._building is not None and request[:1] == PIN:
            self._building.pin(request[1:])
            return self._reply(b"", out_address, out_length)
        return FAULT

    def _reply(self, data: bytes, out_address: int, out_length: int) -> int:
        place = self._allocate(len(data))
        if not place:
            raise NoRoom
        if not self._memory.write(place, data):
            return FAULT
        self._memory.pack(abi.U32, out_address, place)
        self._memory.pack(abi.U32, out_length, len(data))
        return DONE
