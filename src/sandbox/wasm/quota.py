"""How much one execution may put on the disk."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox.wasm.beneath import open_below

if TYPE_CHECKING:
    from collections.abc import Callable

# Each new file, folder or link costs the disk a node, so that empty files count too.
NODE_BYTES = 4096
# Folders are opened name by name from one above them; so many names down, from a nearer one, because
# a guest can nest them deeper than there are descriptors.
LONGEST_WAY = 64
_Pending = list[tuple[int, tuple[str, ...] | None]]  # an open folder, and a way from it; None to close it


@dataclass(frozen=True)
class DiskLimits:
    """The limits of a policy that concern the disk; None is no limit."""

    write_bytes: int | None = None
    workspace_bytes: int | None = None
    workspace_files: int | None = None


@dataclass
class Usage:
    """What a folder holds: bytes by apparent size, and files, folders and links together."""

    bytes: int = 0
    files: int = 0


def measure(root: str, keep_going: Callable[[], object] = lambda: None) -> Usage:
    """Add up a folder without following links; `keep_going` may raise to give up."""
    usage = Usage()
    top = _open_if_there(lambda: os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    pending: _Pending = [] if top is None else [(top, None), (top, (".",))]
    try:
        while pending:
            keep_going()
            base, way = pending.pop()
            if way is None:
                os.close(base)
            else:
                _add_folder(usage, pending, base, way)
    finally:
        for base, way in pending:
            if way is None:
                os.close(base)
    return usage


def _add_folder(usage: Usage, pending: _Pending, base: int, way: tuple[str, ...]) -> None:
    folder = _open_if_there(lambda: open_below(base, way))
    if folder is None:
        return
    if len(way) >= LONGEST_WAY:
        pending.append((folder, None))
        pending += [(folder, (name,)) for name in _count(usage, folder)]
        return
    try:
        pending += [(base, (*way, name)) for name in _count(usage, folder)]
    finally:
        os.close(folder)


def _open_if_there(open_it: Callable[[], int]) -> int | None:
    """A folder; None where it is gone meanwhile, or not ours to read."""
    try:
        return open_it()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):  # what cannot be measured is not empty
            raise
        return None


def _count(usage: Usage, folder: int) -> list[str]:
    """Add the entries of one open folder; the names of the folders in it."""
    below = []
    with os.scandir(folder) as entries:
        for entry in entries:
            usage.files += 1
            if entry.is_dir(follow_symlinks=False):
                below.append(entry.name)
            else:
                usage.bytes += _size(entry)
    return below


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:
        return 0  # gone meanwhile


class Quota:
    """Says no before the write that would pass a limit.

    The workspace is measured once, when a limit on it is set, and again when the running sum says
    that it is full, because overwritten and removed bytes are not tracked one by one.
    """

    def __init__(self, limits: DiskLimits, workspace: str, keep_going: Callable[[], object]) -> None:
        self._limits = limits
        self._workspace = workspace
        self._keep_going = keep_going
        self._written = 0
        self._measured: Usage | None = None
        self._watches = limits.workspace_bytes is not None or limits.workspace_files is not None
        self.exceeded = False

    def allows(self, *, size: int, nodes: int = 0, linked: int = 0, in_workspace: bool) -> bool:
        """Charge `size` bytes and `nodes` new files; False, and nothing charged, past a limit.

        `linked` bytes are on the disk already, and count for the workspace under one more name.
        """
        cost = size + nodes * NODE_BYTES
        if self._limits.write_bytes is not None and self._written + cost > self._limits.write_bytes:
            self.exceeded = True
            return False
        if in_workspace and self._watches and not self._fits(size + linked, nodes):
            self.exceeded = True
            return False
        self._written += cost
        return True

    def _fits(self, size: int, nodes: int) -> bool:
        usage = self._measured
        if usage is None or not self._within(usage, size, nodes):
            usage = self._measured = measure(self._workspace, self._keep_going)
        if not self._within(usage, size, nodes):
            return False
        usage.bytes += size
        usage.files += nodes
        return True

    def _within(self, usage: Usage, size: int, nodes: int) -> bool:
        most_bytes, most_files = self._limits.workspace_bytes, self._limits.workspace_files
        fits_bytes = size == 0 or most_bytes is None or usage.bytes + size <= most_bytes
        return fits_bytes and (nodes == 0 or most_files is None or usage.files + nodes <= most_files)
