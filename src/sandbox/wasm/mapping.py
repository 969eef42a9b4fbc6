"""Memory that many instances start from, mapped copy-on-write."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from ctypes import c_int, c_long, c_size_t, c_void_p
from typing import TYPE_CHECKING

from sandbox.wasm.pages import written_pages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sandbox.wasm.memory import Memory

CHUNK_BYTES = 64 << 10
MOST_UNDONE_BYTES = 8 << 20  # what a spare instance may keep in memory
MAP_FIXED = 0x10
F_ADD_SEALS = 1033
# Nobody can shorten what is mapped, which would kill the process, or write into live guests.
SEALS = 0x1 | 0x2 | 0x4 | 0x8  # seal, shrink, grow, write
_ZEROS = bytes(CHUNK_BYTES)
_MAPS = sys.platform == "linux"

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_int, c_int, c_int, c_long, use_errno=True)(
    ("mmap", _libc)
)


class SharedMemory:
    """The content of a memory, held once per process and mapped by every instance that starts from it."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self.size = 0
        self._descriptor = -1
        self._copy = bytearray()
        if _MAPS:
            self._seal(chunks)
        else:
            for chunk in chunks:
                self._copy += chunk
            self.size = len(self._copy)

    def _seal(self, chunks: Iterable[bytes]) -> None:
        import fcntl

        self._descriptor = os.memfd_create("sandbox-image", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        for chunk in chunks:
            if chunk != _ZEROS[: len(chunk)]:  # what is never written takes no memory
                os.pwrite(self._descriptor, chunk, self.size)
            self.size += len(chunk)
        os.ftruncate(self._descriptor, self.size)
        fcntl.fcntl(self._descriptor, F_ADD_SEALS, SEALS)
        flags = {"flags": mmap.MAP_SHARED, "prot": mmap.PROT_READ}
        self._source = memoryview(mmap.mmap(self._descriptor, self.size, **flags))

    def chunks(self) -> Iterator[bytes]:
        """The content, piece by piece."""
        for start in range(0, self.size, CHUNK_BYTES):
            if self._descriptor >= 0:
                yield os.pread(self._descriptor, min(CHUNK_BYTES, self.size - start), start)
            else:
                yield bytes(self._copy[start : start + CHUNK_BYTES])

    def lay_over(self, memory: Memory) -> None:
        """Make a memory, which is at least as large, begin with this content."""
        if self._descriptor < 0:
            memory.write(0, memoryview(self._copy))
            return
        access = mmap.PROT_READ | mmap.PROT_WRITE
        place = _mmap(memory.base, self.size, access, mmap.MAP_PRIVATE | MAP_FIXED, self._descriptor, 0)
        if place != memory.base:
            raise OSError(ctypes.get_errno(), "the image cannot be mapped")

    def lay_again(self, memory: Memory) -> bool:
        """Undo what an instance wrote, page by page, so that it can start anew.

        A page that is already there is copied into, which costs a tenth of a new one. False, and
        the memory is not to be used again, where it has grown or where too much was written.
        """
        if self._descriptor < 0 or memory.size() != self.size:
            return False
        try:
            ranges = written_pages(memory.base, self.size)
        except OSError:
            return False  # without a descriptor to spare, nobody knows
        if sum(length for _, length in ranges) > MOST_UNDONE_BYTES:
            return False
        # By assignment, not by a read from the descriptor: each read would let go of the interpreter's
        # lock, and the caller, who has his result, would be stopped as often.
        for start, length in ranges:
            memory.write(start, self._source[start : start + length])
        return True

    def close(self) -> None:
        """Let go of the content; instances that map it keep it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
