"""Copies of whole workspaces, as they are."""

from __future__ import annotations

import fcntl
import os
import stat
from typing import TYPE_CHECKING

from sandbox import tree
from sandbox.sessions.layout import METADATA_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

_FICLONE = 0x40049409  # share the blocks until one side writes, where the file system can


def clone_contents(source_fd: int, target_fd: int) -> None:
    """Copy everything in a workspace but its metadata; symlinks stay symlinks and are not followed.

    Files share their blocks where the file system can do that, and never their writes.
    """
    for folder in tree.walk(source_fd):
        with tree.closing_fd(tree.descend(target_fd, folder.parts, make=True)) as into_fd:
            os.fchmod(into_fd, stat.S_IMODE(os.fstat(folder.fd).st_mode) | stat.S_IRWXU)
            for name in _visible(folder, [entry.name for entry in folder.files]):
                _clone_file(name, folder.fd, into_fd)
            for name in _visible(folder, folder.links):
                os.symlink(os.readlink(name, dir_fd=folder.fd), name, dir_fd=into_fd)


def _visible(folder: tree.Folder, names: list[str]) -> Iterator[str]:
    """All names, less the metadata and its temporary files at the top."""
    return (name for name in names if folder.parts or not name.startswith(METADATA_NAME))


def _clone_file(name: str, from_fd: int, into_fd: int) -> None:
    try:
        source = tree.open_file(name, from_fd)
    except OSError:
        return  # gone meanwhile, or no file any more
    with tree.closing_fd(source):
        info = os.fstat(source)
        mode = stat.S_IMODE(info.st_mode) | stat.S_IRUSR | stat.S_IWUSR
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with tree.closing_fd(os.open(name, flags, mode, dir_fd=into_fd)) as target:
            try:
                fcntl.ioctl(target, _FICLONE, source)
            except OSError:
                tree.copy_bytes(source, target)
            os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
