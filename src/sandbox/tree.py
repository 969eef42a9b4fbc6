"""Folders whose contents nobody vouches for, walked by descriptor and never through a symlink."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# A FIFO that a file was swapped for must not block the open.
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY

# A guest that runs may add files to a folder while it is being removed.
REMOVAL_ROUNDS = 20
COPY_CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Folder:
    """One folder met on a walk; `fd` is open until the walk goes on."""

    parts: tuple[str, ...]
    fd: int
    files: list[os.DirEntry[str]]
    links: list[str]
    others: list[str]


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tree holds: bytes and number of its regular files."""

    bytes: int
    files: int


class closing_fd:  # noqa: N801 - used like contextlib.closing; a class, because it is met a lot
    """Close a descriptor at the end of the block."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *exc: object) -> None:
        os.close(self._fd)


def open_folder(name: str | os.PathLike[str], dir_fd: int | None = None) -> int:
    """A descriptor of a folder; a symlink in its place is ELOOP."""
    try:
        return os.open(name, FOLDER_FLAGS, dir_fd=dir_fd)
    except NotADirectoryError:
        # The kernel answers ENOTDIR for a symlink too when O_DIRECTORY is asked for. What is no
        # file by now was one: somebody swaps them.
        if stat.S_ISREG(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
            raise
        raise _link_in_the_way(name) from None


def open_file(name: str, dir_fd: int) -> int:
    """A descriptor of a regular file; a folder is EISDIR, anything else ELOOP or EINVAL."""
    fd = os.open(name, FILE_FLAGS, dir_fd=dir_fd)
    try:
        require_regular(fd)
    except OSError:
        os.close(fd)
        raise
    return fd


def require_regular(fd: int) -> None:
    """EISDIR where the descriptor is of a folder, EINVAL where it is of no regular file."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file")


def descend(fd: int, parts: Sequence[str], *, make: bool = False) -> int:
    """A descriptor of the folder `parts` below `fd`, one component at a time."""
    here = os.dup(fd)
    for part in parts:
        try:
            below = _open_or_make(part, here) if make else open_folder(part, here)
        finally:
            os.close(here)
        here = below
    return here


def open_parent(fd: int, expected: tuple[int, int]) -> int | None:
    """A descriptor of the folder above; None where that is not the expected one, because `fd` was moved."""
    parent = os.open("..", FOLDER_FLAGS, dir_fd=fd)
    if identity(parent) == expected:
        return parent
    os.close(parent)
    return None


def identity(fd: int) -> tuple[int, int]:
    """What tells an open folder from every other."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def exists(name: str, dir_fd: int) -> bool:
    """Whether there is anything of that name, a dangling symlink included."""
    try:
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def is_in_place(fd: int, name: str | os.PathLike[str], dir_fd: int | None = None) -> bool:
    """Whether what is open is still what has that name: it may go while one waits for its lock."""
    try:
        there = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(fd))


def walk(
    root_fd: int,
    *,
    skip: Callable[[str], bool] | None = None,
    leave: Callable[[int, str], object] | None = None,
) -> Iterator[Folder]:
    """Each folder of a tree, parents first; holds one descriptor whatever the depth.

    Folders whose name `skip` says yes to are not entered. `leave(parent_fd, name)` is called when
    everything below a folder has been met. A folder that goes away or is moved while the walk is
    in it ends that branch and no other.
    """
    descent = _Descent(root_fd)
    try:
        yield descent.read()
        while True:
            name = descent.next_below()
            if name is not None:
                if not (skip and skip(name)) and descent.enter(name):
                    yield descent.read()
            elif (left := descent.go_up()) is None:
                return
            elif leave is not None and descent.fd is not None:
                leave(descent.fd, left)
    finally:
        descent.close()


def measure(fd: int, *, to_remove: bool = False) -> Usage:
    """The bytes and files below a folder; links and other things count as nothing.

    `to_remove` raises PermissionError where this process may not empty the tree.
    """
    to_remove = to_remove and os.geteuid() != 0
    size = count = 0
    for folder in walk(fd):
        if to_remove:
            _refuse_unremovable(folder.fd, folder.parts)
        for entry in folder.files:
            try:
                size += entry.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                continue
            count += 1
    return Usage(size, count)


def remove_contents(fd: int) -> None:
    """Empty a folder, deletion going through no symlink."""
    for _ in range(REMOVAL_ROUNDS):
        _empty_once(fd)
        if not os.listdir(fd):
            return
    raise OSError(errno.ENOTEMPTY, "files keep appearing in it")


def remove_open(name: str, dir_fd: int, fd: int) -> None:
    """Remove a folder that is open, closing it; nothing happens where somebody else is faster."""
    for _ in range(REMOVAL_ROUNDS):
        with closing_fd(fd):
            _empty_once(fd)
        # Closed first: removing a folder that is open costs ext4 several times as much.
        try:
            os.rmdir(name, dir_fd=dir_fd)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            fd = open_folder(name, dir_fd)
        else:
            return
    os.close(fd)
    raise OSError(errno.ENOTEMPTY, "files keep appearing in it", name)


def remove_tree(name: str, dir_fd: int) -> None:
    """Remove a folder and everything in it."""
    with closing_fd(open_folder(name, dir_fd)) as fd:
        remove_contents(fd)
    os.rmdir(name, dir_fd=dir_fd)


def copy_bytes(source_fd: int, target_fd: int, progress: Callable[[int], object] | None = None) -> int:
    """Copy what is left of one open file to another; `progress` hears of each chunk's bytes."""
    total = 0
    while chunk := os.read(source_fd, COPY_CHUNK_BYTES):
        write_all(target_fd, chunk)
        total += len(chunk)
        if progress is not None:
            progress(len(chunk))
    return total


