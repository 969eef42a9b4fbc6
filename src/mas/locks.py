"""Locks that the kernel releases when their holder dies."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["lock_file", "lock_folder", "try_lock_folder"]


@contextmanager
def lock_file(path: Path) -> Iterator[int]:
    """Hold a file alone among all threads and processes, making it if needed; gives its descriptor."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_still(path, descriptor):
                yield descriptor
                return
        finally:
            os.close(descriptor)


@contextmanager
def lock_folder(path: Path) -> Iterator[None]:
    """Hold a folder alone; FileNotFoundError when it is gone, also when it goes while waiting."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if not _is_still(path, descriptor):
            raise FileNotFoundError(path)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def try_lock_folder(path: Path) -> Iterator[bool]:
    """Hold a folder alone if nobody else does and it exists; says whether it is held."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        yield _flock_now(descriptor) and _is_still(path, descriptor)
    finally:
        os.close(descriptor)


def _flock_now(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether `path` names what was locked: it may have been removed, and made anew, meanwhile."""
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    held = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)
