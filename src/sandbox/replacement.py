"""A new file that takes another's place in one step."""

from __future__ import annotations

import fcntl
import itertools
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from sandbox import tree

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["replacing"]

NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
# Whatever else stands at the name is not opened: a FIFO must not block, and no symlink is followed.
LEFTOVER_FLAGS = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


@contextmanager
def replacing(
    name: str, dir_fd: int, temporary: str, *, overwrite: bool = True, mode: int = 0o666
) -> Iterator[int]:
    """A new file to write, which takes the place of `name` in one step when the block ends.

    Until then it is called `temporary` and a number, and is locked. What killed processes left under
    such names in this folder goes first. A symlink called `name` is replaced, not followed. Nothing
    is left where the block raises.
    """
    written, fd = _begin(temporary, dir_fd, mode)
    with tree.closing_fd(fd):
        try:
            yield fd
            if overwrite:
                os.replace(written, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
                return
            os.link(written, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd, follow_symlinks=False)
        except BaseException:
            _unlink(written, dir_fd)
            raise
        _unlink(written, dir_fd)


def _begin(temporary: str, dir_fd: int, mode: int) -> tuple[str, int]:
    """The first free number and the new file; its neighbours are looked at, so that no folder is read."""
    numbers = itertools.count()
    while True:
        name = f"{temporary}{next(numbers)}"
        fd = _claim(name, dir_fd, mode)
        if fd is not None:
            break
        _remove_dead(name, dir_fd)
    while _remove_dead(f"{temporary}{next(numbers)}", dir_fd):
        pass
    return name, fd


def _claim(name: str, dir_fd: int, mode: int) -> int | None:
    """A new file, locked; None where the name is taken."""
    try:
        fd = os.open(name, NEW_FILE_FLAGS, mode, dir_fd=dir_fd)
    except FileExistsError:
        return None
    # Another writer may take it for a leftover before it is locked.
    if _lock(fd) is not False and tree.is_in_place(fd, name, dir_fd):
        return fd
    os.close(fd)
    return None


def _remove_dead(name: str, dir_fd: int) -> bool:
    """Remove a file that nobody writes any more; False where there is none to remove."""
    try:
        fd = os.open(name, LEFTOVER_FLAGS, dir_fd=dir_fd)
    except OSError:
        return False
    with tree.closing_fd(fd):
        if _lock(fd) and tree.is_in_place(fd, name, dir_fd):
            with suppress(OSError):
                os.unlink(name, dir_fd=dir_fd)
                return True
    return False


def _lock(fd: int) -> bool | None:
    """Whether the lock was free; None on a file system without locks, where nothing is a leftover."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _unlink(name: str, dir_fd: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=dir_fd)