def write_all(fd: int, data: bytes) -> None:
    """Write every byte, however often the kernel takes less."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _link_in_the_way(name: str | os.PathLike[str]) -> OSError:
    return OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(name))


def _open_or_make(name: str, dir_fd: int) -> int:
    try:
        return open_folder(name, dir_fd)
    except FileNotFoundError:
        try:
            os.mkdir(name, dir_fd=dir_fd)
        except FileExistsError:
            pass  # made by somebody else in between; opening it says what it is
        return open_folder(name, dir_fd)


class _Descent:
    """A place in a tree; going up is checked, because a folder may be moved meanwhile."""

    def __init__(self, root_fd: int) -> None:
        self.root_fd = root_fd
        self.fd: int | None = os.dup(root_fd)
        self.names: list[str] = []
        self.identities = [identity(self.fd)]
        self.pending: list[list[str]] = []

    def read(self) -> Folder:
        fd = self.fd
        assert fd is not None, "read() follows a successful enter()"  # noqa: S101 - narrows the type
        folder = Folder(tuple(self.names), fd, [], [], [])
        self.pending.append(_sort_entries(fd, folder))
        return folder

    def next_below(self) -> str | None:
        return self.pending[-1].pop() if self.pending[-1] and self.fd is not None else None

    def enter(self, name: str) -> bool:
        child = _open_if_there(name, self.fd)
        if child is None:
            return False
        self.close()
        self.fd = child
        self.names.append(name)
        self.identities.append(identity(child))
        return True

    def go_up(self) -> str | None:
        """The name of the folder that was left; None at the top."""
        self.pending.pop()
        self.identities.pop()
        if not self.pending:
            return None
        name = self.names.pop()
        parent = self._parent()
        self.close()
        self.fd = parent
        return name

    def _parent(self) -> int | None:
        # ".." of a folder that was moved leads elsewhere, possibly out of the tree.
        parent = None if self.fd is None else open_parent(self.fd, self.identities[-1])
        try:
            return descend(self.root_fd, self.names) if parent is None else parent
        except OSError:
            return None

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def _open_if_there(name: str, dir_fd: int | None) -> int | None:
    try:
        return os.open(name, FOLDER_FLAGS, dir_fd=dir_fd)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise


def _sort_entries(fd: int, folder: Folder) -> list[str]:
    """Put a folder's entries where they belong; the names of the folders below are returned."""
    below: list[str] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                folder.files.append(entry)
            elif entry.is_dir(follow_symlinks=False):
                below.append(entry.name)
            elif entry.is_symlink():
                folder.links.append(entry.name)
            else:
                folder.others.append(entry.name)
    return below


def _refuse_unremovable(fd: int, parts: tuple[str, ...]) -> None:
    if not os.access(".", os.W_OK | os.X_OK, dir_fd=fd, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/".join(parts) or ".")


def _empty_once(fd: int) -> None:
    """Remove what is in a folder at this moment."""
    with os.scandir(fd) as entries:
        found = list(entries)
    has_folders = False
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            has_folders = True
        else:
            _unlink(entry.name, fd)
    if has_folders:
        for folder in walk(fd, leave=_remove_folder):
            for name in (*(entry.name for entry in folder.files), *folder.links, *folder.others):
                _unlink(name, folder.fd)


def _remove_folder(parent_fd: int, name: str) -> None:
    try:
        os.rmdir(name, dir_fd=parent_fd)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.ENOTDIR}:
            raise


def _unlink(name: str, dir_fd: int) -> None:
    try:
        os.unlink(name, dir_fd=dir_fd)
    except (FileNotFoundError, IsADirectoryError):
        pass  # gone, or swapped for a folder: the next round meets it
