"""What stands between a guest and the disk."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox.wasm import abi
from sandbox.wasm.call import Refusal
from sandbox.wasm.journal import Journal
from sandbox.wasm.places import Places
from sandbox.wasm.polling import poll
from sandbox.wasm.quota import DiskLimits, Quota

if TYPE_CHECKING:
    from collections.abc import Sequence
    from struct import Struct

    from sandbox.wasm.call import Call
    from sandbox.wasm.forwards import Forwards
    from sandbox.wasm.memory import Memory
    from sandbox.wasm.names import HostOnlyNames
    from sandbox.wasm.streams import Input, Output

FIRST_PREOPEN = 3  # after stdin, stdout, stderr
MOST_BUFFERS = 1024  # that one write may gather, as on Linux
MOST_PATH_BYTES = 8192  # twice what Linux takes; checking a name costs the host its length
KINDS = {
    stat.S_IFDIR: abi.DIRECTORY,
    stat.S_IFREG: abi.REGULAR_FILE,
    stat.S_IFLNK: abi.SYMBOLIC_LINK,
}
UNKNOWN_KIND = 0
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
    path: str | None = ""  # inside the mount; None where it has no name that can be told
    writes: bool = False
    appends: bool = False
    end: int = 0  # how far the file reaches, as far as this descriptor knows
    stream: int | None = None  # which standard stream it is


@dataclass(frozen=True, slots=True)
class Found:
    """What a name stands for."""

    identity: tuple[int, int]  # the same for two names of one file
    kind: int  # a file type of WASI
    size: int


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
        self._scratch = scratch  # a place in guest memory for wasmtime's answers to the gate; none in a build
        self._workspace = next((mount.host_path for mount in mounts if mount.journaled), "")
        self._fds = {number: Descriptor(stream=number) for number in range(FIRST_PREOPEN)}
        for number, mount in enumerate(mounts, FIRST_PREOPEN):
            self._fds[number] = Descriptor(mount)
        self._most_fds = len(self._fds) + max_open_files
        self._places: dict[str, Places] = {}
        self.touched_tmp = False

    def begin(self, call: Call, streams: Streams, limits: DiskLimits) -> None:
        """Start a new account of what the guest does."""
        self._call = call
        self._streams = streams
        self._quota = Quota(limits, self._workspace, call.check)
        self._forget()
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

    # ---- names

    def fd_readdir(self, args: int, _fd: int, buffer: int, length: int, _cookie: int, used: int) -> int:
        if buffer - abi.U32.size < used < buffer + length:
            return abi.EINVAL  # the count would fall on the entries that are looked through below
        error = self._forward("fd_readdir", args)
        if error == abi.SUCCESS:
            filled = self._memory.unpack(abi.U32, used)
            listing = None if filled is None else self._memory.view(buffer, min(filled[0], length))
            if listing is not None and self._host_only.may_hide(
                bytes(listing), cut_off=len(listing) == length
            ):
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
        name = self._name(path, length)
        if name is None:
            return self._forward("path_open", args)
        creates = bool(oflags & abi.O_CREAT)
        follow = bool(lookup & abi.LOOKUP_FOLLOW)
        at = self._fds.get(fd)
        if self._hides(at, name, follow=follow):
            return abi.EACCES if creates else abi.ENOENT
        if len(self._fds) >= self._most_fds:
            return abi.EMFILE
        found = self._glance(at, name, fd, lookup, path, length)
        if found is not None and found.kind not in OPENABLE:
            return abi.EACCES  # a FIFO would block the host, a device is nobody's business
        new = creates and found is None
        if new and not self._allows_node(at):
            return abi.ENOSPC
        error = self._forward("path_open", args)
        if error == abi.SUCCESS:
            opened = self._memory.unpack(abi.U32, out)
            held = self._describe(at, name, rights, fdflags, follow=follow)
            self._opened(held, found, truncates=bool(oflags & abi.O_TRUNC), new=new)
            if opened is not None:
                self._fds[opened[0]] = held
        return error

    def _describe(
        self, at: Descriptor | None, name: bytes, rights: int, fdflags: int, *, follow: bool
    ) -> Descriptor:
        mount = at.mount if at else None
        if at is None or mount is None:
            return Descriptor(mount)
        return Descriptor(
            mount,
            self._place(at, name, follow=follow),
            writes=bool(rights & abi.RIGHT_FD_WRITE),
            appends=bool(fdflags & abi.FD_APPEND),
        )

    def _opened(self, held: Descriptor, found: Found | None, *, truncates: bool, new: bool) -> None:
        if found is not None and not truncates:
            held.end = found.size
        if new:
            self._made(held.mount, held.path)
        elif truncates and found is not None and found.kind != abi.DIRECTORY:
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
        name = self._name(path, length)
        if name is not None and self._hides(self._fds.get(fd), name, follow=follow):
            return abi.ENOENT
        return self._forward(function, args)

    def path_create_directory(self, args: int, fd: int, path: int, length: int) -> int:
        return self._make("path_create_directory", args, fd, path, length, reported=False)

    def path_symlink(self, args: int, target: int, size: int, fd: int, path: int, length: int) -> int:
        text = self._name(target, size)
        if text is not None and self._hides(None, text):
            return abi.EACCES
        return self._make("path_symlink", args, fd, path, length)

    def path_link(
        self, args: int, old_fd: int, _lookup: int, old: int, old_size: int, fd: int, path: int, length: int
    ) -> int:
        name = self._name(old, old_size)
        if name is not None and self._hides(self._fds.get(old_fd), name, follow=True):
            return abi.ENOENT
        if self._are_apart(old_fd, fd):
            return abi.EXDEV
        return self._make("path_link", args, fd, path, length)

    def _make(
        self, function: str, args: int, fd: int, path: int, length: int, *, reported: bool = True
    ) -> int:
        name = self._name(path, length)
        if name is None:
            return self._forward(function, args)
        at = self._fds.get(fd)
        if self._hides(at, name):
            return abi.EACCES
        if not self._allows_node(at):
            return abi.ENOSPC
        error = self._forward(function, args)
        if error == abi.SUCCESS and at is not None:
            self._forget()
            self._made(at.mount, self._place(at, name) if reported else None)
        return error

    def _made(self, mount: Mount | None, path: str | None) -> None:
        if mount is None or not mount.journaled:
            self.touched_tmp = True
        elif path:
            self.journal.wrote(path, existed=False)

    def path_unlink_file(self, args: int, fd: int, path: int, length: int) -> int:
        return self._remove("path_unlink_file", args, fd, path, length, reported=True)

    def path_remove_directory(self, args: int, fd: int, path: int, length: int) -> int:
        return self._remove("path_remove_directory", args, fd, path, length, reported=False)

    def _remove(self, function: str, args: int, fd: int, path: int, length: int, *, reported: bool) -> int:
        name = self._name(path, length)
        at = self._fds.get(fd)
        if name is not None and self._hides(at, name):
            return abi.ENOENT
        gone = None if at is None or name is None else self._place(at, name)
        error = self._forward(function, args)
        if error == abi.SUCCESS and at is not None:
            self._forget()
            if gone:
                self._unname(at.mount, gone)
            if gone and reported and at.mount is not None and at.mount.journaled:
                self.journal.removed(gone)
        return error

    def path_rename(
        self, args: int, old_fd: int, old: int, old_size: int, fd: int, path: int, length: int
    ) -> int:
        source, target = self._name(old, old_size), self._name(path, length)
        if source is None or target is None:
            return self._forward("path_rename", args)
        origin, at = self._fds.get(old_fd), self._fds.get(fd)
        if self._hides(origin, source):
            return abi.ENOENT
        if self._hides(at, target):
            return abi.EACCES
        if self._are_apart(old_fd, fd):
            return abi.EXDEV
        moved = self._look(old_fd, 0, old, old_size)
        replaced = self._look(fd, 0, path, length)
        places = (
            None if origin is None or at is None else (self._place(origin, source), self._place(at, target))
        )
        error = self._forward("path_rename", args)
        if error == abi.SUCCESS and places is not None and at is not None and at.mount is not None:
            self._forget()
            if not _are_one(moved, replaced):
                self._renamed(at.mount, *places, moved=moved, replaced=replaced is not None)
        return error

    # ---- what is where

    def _name(self, address: int, length: int) -> bytes | None:
        """A path that the guest names; None where wasmtime refuses it: not in the memory, or with a NUL."""
        if length > MOST_PATH_BYTES:
            raise Refusal(abi.ENAMETOOLONG)
        name = self._memory.read(address, length)
        return None if name is None or b"\0" in name else name

    def _hides(self, at: Descriptor | None, name: bytes, *, follow: bool = False) -> bool:
        hidden = self._host_only.hide(name) or self._leads_to_hidden(at, name, follow=follow)
        self.denied |= hidden
        return hidden

    def _leads_to_hidden(self, at: Descriptor | None, name: bytes, *, follow: bool) -> bool:
        """Whether a link that the host left in the folder leads to a hidden name; guests cannot make one."""
        if at is None or not (follow or b"/" in name):
            return False
        place = self._place(at, name, follow=follow)
        return place is not None and self._host_only.hide(place.encode())

    def _allows_node(self, at: Descriptor | None) -> bool:
        mount = at.mount if at else None
        return mount is None or self._quota.allows(size=0, nodes=1, in_workspace=mount.journaled)

    def _glance(self, at: Descriptor | None, name: bytes, *asked: int) -> Found | None:
        """What is at a path that is to be opened, or None for nothing.

        A plain name in a folder that was granted is looked up on the host, which is twenty times
        faster; everything else, and a link to follow, by wasmtime, who resolves it as it will later.
        """
        if at is not None and at.mount is not None and at.path == "" and name and b"/" not in name:
            found = _find_on_host(os.path.join(os.fsencode(at.mount.host_path), name))
            if found is None or found.kind != abi.SYMBOLIC_LINK:
                return found
        return self._look(*asked)

    def _look(self, fd: int, lookup: int, path: int, length: int) -> Found | None:
        """What wasmtime finds at a path, or None for nothing."""
        answer = self._ask(abi.FILESTAT, "path_filestat_get", fd, lookup, path, length)
        return None if answer is None else Found((answer[0], answer[1]), answer[2], answer[4])

    def _are_apart(self, fd: int, other_fd: int) -> bool:
        """Whether two folders belong to different mounts, which nothing is moved or linked between."""
        one, other = self._fds.get(fd), self._fds.get(other_fd)
        return one is not None and other is not None and one.mount is not other.mount

    def _place(self, at: Descriptor, name: bytes, *, follow: bool = False) -> str | None:
        if at.mount is None:
            return None
        places = self._places.get(at.mount.host_path)
        if places is None:
            places = self._places[at.mount.host_path] = Places(at.mount.host_path)
        return places.find(at.path, name, follow=follow)

    def _forget(self) -> None:
        for places in self._places.values():
            places.forget()

    def _unname(self, mount: Mount | None, path: str) -> None:
        """What is still open under a name that is gone is written to without a trace in the report."""
        for held in self._fds.values():
            if held.path == path and held.mount is mount:
                held.path = None

    def _renamed(
        self,
        mount: Mount,
        old: str | None,
        new: str | None,
        *,
        moved: Found | None,
        replaced: bool,
    ) -> None:
        if new:
            self._unname(mount, new)
        if mount.journaled and old and new:
            if moved is None or moved.kind != abi.DIRECTORY:
                self.journal.moved(old, new, replaced=replaced)
            else:
                self._moved_folder(mount, old, new)
        for held in self._fds.values():
            if held.path and old and held.mount is mount and f"{held.path}/".startswith(f"{old}/"):
                held.path = None if new is None else new + held.path[len(old) :]

    def _moved_folder(self, mount: Mount, old: str, new: str) -> None:
        for inside in self._places[mount.host_path].files_below(new, self._call.check):
            if not self._host_only.hide(inside.encode()):
                self.journal.moved(f"{old}/{inside}", f"{new}/{inside}", replaced=False)

    # ---- time and the end

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


def _are_one(moved: Found | None, replaced: Found | None) -> bool:
    """Two names of one file: a rename between them does nothing."""
    return moved is not None and replaced is not None and moved.identity == replaced.identity


def _find_on_host(path: bytes) -> Found | None:
    try:
        info = os.lstat(path)
    except (OSError, ValueError):
        return None
    identity = info.st_dev, info.st_ino
    return Found(identity, KINDS.get(stat.S_IFMT(info.st_mode), UNKNOWN_KIND), info.st_size)
