"""The memory of one interpreter, as what differs from the image that it started from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox.wasm.pages import PAGE_BYTES, written_pages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sandbox.wasm.instance import Instance
    from sandbox.wasm.memory import Memory

    Place = tuple[int, int]  # offset and length in the memory

MOST_MEMORY_BYTES = 4 << 30  # what 32-bit addresses reach
# What is compared, and copied where it differs, as one: small enough that a turn copies little
# beside what it changed, large enough that there are few.
BLOCK_BYTES = 256 << 10


@dataclass(frozen=True)
class Snapshot:
    """Pages by their place, with what else an interpreter needs to go on."""

    size: int  # of the whole memory
    pieces: dict[Place, bytes]  # in the order of their places
    descriptors: tuple[int, ...] = ()  # numbers that were open, and are not any more
    clock_ns: int = 0  # the guest's monotonic clock

    @classmethod
    def from_file(
        cls, size: int, places: Sequence[Place], data: memoryview, descriptors: tuple[int, ...], clock_ns: int
    ) -> Snapshot:
        """A snapshot that anybody may have written: filling it in changes guest memory and runs nothing."""
        _check(size, places, len(data))
        pieces, end = {}, 0
        for start, length in places:
            pieces[start, length] = bytes(data[end : end + length])
            end += length
        return cls(size, pieces, descriptors, clock_ns)

    @property
    def bytes(self) -> int:
        """How large all pieces are together."""
        return sum(length for _, length in self.pieces)

    def fill(self, instance: Instance) -> None:
        """Put the pages into an instance that has just started from the image."""
        instance.grow(self.size)
        for (start, _), piece in self.pieces.items():
            instance.memory.write(start, piece)


def capture(
    instance: Instance, descriptors: list[int], clock_ns: int, before: Snapshot | None = None
) -> Snapshot:
    """Copy what an instance has written, between calls; its cost follows the pages, not the memory.

    What is as in the snapshot `before` is shared with it: comparing costs a tenth of a copy.
    """
    memory = instance.memory
    size = memory.size()
    known = {} if before is None else before.pieces
    pieces = {
        place: _copy(memory, place, known.get(place)) for place in _blocks(written_pages(memory.base, size))
    }
    return Snapshot(size, pieces, tuple(descriptors), clock_ns)


def _copy(memory: Memory, place: Place, known: bytes | None) -> bytes:
    if known is not None and memory.holds(place[0], known):
        return known
    return memory.read(*place) or b""


def _blocks(ranges: Iterable[Place]) -> Iterator[Place]:
    """The ranges, cut where blocks of the memory begin, so that each is known by its place again."""
    for first, length in ranges:
        start, end = first, first + length
        while start < end:
            cut = min(end, (start // BLOCK_BYTES + 1) * BLOCK_BYTES)
            yield start, cut - start
            start = cut


def _check(size: int, places: Sequence[Place], total: int) -> None:
    if not 0 <= size <= MOST_MEMORY_BYTES:
        raise ValueError("its memory has an impossible size")
    end = 0
    for start, length in places:
        if start < end or length <= 0 or (start | length) % PAGE_BYTES:
            raise ValueError("its pages are out of order")
        end = start + length
    if end > size or sum(length for _, length in places) != total:
        raise ValueError("its pages do not fit its memory")
