"""The standard streams of a guest."""

from __future__ import annotations

import os
import select
import stat
from typing import TYPE_CHECKING, BinaryIO

from sandbox.wasm import abi

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox.wasm.call import Call
    from sandbox.wasm.memory import Memory

INTERRUPT_POLL_SECONDS = 0.02  # how often a wait for the caller's stream looks whether it must end
MOST_READ_BYTES = 1 << 20  # that one read takes from the caller's stream

Buffers = list[tuple[int, int]]


class Output:
    """Keeps the first `limit` bytes that a guest writes, and passes them on as they come."""

    def __init__(self, name: str, limit: int, listener: Callable[[str, bytes], object] | None = None) -> None:
        self._name = name
        self._limit = limit
        self._listener = listener
        self._kept = bytearray()
        self._written = 0

    @property
    def truncated(self) -> bool:
        """Whether something was dropped."""
        return self._written > self._limit

    def write(self, call: Call, memory: Memory, buffers: Buffers | None, out: int) -> int:
        """Take what the guest writes; past the limit it is dropped, and the guest does not notice."""
        if buffers is None:
            return abi.EINVAL
        length = sum(size for _, size in buffers)
        if not memory.pack(abi.U32, out, length & 0xFFFFFFFF):
            return abi.EFAULT
        self._written += length
        for address, size in buffers:
            self._keep(memory.view(address, min(size, self._limit - len(self._kept))))
        call.check()
        return abi.SUCCESS

    def _keep(self, data: memoryview | None) -> None:
        if data:
            self._kept += data
            if self._listener is not None:
                self._listener(self._name, bytes(data))

    def read(self, _call: Call, _memory: Memory, _buffers: Buffers | None, _out: int) -> int:
        """An output cannot be read."""
        return abi.EBADF

    def is_ready(self) -> bool:
        """Whether a guest that polls may go on at once."""
        return True

    def text(self) -> str:
        """What was kept; bytes that are no UTF-8 show as replacement characters."""
        return self._kept.decode("utf-8", "replace")


class Input:
    """What the guest reads: bytes that are there already, or a stream that may block.

    A pipe, a socket or a terminal is read from its descriptor, so that a wait for it can be ended;
    any other stream is read as it is, for as long as it takes.
    """

    def __init__(self, source: bytes | BinaryIO) -> None:
        self._data = memoryview(source) if isinstance(source, bytes) else memoryview(b"")
        self._stream = None if isinstance(source, bytes) else getattr(source, "buffer", source)
        self._descriptor = None if self._stream is None else _descriptor_of(self._stream)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read, and never will be."""
        return self._stream is None and not self._data

    def read(self, call: Call, memory: Memory, buffers: Buffers | None, out: int) -> int:
        """Fill the first buffer that has room."""
        if buffers is None:
            return abi.EINVAL
        address, size = next(((address, size) for address, size in buffers if size), (0, 0))
        data = self._take(call, min(size, MOST_READ_BYTES)) if size else b""
        if not memory.write(address, data) or not memory.pack(abi.U32, out, len(data)):
            return abi.EFAULT
        return abi.SUCCESS

    def _take(self, call: Call, size: int) -> bytes | memoryview:
        if self._stream is None:
            data, self._data = self._data[:size], self._data[size:]
            return data
        if self._descriptor is None:
            return self._stream.read(size) or b""
        while not self.is_ready(INTERRUPT_POLL_SECONDS):
            call.check()
        return os.read(self._descriptor, size)

    def write(self, _call: Call, _memory: Memory, _buffers: Buffers | None, _out: int) -> int:
        """An input cannot be written."""
        return abi.EBADF

    def is_ready(self, seconds: float = 0.0) -> bool:
        """Whether a read would not block, within this time."""
        if self._descriptor is None:
            return True
        poll = select.poll()  # select() refuses numbers from 1,024 up
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(seconds * 1000))


def _descriptor_of(stream: BinaryIO) -> int | None:
    """What to wait for; None for a file, which never blocks and whose reader has its own position."""
    try:
        descriptor = stream.fileno()
        return None if stat.S_ISREG(os.fstat(descriptor).st_mode) else descriptor
    except (OSError, AttributeError, ValueError):
        return None
