"""What a guest may do with what it holds open."""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

from sandbox.wasm import abi
from sandbox.wasm.call import Refusal, Stop
from sandbox.wasm.descriptors import Descriptor, Descriptors, Mount, in_workspace
from sandbox.wasm.journal import Journal
from sandbox.wasm.polling import poll
from sandbox.wasm.quota import DiskLimits, Quota

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from struct import Struct

    from sandbox.wasm.call import Call
    from sandbox.wasm.memory import Memory
    from sandbox.wasm.streams import Input, Output

MOST_BUFFERS = 1024  # that one read or write may name, as on Linux
LATEST_NS = abi.MOST_I64  # that a file's time may be

Streams = tuple["Input", "Output", "Output"]  # stdin, stdout, stderr


class OpenFiles:
    """The functions of WASI that work on a number: reads, writes, waits, the end.

    Every method is one import of the guest: it gets the arguments as unsigned numbers and answers an
    error number; an OSError or a Refusal becomes one. A guest can call each with anything.
    """

    def __init__(self, *, memory: Memory, mounts: Sequence[Mount], max_open_files: int) -> None:
        self._memory = memory
        self._held = Descriptors(mounts, max_open_files)
        self._workspace = next((mount.host_path for mount in mounts if mount.journaled), "")
        self._started_ns = time.monotonic_ns()
        self.touched_tmp = False  # its times as well, which the next one to get it could read

    def begin(self, call: Call, streams: Streams, limits: DiskLimits) -> None:
        """Start a new account of what the guest does."""
        self._call = call
        self._streams = streams
        self._quota = Quota(limits, self._workspace, call.check)
        self.journal = Journal()

    def close(self) -> None:
        """Close what the guest holds open; may be called twice."""
        self._held.close()

    @property
    def quota_exceeded(self) -> bool:
        """Whether a write was refused for want of room."""
        return self._quota.exceeded

    # What is known of a number.

    def fd_close(self, fd: int) -> int:
        return abi.SUCCESS if self._held.remove(fd) else abi.EBADF

    def fd_fdstat_get(self, fd: int, out: int) -> int:
        held = self._held.any(fd)
        return self._answer(abi.FDSTAT, out, held.kind, held.flags, held.rights, abi.ALL_RIGHTS)

    def fd_fdstat_set_flags(self, fd: int, flags: int) -> int:
        held = self._held.file(fd)
        if flags & ~abi.FD_FLAGS:
            return abi.EINVAL
        append = os.O_APPEND if flags & abi.FD_APPEND else 0
        fcntl.fcntl(held.host, fcntl.F_SETFL, os.O_NONBLOCK | append)
        held.flags = flags
        return abi.SUCCESS

    def fd_filestat_get(self, fd: int, out: int) -> int:
        held = self._held.any(fd)
        info = (0, 0, abi.UNKNOWN, 0, 0, 0, 0, 0) if held.host < 0 else abi.filestat(os.fstat(held.host))
        return self._answer(abi.FILESTAT, out, *info)

    def fd_filestat_set_size(self, fd: int, size: int) -> int:
        held = self._held.file(fd)
        if size > abi.MOST_I64 or not held.rights & abi.RIGHT_FD_WRITE:
            return abi.EINVAL
        growth = max(0, size - os.fstat(held.host).st_size)
        self._charge(held, growth)
        os.ftruncate(held.host, size)
        self._wrote(held)
        return abi.SUCCESS

    def fd_filestat_set_times(self, fd: int, accessed: int, modified: int, which: int) -> int:
        held = self._held.any(fd)
        if held.mount is None:
            return abi.EBADF
        if not held.mount.writable:
            return abi.EPERM
        os.utime(held.host, ns=new_times(os.fstat(held.host), accessed, modified, which))
        self.touched_tmp |= not held.mount.journaled
        return abi.SUCCESS

    def fd_prestat_get(self, fd: int, out: int) -> int:
        return self._answer(abi.PRESTAT, out, 0, len(self._granted(fd).guest_path.encode()))

    def fd_prestat_dir_name(self, fd: int, address: int, length: int) -> int:
        name = self._granted(fd).guest_path.encode()
        if length < len(name):
            return abi.ENAMETOOLONG
        return abi.SUCCESS if self._memory.write(address, name) else abi.EFAULT

    def _granted(self, fd: int) -> Mount:
        held = self._held.get(fd)
        if held is None or held.mount is None or not held.granted:
            raise Refusal(abi.EBADF)
        return held.mount

    # Where a file is read and written.

    def fd_seek(self, fd: int, offset: int, whence: int, out: int) -> int:
        if self.stream(fd) is not None:
            return abi.ESPIPE
        signed = offset - (1 << 64) if offset > abi.MOST_I64 else offset
        if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
            return abi.EINVAL
        return self._answer(abi.U64, out, os.lseek(self._held.file(fd).host, signed, whence))

    def fd_tell(self, fd: int, out: int) -> int:
        return self.fd_seek(fd, 0, os.SEEK_CUR, out)

    def fd_advise(self, fd: int, _offset: int, _length: int, _advice: int) -> int:
        self._held.file(fd)
        return abi.SUCCESS

    def fd_sync(self, fd: int) -> int:
        held = self._held.any(fd)
        if held.host >= 0:
            os.fsync(held.host)
        return abi.SUCCESS

    fd_datasync = fd_sync

    # Reading and writing.

    def fd_read(self, fd: int, iovs: int, count: int, out: int) -> int:
        stream = self.stream(fd)
        if stream is not None:
            return self._through(stream.read, iovs, count, out)
        held, views = self._held.file(fd), self._views(iovs, count, out)
        return self._answer(abi.U32, out, os.readv(held.host, views) if views else 0)

    def fd_pread(self, fd: int, iovs: int, count: int, offset: int, out: int) -> int:
        if self.stream(fd) is not None:
            return abi.ESPIPE
        held, views = self._held.file(fd), self._views(iovs, count, out)
        if offset > abi.MOST_I64:
            return abi.EINVAL
        return self._answer(abi.U32, out, os.preadv(held.host, views, offset) if views else 0)

    def fd_write(self, fd: int, iovs: int, count: int, out: int) -> int:
        stream = self.stream(fd)
        if stream is not None:
            return self._through(stream.write, iovs, count, out)
        held, views = self._held.file(fd), self._views(iovs, count, out)
        offset = os.lseek(held.host, 0, os.SEEK_CUR)
        self._allow_write(held, views, 0 if held.flags & abi.FD_APPEND else offset)
        return self._answer(abi.U32, out, os.writev(held.host, views) if views else 0)

    def fd_pwrite(self, fd: int, iovs: int, count: int, offset: int, out: int) -> int:
        if self.stream(fd) is not None:
            return abi.ESPIPE
        held, views = self._held.file(fd), self._views(iovs, count, out)
        if offset > abi.MOST_I64:
            return abi.EINVAL
        self._allow_write(held, views, offset)
        return self._answer(abi.U32, out, os.pwritev(held.host, views, offset) if views else 0)

    def _allow_write(self, held: Descriptor, views: list[memoryview], offset: int) -> None:
        if not held.rights & abi.RIGHT_FD_WRITE:
            raise Refusal(abi.EBADF)
        if views:
            # A write far past the end makes a hole, which counts as if it were written.
            hole = max(0, offset - os.fstat(held.host).st_size)
            self._charge(held, sum(map(len, views)) + hole)
            self._wrote(held)

    def _charge(self, held: Descriptor, size: int) -> None:
        if not self._quota.allows(size=size, in_workspace=in_workspace(held.mount)):
            raise Refusal(abi.ENOSPC)

    def _wrote(self, held: Descriptor) -> None:
        if in_workspace(held.mount) and held.path:
            self.journal.wrote(held.path)

    def _through(self, act: Callable[..., int], iovs: int, count: int, out: int) -> int:
        """Have a stream read or write; what a caller's own stream or listener raises is for the caller."""
        if count > MOST_BUFFERS:
            return abi.EINVAL
        try:
            return act(self._call, self._memory, self._buffers(iovs, count), out)
        except OSError as error:
            self._call.record(error)
            raise Stop from None

    def _buffers(self, address: int, count: int) -> list[tuple[int, int]] | None:
        """The pieces of memory that a read or write names; None where they are no such list."""
        table = self._memory.read(address, count * abi.IOVEC.size)
        if table is None:
            return None
        buffers = list(abi.IOVEC.iter_unpack(table))
        return buffers if all(self._memory.within(*buffer) for buffer in buffers) else None

    def _views(self, iovs: int, count: int, out: int) -> list[memoryview]:
        """The same in place, without the empty ones; refused before anything is read or written."""
        if count > MOST_BUFFERS:
            raise Refusal(abi.EINVAL)
        buffers = self._buffers(iovs, count)
        if buffers is None or not self._memory.within(out, abi.U32.size):
            raise Refusal(abi.EFAULT)
        views = (self._memory.view(*buffer) for buffer in buffers)
        return [view for view in views if view]

    def _answer(self, layout: Struct, out: int, *values: int) -> int:
        return abi.SUCCESS if self._memory.pack(layout, out, *values) else abi.EFAULT

    # Waiting, and the end.

    def poll_oneoff(self, subscriptions: int, events: int, count: int, out: int) -> int:
        return poll(self, self._call, self._memory, subscriptions, events, count, out)

    def stream(self, fd: int) -> Input | Output | None:
        """The standard stream that a number stands for, if it still does."""
        held = self._held.get(fd)
        return None if held is None or held.stream is None else self._streams[held.stream]

    def is_open(self, fd: int) -> bool:
        """Whether the guest holds something open under a number."""
        return self._held.get(fd) is not None

    def proc_exit(self, code: int) -> int:
        self._call.exit(code)
        return abi.SUCCESS

    def now(self, clock: int) -> int | None:
        """The guest's own clock, in nanoseconds; never ahead of what wasmtime tells it."""
        if clock == abi.CLOCK_REALTIME:
            return time.time_ns()
        return time.monotonic_ns() - self._started_ns if clock == abi.CLOCK_MONOTONIC else None


def new_times(info: os.stat_result, accessed: int, modified: int, which: int) -> tuple[int, int]:
    """The two times of a file after a change of one or both."""
    return (
        _new_time(info.st_atime_ns, accessed, which & abi.SET_ACCESSED, which & abi.SET_ACCESSED_NOW),
        _new_time(info.st_mtime_ns, modified, which & abi.SET_MODIFIED, which & abi.SET_MODIFIED_NOW),
    )


def _new_time(before: int, given: int, is_given: int, is_now: int) -> int:
    if is_given and (is_now or given > LATEST_NS):
        raise Refusal(abi.EINVAL)
    return given if is_given else time.time_ns() if is_now else before
