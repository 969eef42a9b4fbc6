"""What stands between a guest and the disk."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sandbox.wasm import abi
from sandbox.wasm.call import Refusal
from sandbox.wasm.openfiles import Descriptor, Mount, OpenFiles
from sandbox.wasm.places import Places

if TYPE_CHECKING:
    from sandbox.wasm.call import Call
    from sandbox.wasm.names import HostOnlyNames
    from sandbox.wasm.openfiles import Streams
    from sandbox.wasm.quota import DiskLimits

MOST_PATH_BYTES = 8192  # twice what Linux takes; checking a name costs the host its length
KINDS = {
    stat.S_IFDIR: abi.DIRECTORY,
    stat.S_IFREG: abi.REGULAR_FILE,
    stat.S_IFLNK: abi.SYMBOLIC_LINK,
}
UNKNOWN_KIND = 0
OPENABLE = (abi.DIRECTORY, abi.REGULAR_FILE, abi.SYMBOLIC_LINK)


@dataclass(frozen=True, slots=True)
class Found:
    """What a name stands for."""

    identity: tuple[int, int]  # the same for two names of one file
    kind: int  # a file type of WASI
    size: int


class Gate(OpenFiles):
    """The functions of WASI that work on names, and below it those on open files.

    No address, length, descriptor or remembered path of a guest is trusted: wasmtime resolves paths
    and checks rights, and what is remembered here serves only to refuse and to report.
    """

    def __init__(self, *, host_only: HostOnlyNames, **parts: Any) -> None:
        super().__init__(**parts)
        self._host_only = host_only
        self._places: dict[str, Places] = {}
        self.touched_tmp = False

    def begin(self, call: Call, streams: Streams, limits: DiskLimits) -> None:
        """Start a new account of what the guest does."""
        super().begin(call, streams, limits)
        self._forget()
        self.denied = False

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
        if at is None or at.mount is None or not (follow or b"/" in name):
            return False
        try:
            place = self._places_of(at.mount).find(at.path, name, follow=follow)
        except OSError:  # a link on the way is being replaced: better not there than not checked
            raise Refusal(abi.ENOENT) from None
        return place is not None and self._host_only.hide(place.encode())

    def _allows_node(self, at: Descriptor | None) -> bool:
        mount = at.mount if at else None
        if mount is None:
            return True
        if self.journal.is_full:
            self._quota.exceeded = True
            return False
        return self._quota.allows(size=0, nodes=1, in_workspace=mount.journaled)

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
        """Where a name lies, for the report; None where that cannot be told."""
        try:
            return None if at.mount is None else self._places_of(at.mount).find(at.path, name, follow=follow)
        except OSError:
            return None

    def _places_of(self, mount: Mount) -> Places:
        places = self._places.get(mount.host_path)
        if places is None:
            places = self._places[mount.host_path] = Places(mount.host_path)
        return places

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
        for inside in self._places_of(mount).files_below(new, self._call.check):
            if not self._host_only.hide(inside.encode()):
                self.journal.moved(f"{old}/{inside}", f"{new}/{inside}", replaced=False)


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
