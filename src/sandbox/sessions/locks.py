"""Who may use a session at this moment, across threads and processes.

The lock is `flock` on the session's folder itself: shared while code executes, exclusive for a
deletion. It needs no file of its own, follows the folder through renames and ends with the
process. A folder on its way in or out is locked exclusively by the process that moves it, so a
lock that can be had says that the process is dead.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sandbox import tree
from sandbox.errors import SessionInUse, WorkspaceUnusable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A dry run, a listing or another deletion holds the exclusive lock for an instant.
DELETION_GRACE_SECONDS = 0.05
DELETION_POLL_SECONDS = 0.002


@contextmanager
def using(folder: Path, *, exclusive: bool = False) -> Iterator[int]:
    """Hold a session's lock while code executes in it; waits for a stronger lock to end.

    Yields a descriptor of the folder. A session that was deleted is WorkspaceUnusable.
    """
    try:
        fd = tree.open_folder(folder)
    except OSError as error:
        raise WorkspaceUnusable(folder, _why_not(error)) from None
    with tree.closing_fd(fd):
        fcntl.flock(fd, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        if not tree.is_in_place(fd, folder):
            raise WorkspaceUnusable(folder, _DELETED)
        yield fd


def try_exclusive(name: str, root_fd: int) -> int | None:
    """A descriptor that locks the folder exclusively; None where it is in use. Never waits.

    FileNotFoundError where the folder is gone, or goes before the lock is held.
    """
    fd = tree.open_folder(name, root_fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    if tree.is_in_place(fd, name, root_fd):
        return fd
    os.close(fd)
    raise FileNotFoundError(name)


def is_free(fd: int) -> bool:
    """Whether nobody uses the session at this instant; takes the lock and gives it back."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True


def exclusive_for_deletion(session_id: str, root_fd: int) -> int:
    """The exclusive lock of a session that is to go; SessionInUse where code executes in it."""
    deadline = time.monotonic() + DELETION_GRACE_SECONDS
    while (fd := try_exclusive(session_id, root_fd)) is None:
        if time.monotonic() > deadline:
            raise SessionInUse(session_id)
        time.sleep(DELETION_POLL_SECONDS)
    return fd


@contextmanager
def finding(folder: Path) -> Iterator[None]:
    """Turn what the system says of a session's folder into the errors of this package."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "there is no such session", str(folder)) from None
    except OSError as error:
        raise WorkspaceUnusable(folder, str(error.strerror)) from None


@contextmanager
def placing(root_fd: int) -> Iterator[None]:
    """Serialize the few steps in which folders get or lose their place under the root."""
    # A descriptor of its own: flock belongs to the open file, which other threads share.
    with tree.closing_fd(os.open(".", tree.FOLDER_FLAGS, dir_fd=root_fd)) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield


_DELETED = "the session was deleted; get_session_sandbox makes a fresh one"


def _why_not(error: OSError) -> str:
    return _DELETED if isinstance(error, FileNotFoundError) else str(error.strerror)
