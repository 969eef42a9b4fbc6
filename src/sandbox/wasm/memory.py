"""The linear memory of one instance, read and written by the host."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from sandbox.wasm import capi

if TYPE_CHECKING:
    from struct import Struct

# Keeps Python's lock: comparing a block is over before another thread would have it.
_memcmp = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)(
    ("memcmp", ctypes.PyDLL(None))
)


class Memory:
    """Bounds-checked access; every address and length here may come from a guest.

    An engine reserves the whole address range, so that the base never moves, and memory only
    grows, so that a remembered size is always safe to use.
    """

    def __init__(self, context: int, handle: tuple[Any, int]) -> None:
        self._context = context
        self._extern, self._handle = handle
        self.base = int(capi.memory_base(context, self._handle))
        self._view = self._map()

    def size(self) -> int:
        """How large the memory is now, in bytes."""
        return int(capi.memory_size(self._context, self._handle))

    def _map(self) -> memoryview:
        return memoryview((ctypes.c_char * self.size()).from_address(self.base)).cast("B")

    def within(self, address: int, length: int) -> bool:
        """Whether these bytes lie inside the memory."""
        if address + length > len(self._view):
            self._view = self._map()
        return address + length <= len(self._view)

    def view(self, address: int, length: int) -> memoryview | None:
        """These bytes, in place; None where they are not all inside the memory."""
        return self._view[address : address + length] if self.within(address, length) else None

    def read(self, address: int, length: int) -> bytes | None:
        """A copy of these bytes; None where they are not all inside the memory."""
        return bytes(self._view[address : address + length]) if self.within(address, length) else None

    def holds(self, address: int, data: bytes) -> bool:
        """Whether these bytes are there now."""
        return self.within(address, len(data)) and _memcmp(self.base + address, data, len(data)) == 0

    def write(self, address: int, data: bytes | memoryview) -> bool:
        """Write bytes; False, and nothing written, where they do not fit."""
        if not self.within(address, len(data)):
            return False
        self._view[address : address + len(data)] = data
        return True

    def unpack(self, layout: Struct, address: int) -> tuple[Any, ...] | None:
        """One record; None where it is not inside the memory."""
        return layout.unpack_from(self._view, address) if self.within(address, layout.size) else None

    def pack(self, layout: Struct, address: int, *values: int) -> bool:
        """Write one record; False where it does not fit."""
        if not self.within(address, layout.size):
            return False
        layout.pack_into(self._view, address, *values)
        return True
