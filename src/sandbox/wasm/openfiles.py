"""The files that a guest holds open, and what it does with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox.wasm import abi
from sandbox.wasm.journal import Journal
from sandbox.wasm.polling import poll
from sandbox.wasm.quota import DiskLimits, Quota

if TYPE_CHECKING:
    from collections.abc import Sequence
    from struct import Struct

    from sandbox.wasm.call import Call
    from sandbox.wasm.forwards import Forwards
    from sandbox.wasm.memory import Memory
    from sandbox.wasm.streams import Input, Output

FIRST_PREOPEN = 3  # after stdin, stdout, stderr
MOST_BUFFERS = 1024  # that one write may gather, as on Linux


@dataclass(frozen=True)
class Mount:
    """A host folder that the guest sees at a path."""

    host_path: str
    guest_path: str
    writable: bool = False
    journaled: bool = False  # the workspace, whose changes are reported


@dataclass(slots=True)
class Descriptor:
    """What the guest holds open under one number."""

    mount: Mount | None = None  # None for a standard stream
    path: str | None = ""  # inside the mount; None where it has no name that can be told
    writes: bool = False
    appends: bool = False
    end: int = 0  # how far the file reaches, as far as this descriptor knows
    stream: int | None = None  # which standard stream it is


Streams = tuple["Input", "Output", "Output"]  # stdin, stdout, stderr


class OpenFiles:
    """The functions of WASI that work on a number: reads, writes, waits, the end.

    Every method is one import of the guest: it gets the raw arguments' address, then the arguments
    as unsigned numbers, and answers an error number. A guest can call each with anything.
    """

    def __init__(
        self,
        *,
        memory: Memory,
        forwards: Forwards,
        mounts: Sequence[Mount],
        max_open_files: int,
        scratch: int | None,
    ) -> None:
        self._memory = memory
        self._forward = forwards.call
        self._query = forwards.query
        self._scratch = scratch  # a place in guest memory for wasmtime's answers to the gate; none in a build
        self._workspace = next((mount.host_path for mount in mounts if mount.journaled), "")
        self._fds = {number: Descriptor(stream=number) for number in range(FIRST_PREOPEN)}
        for number, mount in enumerate(mounts, FIRST_PREOPEN):
            self._fds[number] = Descriptor(mount)
        self._most_fds = len(self._fds) + max_open_files

    def begin(self, call: Call, streams: Streams, limits: DiskLimits) -> None:
        """Start a new account of what the guest does."""
        self._call = call
        self._streams = streams
        self._quota = Quota(limits, self._workspace, call.check)
        self.journal = Journal()

    @property
    def quota_exceeded(self) -> bool:
        """Whether a write was refused for want of room."""
        return self._quota.exceeded

    def fd_close(self, args: int, fd: int) -> int:
        error = self._forward("fd_close", args)
        if error == abi.SUCCESS:
            self._fds.pop(fd, None)
        return error

    def fd_read(self, args: int, fd: int, iovs: int, count: int, out: int) -> int:
        stream = self.stream(fd)
        if stream is None:
            return self._forward("fd_read", args)
        if count > MOST_BUFFERS:
            return abi.EINVAL
        return stream.read(self._call, self._memory, self._buffers(iovs, count), out)

    def fd_write(self, args: int, fd: int, iovs: int, count: int, out: int) -> int:
        if count > MOST_BUFFERS:
            return abi.EINVAL
        stream = self.stream(fd)
        if stream is not None:
            return stream.write(self._call, self._memory, self._buffers(iovs, count), out)
        held = self._fds.get(fd)
        if held is None:
            return self._forward("fd_write", args)
        # The guest may have changed whether it appends, so the larger of the two places counts.
        offset = max(held.end, self._tell(fd)) if held.appends else self._tell(fd)
        return self._write("fd_write", args, held, self._buffers(iovs, count), offset)

    def fd_pwrite(self, args: int, fd: int, iovs: int, count: int, offset: int, _out: int) -> int:
        if count > MOST_BUFFERS:
            return abi.EINVAL
        held = self._fds.get(fd)
        if held is None or held.stream is not None:
            return self._forward("fd_pwrite", args)
        return self._write("fd_pwrite", args, held, self._buffers(iovs, count), offset)

    def fd_filestat_set_size(self, args: int, fd: int, size: int) -> int:
        held = self._fds.get(fd)
        if held is None or held.mount is None:
            return self._forward("fd_filestat_set_size", args)
        known = self._size(fd)
        if not self._quota.allows(size=max(0, size - known), in_workspace=held.mount.journaled):
            return abi.ENOSPC
        error = self._forward("fd_filestat_set_size", args)
        if error == abi.SUCCESS:
            held.end = size
            self._wrote(held)
        return error

    def _write(
        self,
        name: str,
        args: int,
        held: Descriptor,
        buffers: list[tuple[int, int]] | None,
        offset: int,
    ) -> int:
        if buffers is None or held.mount is None or not held.writes:
            return self._forward(name, args)  # which refuses each of these
        length = next((size for _, size in buffers if size), 0)  # wasmtime writes no more at once
        # A write far past the end makes a hole, which counts as if it were written.
        growth = length + max(0, offset - held.end)
        if not self._quota.allows(size=growth, in_workspace=held.mount.journaled):
            return abi.ENOSPC
        error = self._forward(name, args)
        if error == abi.SUCCESS:
            held.end = max(held.end, offset + length)
            self._wrote(held)
        return error

    def _wrote(self, held: Descriptor) -> None:
        if held.mount is not None and held.mount.journaled and held.path:
            self.journal.wrote(held.path)

    def _buffers(self, address: int, count: int) -> list[tuple[int, int]] | None:
        """The pieces of memory that a read or write names; None where they are no such list."""
        table = self._memory.read(address, count * abi.IOVEC.size)
        if table is None:
            return None
        buffers = list(abi.IOVEC.iter_unpack(table))
        return buffers if all(self._memory.within(*buffer) for buffer in buffers) else None

    def _tell(self, fd: int) -> int:
        answer = self._ask(abi.U64, "fd_tell", fd)
        return 0 if answer is None else int(answer[0])

    def _size(self, fd: int) -> int:
        answer = self._ask(abi.FILESTAT, "fd_filestat_get", fd)
        return 0 if answer is None else int(answer[4])

    def _ask(self, layout: Struct, name: str, *arguments: int) -> tuple[int, ...] | None:
        """Ask wasmtime on the gate's own account; None where it answers an error.

        The place for the answer is in the guest's memory and goes back to what it was: a guest that
        puts its path or its buffers there would have them changed after they were checked.
        """
        if self._scratch is None:
            return None
        before = self._memory.read(self._scratch, layout.size) or b""
        try:
            if self._query(name, *arguments, self._scratch) != abi.SUCCESS:
                return None
            return self._memory.unpack(layout, self._scratch)
        finally:
            self._memory.write(self._scratch, before)

    def poll_oneoff(self, _args: int, subscriptions: int, events: int, count: int, out: int) -> int:
        return poll(self, self._call, self._memory, subscriptions, events, count, out)

    def stream(self, fd: int) -> Input | Output | None:
        """The standard stream that a number stands for, if it still does."""
        held = self._fds.get(fd)
        return None if held is None or held.stream is None else self._streams[held.stream]

    def is_open(self, fd: int) -> bool:
        """Whether the guest holds something open under a number."""
        return fd in self._fds

    def proc_exit(self, _args: int, code: int) -> int:
        self._call.exit(code)
        return abi.SUCCESS

    def now(self, clock: int) -> int | None:
        """The guest's own clock, in nanoseconds."""
        answer = self._ask(abi.U64, "clock_time_get", clock, 1)
        return None if answer is None else int(answer[0])
