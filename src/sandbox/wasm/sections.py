"""What a WebAssembly file says of itself, read without compiling it."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

from sandbox.errors import GuestRejected

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAGIC = b"\0asm\x01\0\0\0"
GLOBAL_SECTION = 6
MUTABLE = 1
END = 0x0B
_REMEDY = "use the guest of `sandbox warmup`"


def mutable_globals(module: Path) -> int:
    """How many globals of a module can change."""
    with module.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[: len(MAGIC)] != MAGIC:
            raise GuestRejected(module, "it is no WebAssembly module", remedy=_REMEDY)
        try:
            return sum(_mutable_in(data, start) for kind, start in _sections(data) if kind == GLOBAL_SECTION)
        except IndexError:
            raise GuestRejected(module, "it ends in the middle of a section", remedy=_REMEDY) from None


def _sections(data: mmap.mmap) -> Iterator[tuple[int, int]]:
    place = len(MAGIC)
    while place < len(data):
        kind = data[place]
        size, start = _number(data, place + 1)
        yield kind, start
        place = start + size


def _mutable_in(data: mmap.mmap, place: int) -> int:
    count, place = _number(data, place)
    mutable = 0
    for _ in range(count):
        mutable += data[place + 1] == MUTABLE
        place += 2
        while data[place] != END:  # a constant: one opcode and its immediate
            _, place = _number(data, place + 1)
        place += 1
    return mutable


def _number(data: mmap.mmap, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, place
