"""Sessions on their way out: renamed away in one step, then removed at leisure."""

from __future__ import annotations

import errno
import os
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox import tree
from sandbox.sessions import locks
from sandbox.sessions.layout import IMAGES_FOLDER, STATE_FOLDER, is_passing, outgoing_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

# Leftovers are locked while they are removed; so many descriptors at a time.
SWEEP_BATCH = 64
YOUNGEST_UNUSED_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Leaving:
    """A session that has no name any more; `fd` holds its lock until `remove` is done."""

    fd: int
    name: str
    state_name: str | None


def weigh(session_id: str, root_fd: int, fd: int) -> int:
    """The bytes that a deletion frees: the files' sizes, metadata and saved state included.

    PermissionError where `take_away` and `remove` would fail half-way; touches nothing.
    """
    if not os.access(".", os.W_OK | os.X_OK, dir_fd=root_fd, effective_ids=True):
        raise PermissionError(errno.EACCES, "its parent folder cannot be written", session_id)
    return tree.measure(fd, to_remove=True).bytes + state_bytes(session_id, root_fd, to_remove=True)


def state_bytes(session_id: str, root_fd: int, *, to_remove: bool = False) -> int:
    """The bytes of a session's saved state; `to_remove` as for `tree.measure`."""
    with state_of(session_id, root_fd) as state_fd:
        return 0 if state_fd is None else tree.measure(state_fd, to_remove=to_remove).bytes


def delete(session_id: str, root_fd: int, fd: int) -> None:
    """Delete a session, whole or not at all; `fd` is its exclusive lock, and is taken over."""
    try:
        weigh(session_id, root_fd, fd)
        leaving = take_away(session_id, root_fd, fd)
    except BaseException:
        os.close(fd)
        raise
    remove(leaving, root_fd)


def take_away(session_id: str, root_fd: int, fd: int) -> Leaving:
    """Make a session disappear in one rename; `fd` is its exclusive lock, and is taken over."""
    name = outgoing_name()
    os.rename(session_id, name, src_dir_fd=root_fd, dst_dir_fd=root_fd)
    return Leaving(fd, name, _take_state_away(session_id, root_fd))


def remove(leaving: Leaving, root_fd: int) -> None:
    """Remove what was taken away, and end its lock."""
    tree.remove_open(leaving.name, root_fd, leaving.fd)
    _remove_state(leaving.state_name, root_fd)


def state_of(session_id: str, root_fd: int) -> AbstractContextManager[int | None]:
    """The folder of a session's saved state, open; None where it has none."""
    return _open_if_there(f"{STATE_FOLDER}/{session_id}", root_fd)


def discard_orphaned_state(session_id: str, root_fd: int) -> None:
    """Remove state that a killed deletion left, so that a new session of that id begins fresh."""
    _remove_state(_take_state_away(session_id, root_fd), root_fd)


def sweep(root_fd: int) -> int:
    """Remove what dead processes left under the root; returns how many folders went."""
    swept = _sweep_passing(root_fd)
    with _open_if_there(STATE_FOLDER, root_fd) as states_fd:
        if states_fd is not None:
            swept += _sweep_orphans(root_fd, states_fd) + _sweep_passing(states_fd)
            _sweep_images(states_fd)
    return swept


def _sweep_images(states_fd: int) -> None:
    """Remove the images that no saved state links to any more."""
    try:
        images_fd = tree.open_folder(IMAGES_FOLDER, states_fd)
    except FileNotFoundError:
        return
    with tree.closing_fd(images_fd), os.scandir(images_fd) as entries:
        for entry in entries:
            info = entry.stat(follow_symlinks=False)
            # A young one may be about to be linked to.
            if info.st_nlink == 1 and time.time() - info.st_mtime > YOUNGEST_UNUSED_SECONDS:
                os.unlink(entry.name, dir_fd=images_fd)


def _sweep_passing(parent_fd: int) -> int:
    swept = 0
    tried: set[str] = set()
    while batch := _lock_dead(parent_fd, tried):
        for name, fd in batch:
            with suppress(OSError):
                tree.remove_open(name, parent_fd, fd)
                swept += 1
    return swept


def _lock_dead(parent_fd: int, tried: set[str]) -> list[tuple[str, int]]:
    """The next leftovers that no living process holds, locked."""
    found: list[tuple[str, int]] = []
    # A folder in the making is locked by its maker before `placing` ends.
    with locks.placing(parent_fd):
        for name in _passing_names(parent_fd):
            if len(found) == SWEEP_BATCH:
                break
            if name in tried:
                continue
            tried.add(name)
            with suppress(OSError):
                fd = locks.try_exclusive(name, parent_fd)
                if fd is not None:
                    found.append((name, fd))
    return found


def _passing_names(parent_fd: int) -> list[str]:
    with os.scandir(parent_fd) as entries:
        return [e.name for e in entries if is_passing(e.name) and e.is_dir(follow_symlinks=False)]


def _sweep_orphans(root_fd: int, states_fd: int) -> int:
    swept = 0
    with os.scandir(states_fd) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".")]
    for name in names:
        # Under the lock, because a session's state takes its place just before the session does.
        with locks.placing(root_fd):
            if not tree.exists(name, root_fd):
                discard_orphaned_state(name, root_fd)
                swept += 1
    return swept


def _take_state_away(session_id: str, root_fd: int) -> str | None:
    name = outgoing_name()
    source, target = f"{STATE_FOLDER}/{session_id}", f"{STATE_FOLDER}/{name}"
    try:
        os.rename(source, target, src_dir_fd=root_fd, dst_dir_fd=root_fd)
    except FileNotFoundError:
        return None
    return name


def _remove_state(name: str | None, root_fd: int) -> None:
    """Remove state that was taken away, if there was any."""
    if name is None:
        return
    with _open_if_there(STATE_FOLDER, root_fd) as states_fd:
        if states_fd is not None:
            # A prune in another process may sweep it at the same time.
            with suppress(FileNotFoundError):
                tree.remove_tree(name, states_fd)


@contextmanager
def _open_if_there(name: str, dir_fd: int) -> Iterator[int | None]:
    try:
        fd = tree.open_folder(name, dir_fd)
    except FileNotFoundError:
        yield None
        return
    with tree.closing_fd(fd):
        yield fd
