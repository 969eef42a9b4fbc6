"""The memory of one interpreter, as what differs from the image that it started from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox.wasm.pages import PAGE_BYTES, written_pages

if TYPE_CHECKING:
    from sandbox.wasm.instance import Instance

MOST_MEMORY_BYTES = 4 << 30  # what 32-bit addresses reach


@dataclass(frozen=True)
class Snapshot:
    """Pages by their place, with what else an interpreter needs to go on.

    It may come from a file that anybody wrote: applying it fills guest memory and runs nothing.
    """

    size: int  # of the whole memory
    ranges: tuple[tuple[int, int], ...]  # place and length of each piece, in order
    data: bytes | memoryview  # the pieces, one after the other
    descriptors: tuple[int, ...] = ()  # numbers that were open, and are not any more
    clock_ns: int = 0  # the guest's monotonic clock

    def __post_init__(self) -> None:
        if not 0 <= self.size <= MOST_MEMORY_BYTES:
            raise ValueError("its memory has an impossible size")
        end = 0
        for start, length in self.ranges:
            if start < end or length <= 0 or (start | length) % PAGE_BYTES:
                raise ValueError("its pages are out of order")
            end = start + length
        if end > self.size or sum(length for _, length in self.ranges) != len(self.data):
            raise ValueError("its pages do not fit its memory")

    def fill(self, instance: Instance) -> None:
        """Put the pages into an instance that has just started from the image."""
        instance.grow(self.size)
        place = 0
        view = memoryview(self.data)
        for start, length in self.ranges:
            instance.memory.write(start, view[place : place + length])
            place += length


def capture(instance: Instance, descriptors: list[int], clock_ns: int) -> Snapshot:
    """Copy what an instance has written, between calls; its cost follows the pages, not the memory."""
    memory = instance.memory
    size = memory.size()
    ranges = written_pages(memory.base, size)
    pieces = [memory.view(start, length) or b"" for start, length in ranges]
    return Snapshot(size, tuple(ranges), b"".join(pieces), tuple(descriptors), clock_ns)
