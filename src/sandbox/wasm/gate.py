"""What stands between a guest and the disk."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sandbox.wasm import abi
from sandbox.wasm.beneath import LONGEST_PATH, Walk, files_below
from sandbox.wasm.call import Refusal
from sandbox.wasm.descriptors import Descriptor, Mount, in_workspace
from sandbox.wasm.listing import MOST_LISTED_BYTES, Listing
from sandbox.wasm.openfiles import OpenFiles, new_times

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sandbox.wasm.call import Call
    from sandbox.wasm.names import HostOnlyNames
    from sandbox.wasm.openfiles import Streams
    from sandbox.wasm.quota import DiskLimits

MOST_PATH_BYTES = LONGEST_PATH - 1  # the last byte is a NUL
OPENABLE = (abi.DIRECTORY, abi.REGULAR_FILE, abi.SYMBOLIC_LINK)
NEW_FILE_MODE = 0o666  # less what the host's umask takes away
OPEN_FLAGS = abi.O_CREAT | abi.O_DIRECTORY | abi.O_EXCL | abi.O_TRUNC
NEW_ONLY = abi.O_CREAT | abi.O_EXCL
# Whatever is at a name by now, it is not followed, not waited for, and not inherited.
_ALWAYS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_HOST_FLAGS = (
    (abi.O_CREAT, os.O_CREAT),
    (abi.O_DIRECTORY, os.O_DIRECTORY),
    (abi.O_EXCL, os.O_EXCL),
    (abi.O_TRUNC, os.O_TRUNC),
)


class Gate(OpenFiles):
    """The functions of WASI that work on names, and below it those on open files.

    No address, length, descriptor or remembered path of a guest is trusted: names are found by a
    walk that cannot leave the folder, and what is remembered serves only to refuse and to report.
    """

    def __init__(self, *, host_only: HostOnlyNames, **parts: Any) -> None:
        super().__init__(**parts)
        self._host_only = host_only

    def begin(self, call: Call, streams: Streams, limits: DiskLimits) -> None:
        """Start a new account of what the guest does."""
        super().begin(call, streams, limits)
        self.denied = False

    def fd_readdir(self, fd: int, buffer: int, length: int, cookie: int, used: int) -> int:
        held = self._held.folder(fd)
        if not self._memory.within(buffer, length) or not self._memory.within(used, abi.U32.size):
            return abi.EFAULT
        listing = (held.listing if cookie else None) or self._list(held)
        entries = listing.read(cookie, length)
        self._memory.write(buffer, entries)
        return self._answer(abi.U32, used, len(entries))

    def _list(self, held: Descriptor) -> Listing:
        """Read a folder; where all that were read take too much memory, the others are read again."""
        listing = Listing(held.host, self._host_only, self._call.check)
        held.listing = None
        kept = sum(other.listing.size for other in self._held if other.listing is not None)
        if kept + listing.size > MOST_LISTED_BYTES:
            for other in self._held:
                other.listing = None
        held.listing = listing
        return listing

    def path_open(
        self,
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
        if not self._memory.within(out, abi.U32.size):
            return abi.EFAULT
        if oflags & ~OPEN_FLAGS or fdflags & ~abi.FD_FLAGS or _contradict(oflags, rights):
            return abi.EINVAL
        creates, truncates = bool(oflags & abi.O_CREAT), bool(oflags & abi.O_TRUNC)
        changes = creates or truncates or bool(rights & abi.RIGHT_FD_WRITE)
        follow = bool(lookup & abi.LOOKUP_FOLLOW) and oflags & NEW_ONLY != NEW_ONLY
        hidden_error = abi.EACCES if creates else abi.ENOENT
        with self._walk(fd, changes=changes, hidden_error=hidden_error) as spot:
            name = self._name(path, length)
            if creates and name.endswith(b"/"):
                return abi.EISDIR
            spot.go(name, follow=follow)
            new = creates and spot.info is None
            self._allow_open(spot, new=new, changes=changes)
            held = self._open(spot, oflags, rights, fdflags)
            self._opened(held, new=new, truncates=truncates)
            return self._answer(abi.U32, out, self._held.add(held))

    def _allow_open(self, spot: Walk, *, new: bool, changes: bool) -> None:
        if self._held.is_full:
            raise Refusal(abi.EMFILE)
        if spot.info is not None and abi.kind_of(spot.info) not in OPENABLE:
            raise Refusal(abi.EACCES)  # a FIFO would block the host, a device is nobody's business
        if new:
            self._claim(spot)
        elif changes:
            self._allow_report(spot)

    def _open(self, spot: Walk, oflags: int, rights: int, fdflags: int) -> Descriptor:
        host = os.open(spot.name, _host_flags(oflags, rights, fdflags), NEW_FILE_MODE, dir_fd=spot.folder)
        kind = abi.kind_of(os.fstat(host))
        if kind not in (abi.DIRECTORY, abi.REGULAR_FILE):  # it has become something else just now
            os.close(host)
            raise Refusal(abi.EACCES)
        return Descriptor(kind, host, spot.at.mount, spot.path(), _kept(rights), fdflags)

    def _opened(self, held: Descriptor, *, new: bool, truncates: bool) -> None:
        if new:
            self._made(held.mount, held.path)
        elif truncates:
            self._wrote(held)

    def path_filestat_get(self, fd: int, lookup: int, path: int, length: int, out: int) -> int:
        with self._walk(fd) as spot:
            spot.go(self._name(path, length), follow=bool(lookup & abi.LOOKUP_FOLLOW))
            if spot.info is None:
                return abi.ENOENT
            return self._answer(abi.FILESTAT, out, *abi.filestat(spot.info))

    def path_filestat_set_times(
        self, fd: int, lookup: int, path: int, length: int, accessed: int, modified: int, which: int
    ) -> int:
        with self._walk(fd, changes=True) as spot:
            spot.go(self._name(path, length), follow=bool(lookup & abi.LOOKUP_FOLLOW))
            if spot.info is None:
                return abi.ENOENT
            times = new_times(spot.info, accessed, modified, which)
            os.utime(spot.name, ns=times, dir_fd=spot.folder, follow_symlinks=False)
            self.touched_tmp |= not in_workspace(spot.at.mount)
        return abi.SUCCESS

    def path_readlink(self, fd: int, path: int, length: int, buffer: int, size: int, used: int) -> int:
        with self._walk(fd) as spot:
            spot.go(self._name(path, length), follow=False)
            target = os.readlink(spot.name, dir_fd=spot.folder)
        if target.startswith(b"/"):
            return abi.EPERM  # which the host has made, and which tells of its folders
        if not self._memory.within(buffer, size):
            return abi.EFAULT
        self._memory.write(buffer, target[:size])
        return self._answer(abi.U32, used, len(target[:size]))

    def path_create_directory(self, fd: int, path: int, length: int) -> int:
        with self._walk(fd, changes=True, hidden_error=abi.EACCES) as spot:
            name = self._name(path, length)
            self._claim(spot.go(name.rstrip(b"/") or name, follow=False))
            os.mkdir(spot.name, dir_fd=spot.folder)
            self._made(spot.at.mount, None)
        return abi.SUCCESS

    def path_symlink(self, target: int, size: int, fd: int, path: int, length: int) -> int:
        with self._walk(fd, changes=True, hidden_error=abi.EACCES) as spot:
            text = self._name(target, size)
            if text.startswith(b"/"):
                return abi.EPERM
            if self._hides(text):
                return abi.EACCES
            self._claim(spot.go(self._name(path, length), follow=False), size=size)
            os.symlink(text, spot.name, dir_fd=spot.folder)
            self._made(spot.at.mount, spot.path())
        return abi.SUCCESS

    def path_link(
        self, old_fd: int, lookup: int, old: int, old_size: int, fd: int, path: int, length: int
    ) -> int:
        with self._pair(old_fd, fd) as (source, spot):
            source.go(self._name(old, old_size), follow=bool(lookup & abi.LOOKUP_FOLLOW))
            spot.go(self._name(path, length), follow=False)
            if source.info is None:
                return abi.ENOENT
            self._claim(spot, linked=source.info.st_size)
            folders = {"src_dir_fd": source.folder, "dst_dir_fd": spot.folder}
            os.link(source.name, spot.name, **folders, follow_symlinks=False)
            self._made(spot.at.mount, spot.path())
        return abi.SUCCESS

    def _claim(self, spot: Walk, *, size: int = 0, linked: int = 0) -> None:
        """Have a new name for so many bytes; refused where something is there already, or no room."""
        if spot.info is not None:
            raise Refusal(abi.EEXIST)
        if spot.must_be_folder:
            raise Refusal(abi.ENOENT)
        _refuse_foreign(spot.name)
        inside = in_workspace(spot.at.mount)
        if inside and self.journal.is_full:
            self._quota.exceeded = True
            raise Refusal(abi.ENOSPC)
        if not self._quota.allows(size=size, nodes=1, linked=linked, in_workspace=inside):
            raise Refusal(abi.ENOSPC)

    def _made(self, mount: Mount | None, path: str | None) -> None:
        if not in_workspace(mount):
            self.touched_tmp = True
        elif path:
            self.journal.wrote(path, existed=False)

    def path_unlink_file(self, fd: int, path: int, length: int) -> int:
        with self._walk(fd, changes=True) as spot:
            spot.go(self._name(path, length), follow=False, follow_slash=False)
            self._allow_report(spot)
            os.unlink(spot.name, dir_fd=spot.folder)
            self._removed(spot, reported=True)
        return abi.SUCCESS

    def path_remove_directory(self, fd: int, path: int, length: int) -> int:
        with self._walk(fd, changes=True) as spot:
            name = self._name(path, length)
            spot.go(name, follow=False, follow_slash=False)
            if _ends_with_dot(name):
                return abi.EINVAL
            os.rmdir(spot.name, dir_fd=spot.folder)
            self._removed(spot, reported=False)
        return abi.SUCCESS

    def _removed(self, spot: Walk, *, reported: bool) -> None:
        mount, path = spot.at.mount, spot.path()
        if path:
            self._unname(mount, path)
            if reported and in_workspace(mount):
                self.journal.removed(path)

    def path_rename(self, old_fd: int, old: int, old_size: int, fd: int, path: int, length: int) -> int:
        with self._pair(old_fd, fd) as (source, target):
            names = self._name(old, old_size), self._name(path, length)
            source.go(names[0], follow=False, follow_slash=False)
            target.go(names[1], follow=False, follow_slash=False)
            if source.info is None:
                return abi.ENOENT
            if any(map(_ends_with_dot, names)):
                return abi.EBUSY
            if target.must_be_folder and abi.kind_of(source.info) != abi.DIRECTORY:
                return abi.ENOTDIR
            _refuse_foreign(target.name)
            files = self._files_of(source, target) if in_workspace(target.at.mount) else []
            os.rename(source.name, target.name, src_dir_fd=source.folder, dst_dir_fd=target.folder)
            if target.info is None or not os.path.samestat(source.info, target.info):
                self._renamed(source, target, files)
        return abi.SUCCESS

    def _files_of(self, source: Walk, target: Walk) -> list[str]:
        """What follows the path in that of each file to move; refused where there is no room to tell it."""
        files, room = [], self.journal.room
        names_of_each = len(source.path() or "") + len(target.path() or "")
        for end in self._ends(source):
            files.append(end)
            room -= names_of_each + 2 * len(end)
            if room < 0:
                self._quota.exceeded = True
                raise Refusal(abi.ENOSPC)
        return files

    def _ends(self, spot: Walk) -> Iterable[str]:
        if spot.info is None or abi.kind_of(spot.info) != abi.DIRECTORY:
            return [""]
        return files_below(spot.folder, spot.name, hides=self._host_only.hides, keep_going=self._call.check)

    def _walk(self, fd: int, *, changes: bool = False, hidden_error: int = abi.ENOENT) -> Walk:
        """A walk from an open folder; none to change something in a folder that is for reading alone."""
        at = self._held.folder(fd)
        if changes and (at.mount is None or not at.mount.writable):
            raise Refusal(abi.EPERM)
        return Walk(at, hides=self._hides, hidden_error=hidden_error, keep_going=self._call.check)

    @contextmanager
    def _pair(self, fd: int, other_fd: int) -> Iterator[tuple[Walk, Walk]]:
        """Two walks in one mount: nothing is moved or linked from one to another."""
        if self._held.folder(fd).mount is not self._held.folder(other_fd).mount:
            raise Refusal(abi.EXDEV)
        with (
            self._walk(fd, changes=True) as one,
            self._walk(other_fd, changes=True, hidden_error=abi.EACCES) as other,
        ):
            yield one, other

    def _name(self, address: int, length: int) -> bytes:
        """A path that the guest names."""
        if length > MOST_PATH_BYTES:
            raise Refusal(abi.ENAMETOOLONG)
        name = self._memory.read(address, length)
        if name is None:
            raise Refusal(abi.EFAULT)
        if b"\0" in name:
            raise Refusal(abi.EINVAL)
        return name

    def _hides(self, path: bytes) -> bool:
        hidden = self._host_only.hides(path)
        self.denied |= hidden
        return hidden

    def _allow_report(self, spot: Walk) -> None:
        """A change that cannot be told is not made."""
        if self.journal.is_full and spot.path() not in self.journal and in_workspace(spot.at.mount):
            self._quota.exceeded = True
            raise Refusal(abi.ENOSPC)

    def _unname(self, mount: Mount | None, path: str) -> None:
        """What is still open under a name that is gone is written to without a trace in the report."""
        for held in self._held:
            if held.path == path and held.mount is mount:
                held.path = None

    def _renamed(self, source: Walk, target: Walk, files: list[str]) -> None:
        mount, old, new = target.at.mount, source.path(), target.path()
        if new:
            self._unname(mount, new)
        for end in files:
            self.journal.moved(_told(old, end), _told(new, end), replaced=target.info is not None and not end)
        for held in self._held:
            if held.path and old and held.mount is mount and f"{held.path}/".startswith(f"{old}/"):
                held.path = _told(new, held.path[len(old) :])


def _told(path: str | None, end: str) -> str | None:
    """A path with more behind it; None where that is longer than any that is reported."""
    return None if path is None or len(path) + len(end) > LONGEST_PATH else path + end


def _contradict(oflags: int, rights: int) -> bool:
    if oflags & abi.O_DIRECTORY:
        return bool(oflags & (abi.O_CREAT | abi.O_TRUNC))
    return bool(oflags & abi.O_TRUNC) and not rights & abi.RIGHT_FD_WRITE


def _host_flags(oflags: int, rights: int, fdflags: int) -> int:
    flags = _ALWAYS | _access(rights) | (os.O_APPEND if fdflags & abi.FD_APPEND else 0)
    for theirs, ours in _HOST_FLAGS:
        if oflags & theirs:
            flags |= ours
    return flags


def _access(rights: int) -> int:
    if not rights & abi.RIGHT_FD_WRITE:
        return os.O_RDONLY
    return os.O_RDWR if rights & abi.RIGHT_FD_READ else os.O_WRONLY


def _kept(rights: int) -> int:
    """All rights but those to read or to write that were not asked for."""
    asked = rights & (abi.RIGHT_FD_READ | abi.RIGHT_FD_WRITE)
    return abi.ALL_RIGHTS & ~(abi.RIGHT_FD_READ | abi.RIGHT_FD_WRITE) | asked


def _ends_with_dot(path: bytes) -> bool:
    """Whether a path names a folder from inside, where it is neither removed nor moved."""
    path = path.rstrip(b"/")
    return path == b"." or path.endswith(b"/.")


def _refuse_foreign(name: bytes) -> None:
    """A new name must be UTF-8, since reports and archives name it as text."""
    try:
        name.decode()
    except UnicodeDecodeError:
        raise Refusal(abi.EILSEQ) from None
