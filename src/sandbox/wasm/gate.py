"""What stands between a guest and the disk."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox.wasm import abi
from sandbox.wasm.journal import Journal
from sandbox.wasm.places import Places
from sandbox.wasm.polling import poll
from sandbox.wasm.quota import DiskLimits, Quota

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandbox.wasm.call import Call
    from sandbox.wasm.forwards import Forwards
    from sandbox.wasm.memory import Memory
    from sandbox.wasm.names import HostOnlyNames
    from sandbox.wasm.streams import Input, Output

FIRST_PREOPEN = 3  # after stdin, stdout, stderr
MOST_BUFFERS = 1024  # that one write may gather, as on Linux
OPENABLE = (abi.DIRECTORY, abi.REGULAR_FILE, abi.SYMBOLIC_LINK)


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
    path: str = ""  # inside the mount
    writes: bool = False
    appends: bool = False
    end: int = 0  # how far the file reaches, as far as this descriptor knows
    stream: int | None = None  # which standard stream it is


Streams = tuple["Input", "Output", "Output"]  # stdin, stdout, stderr


class Gate:
    """The functions of WASI that the host answers itself or looks at first.

    Every method is one import of the guest: it gets the raw arguments' address, then the arguments
    as unsigned numbers, and answers an error number. A guest can call each with anything, so no
    address, length, descriptor or remembered path is trusted: wasmtime resolves paths and checks
    rights, and what is remembered here serves only to refuse and to report.
    """

    def __init__(
        self,
        *,
        memory: Memory,
        forwards: Forwards,
        mounts: Sequence[Mount],
        host_only: HostOnlyNames,
        max_open_files: int,
        scratch: int | None,
    ) -> None:
        self._memory = memory
        self._forward = forwards.call
        self._query = forwards.query
        self._host_only = host_only
        self._scratch = scratch  # a place in guest memory for wasmtime's answers to the gate
        self._workspace = next((mount.host_path for mount in mounts if mount.journaled), "")
        self._fds = {number: Descriptor(stream=number) for number in range(FIRST_PREOPEN)}
        for number, mount in enumerate(mounts, FIRST_PREOPEN):
            self._fds[number] = Descriptor(mount)
        self._most_fds = len(self._fds) + max_open_files
        self._places = Places(self._workspace)
        self.touched_tmp = False

    def begin(self, call: Call, streams: Streams, limits: DiskLimits) -> None:
        """Start a new account of what the guest does."""
        self._call = call
        self._streams = streams
        self._quota = Quota(limits, self._workspace, call.check)
        self._places.forget()
        self.journal = Journal()
        self.denied = False

    @property
    def quota_exceeded(self) -> bool:
        """Whether a write was refused for want of room."""
        return self._quota.exceeded

    # ---- files that are open

    def fd_close(self, args: int, fd: int) -> int:
        error = self._forward("fd_close", args)
        if error == abi.SUCCESS:
            self._fds.pop(fd, None)
        return error

    def fd_read(self, args: int, fd: int, iovs: int, count: int, out: int) -> int:
        stream = self.stream(fd)
        if stream is None:
            return self._forward("fd_read", args)
        return stream.read(self._call, self._memory, self._buffers(iovs, count), out)

    def fd_write(self, args: int, fd: int, iovs: int, count: int, out: int) -> int:
        stream = self.stream(fd)
        if stream is not None:
            return stream.write(self._call, self._memory, self._buffers(iovs, count), out)
        held = self._fds.get(fd)
        if held is None:
            return self._forward("fd_write", args)
        offset = None if held.appends else self._tell(fd)
        return self._write("fd_write", args, held, self._buffers(iovs, count), offset)

    def fd_pwrite(self, args: int, fd: int, iovs: int, count: int, offset: int, _out: int) -> int:
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
        offset: int | None,
    ) -> int:
        if buffers is None or held.mount is None or not held.writes:
            return self._forward(name, args)
        length = sum(size for _, size in buffers)
        start = held.end if offset is None else offset
        # A write far past the end makes a hole, which counts as if it were written.
        growth = length + max(0, start - held.end)
        if not self._quota.allows(size=growth, in_workspace=held.mount.journaled):
            return abi.ENOSPC
        error = self._forward(name, args)
        if error == abi.SUCCESS:
            held.end = max(held.end, start + length)
            self._wrote(held)
        return error

    def _wrote(self, held: Descriptor) -> None:
        if held.mount is not None and held.mount.journaled and held.path:
            self.journal.wrote(held.path)

    def _buffers(self, address: int, count: int) -> list[tuple[int, int]] | None:
        """The pieces of memory that a read or write names; None where they are no such list."""
        if count > MOST_BUFFERS:
            return None
        table = self._memory.read(address, count * abi.IOVEC.size)
        if table is None:
            return None
        buffers = list(abi.IOVEC.iter_unpack(table))
        return buffers if all(self._memory.within(*buffer) for buffer in buffers) else None

    def _tell(self, fd: int) -> int | None:
        if self._scratch is None or self._query("fd_tell", fd, self._scratch) != abi.SUCCESS:
            return None
        answer = self._memory.unpack(abi.U64, self._scratch)
        return None if answer is None else int(answer[0])

    def _size(self, fd: int) -> int:
        if self._scratch is None or self._query("fd_filestat_get", fd, self._scratch) != abi.SUCCESS:
            return 0
        answer = self._memory.unpack(abi.FILESTAT, self._scratch)
        return 0 if answer is None else int(answer[4])

    # ---- names

    def fd_readdir(self, args: int, _fd: int, buffer: int, length: int, _cookie: int, used: int) -> int:
        error = self._forward("fd_readdir", args)
        if error == abi.SUCCESS:
            filled = self._memory.unpack(abi.U32, used)
            listing = None if filled is None else self._memory.view(buffer, min(filled[0], length))
            if listing is not None and self._host_only.may_hide(bytes(listing)):
                self._blank(listing)
        return error

    def _blank(self, listing: memoryview) -> None:
        """Overwrite hidden names with NULs, which the C library skips; cookies stay right."""
        place = 0
        while place + abi.DIRENT.size <= len(listing):
            _, _, length, _ = abi.DIRENT.unpack_from(listing, place)
            start, end = place + abi.DIRENT.size, place + abi.DIRENT.size + length
            name = bytes(listing[start:end]).decode("utf-8", "surrogateescape")
            cut_off = end > len(listing) and self._host_only.begin_with(name)
            if cut_off or self._host_only.hide_name(name):
                listing[start:end] = bytes(min(end, len(listing)) - start)
            place = end

    def path_open(
        self,
        args: int,
        fd: int,
        lookup: int,
        path: int,
        length: int,
        oflags: int,
        rights: int,
        _inherited: int,
        fdflags: int,
        out: int,
    ) -> int:
        name = self._memory.read(path, length)
        if name is None:
            return self._forward("path_open", args)
        creates = bool(oflags & abi.O_CREAT)
        if self._hides(name):
            return abi.EACCES if creates else abi.ENOENT
        if len(self._fds) >= self._most_fds:
            return abi.EMFILE
        found = self._look(fd, lookup, path, length)
        if found is not None and found[2] not in OPENABLE:
            return abi.EACCES  # a FIFO would block the host, a device is nobody's business
        at = self._fds.get(fd)
        if lookup & abi.LOOKUP_FOLLOW and self._leads_to_hidden(at, name):
            return abi.ENOENT
        new = creates and found is None
        if new and not self._allows_node(at):
            return abi.ENOSPC
        error = self._forward("path_open", args)
        if error == abi.SUCCESS:
            opened = self._memory.unpack(abi.U32, out)
            held = self._describe(at, name, rights, fdflags, follow=bool(lookup & abi.LOOKUP_FOLLOW))
            self._opened(held, found, truncates=bool(oflags & abi.O_TRUNC), new=new)
            if opened is not None:
                self._fds[opened[0]] = held
        return error

    def _describe(
        self, at: Descriptor | None, name: bytes, rights: int, fdflags: int, *, follow: bool
    ) -> Descriptor:
        mount = at.mount if at else None
        if at is None or mount is None or not mount.writable:
            return Descriptor(mount)
        return Descriptor(
            mount,
            self._places.find(at.path, name, follow=follow) if mount.journaled else "",
            writes=bool(rights & abi.RIGHT_FD_WRITE),
            appends=bool(fdflags & abi.FD_APPEND),
        )

    def _opened(self, held: Descriptor, found: tuple[int, ...] | None, *, truncates: bool, new: bool) -> None:
        if found is not None and not truncates:
            held.end = found[4]
        if new:
            self._made(held.mount, held.path)
        elif truncates and found is not None and found[2] != abi.DIRECTORY:
            self._wrote(held)

    def path_filestat_get(self, args: int, fd: int, lookup: int, path: int, length: int, _out: int) -> int:
        return self._look_only("path_filestat_get", args, fd, path, length, follow=bool(lookup & 1))

    def path_filestat_set_times(
        self, args: int, fd: int, lookup: int, path: int, length: int, *_times: int
    ) -> int:
        return self._look_only("path_filestat_set_times", args, fd, path, length, follow=bool(lookup & 1))

    def path_readlink(self, args: int, fd: int, path: int, length: int, *_out: int) -> int:
        return self._look_only("path_readlink", args, fd, path, length, follow=False)

    def _look_only(self, function: str, args: int, fd: int, path: int, length: int, *, follow: bool) -> int:
        name = self._memory.read(path, length)
        if name is not None and self._hides(name):
            return abi.ENOENT
        if follow and name is not None and self._leads_to_hidden(self._fds.get(fd), name):
            return abi.ENOENT
        return self._forward(function, args)

    def path_create_directory(self, args: int, fd: int, path: int, length: int) -> int:
        return self._make("path_create_directory", args, fd, path, length, reported=False)

    def path_symlink(self, args: int, target: int, size: int, fd: int, path: int, length: int) -> int:
        text = self._memory.read(target, size)
        if text is not None and self._hides(text):
            return abi.EACCES
        return self._make("path_symlink", args, fd, path, length)

    def path_link(
        self, args: int, old_fd: int, _lookup: int, old: int, old_size: int, fd: int, path: int, length: int
    ) -> int:
        name = self._memory.read(old, old_size)
        if name is not None and (self._hides(name) or self._leads_to_hidden(self._fds.get(old_fd), name)):
            return abi.ENOENT
        return self._make("path_link", args, fd, path, length)

    def _make(
        self, function: str, args: int, fd: int, path: int, length: int, *, reported: bool = True
    ) -> int:
        name = self._memory.read(path, length)
        if name is None:
            return self._forward(function, args)
        if self._hides(name):
            return abi.EACCES
        at = self._fds.get(fd)
        if not self._allows_node(at):
            return abi.ENOSPC
        error = self._forward(function, args)
        if error == abi.SUCCESS:
            self._places.forget()
            if at is not None and at.mount is not None:
                self._made(
                    at.mount, self._places.find(at.path, name) if reported and at.mount.journaled else ""
                )
        return error

    def _made(self, mount: Mount | None, path: str) -> None:
        if mount is not None and mount.journaled:
            if path:
                self.journal.wrote(path, existed=False)
        else:
            self.touched_tmp = True

    def path_unlink_file(self, args: int, fd: int, path: int, length: int) -> int:
        return self._remove("path_unlink_file", args, fd, path, length, reported=True)

    def path_remove_directory(self, args: int, fd: int, path: int, length: int) -> int:
        return self._remove("path_remove_directory", args, fd, path, length, reported=False)

    def _remove(self, function: str, args: int, fd: int, path: int, length: int, *, reported: bool) -> int:
        name = self._memory.read(path, length)
        if name is not None and self._hides(name):
            return abi.ENOENT
        at = self._fds.get(fd)
        gone = (
            self._places.find(at.path, name)
            if at and name and at.mount and at.mount.journaled and reported
            else ""
        )
        error = self._forward(function, args)
        if error == abi.SUCCESS:
            self._places.forget()
            if gone:
                self.journal.removed(gone)
        return error

    def path_rename(
        self, args: int, old_fd: int, old: int, old_size: int, fd: int, path: int, length: int
    ) -> int:
        source, target = self._memory.read(old, old_size), self._memory.read(path, length)
        if source is None or target is None:
            return self._forward("path_rename", args)
        if self._hides(source):
            return abi.ENOENT
        if self._hides(target):
            return abi.EACCES
        moved = self._look(old_fd, 0, old, old_size)
        replaced = self._look(fd, 0, path, length)
        places = self._place(old_fd, source), self._place(fd, target)
        error = self._forward("path_rename", args)
        if error == abi.SUCCESS:
            self._places.forget()
            self._renamed(*places, moved=moved, replaced=replaced is not None)
        return error

    # ---- what is where

    def _hides(self, name: bytes) -> bool:
        hidden = self._host_only.hide(name)
        self.denied |= hidden
        return hidden

    def _allows_node(self, at: Descriptor | None) -> bool:
        mount = at.mount if at else None
        return mount is None or self._quota.allows(size=0, nodes=1, in_workspace=mount.journaled)

    def _look(self, fd: int, lookup: int, path: int, length: int) -> tuple[int, ...] | None:
        """What wasmtime finds at a path: the fields of a filestat, or None for nothing."""
        if self._scratch is None:
            return None
        if self._query("path_filestat_get", fd, lookup, path, length, self._scratch) != abi.SUCCESS:
            return None
        return self._memory.unpack(abi.FILESTAT, self._scratch)

    def _leads_to_hidden(self, at: Descriptor | None, name: bytes) -> bool:
        """Whether a link that the host left in the folder leads to a hidden name; guests cannot make one."""
        if at is None or at.mount is None:
            return False
        host = os.path.join(at.mount.host_path, at.path, os.fsdecode(name))
        try:
            os.readlink(host)
        except (OSError, ValueError):
            return False  # no link, as nearly always
        return self._hides(os.fsencode(os.path.realpath(host)))

    def _place(self, fd: int, name: bytes) -> tuple[Mount | None, str]:
        at = self._fds.get(fd)
        if at is None or at.mount is None:
            return None, ""
        return at.mount, self._places.find(at.path, name) if at.mount.journaled else ""

    def _renamed(
        self,
        source: tuple[Mount | None, str],
        target: tuple[Mount | None, str],
        *,
        moved: tuple[int, ...] | None,
        replaced: bool,
    ) -> None:
        if target[0] is not None and not target[0].journaled:
            self.touched_tmp = True
        if not (source[0] and source[0].journaled and target[0] and target[0].journaled):
            return  # wasmtime renames only inside one mount
        old, new = source[1], target[1]
        if moved is None or moved[2] != abi.DIRECTORY:
            self.journal.moved(old, new, replaced=replaced)
        else:
            for inside in self._places.files_below(new, self._call.check):
                self.journal.moved(f"{old}/{inside}", f"{new}/{inside}", replaced=False)
        for held in self._fds.values():
            if held.path == old or held.path.startswith(f"{old}/"):
                held.path = new + held.path[len(old) :]

    # ---- time and the end

    def poll_oneoff(self, _args: int, subscriptions: int, events: int, count: int, out: int) -> int:
        return poll(self, self._call, self._memory, subscriptions, events, count, out)

    def stream(self, fd: int) -> Input | Output | None:
        """The standard stream that a number stands for, if it still does."""
        held = self._fds.get(fd)
        return None if held is None or held.stream is None else self._streams[held.stream]

    def proc_exit(self, _args: int, code: int) -> int:
        self._call.exit(code)
        return abi.SUCCESS

    def now(self, clock: int) -> int | None:
        """The guest's own clock, in nanoseconds."""
        if self._scratch is None or self._query("clock_time_get", clock, 1, self._scratch) != abi.SUCCESS:
            return None
        answer = self._memory.unpack(abi.U64, self._scratch)
        return None if answer is None else int(answer[0])
