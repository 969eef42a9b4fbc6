"""Files and folders carried between the host and a session."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox import tree
from sandbox.replacement import replacing
from sandbox.sessions.files import UNSEEN_PREFIX, OpenSession, Root, explaining, log_file, open_session
from sandbox.sessions.paths import SessionPath, split_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox.events import SandboxLogger
    from sandbox.wasm.names import HostOnlyNames

    Progress = Callable[[int], object]

# In folders of the host, where names are not ours alone.
COPYING_PREFIX = ".session-sandbox-copying-"


@dataclass(frozen=True)
class CopyResult:
    """What a copy did; `left_out` are symlinks, devices and names that the host keeps to itself."""

    files: list[str] = field(default_factory=list)
    bytes: int = 0
    left_out: list[str] = field(default_factory=list)


def copy_into_session(
    session_id: str,
    source: str | os.PathLike[str],
    relative_path: SessionPath | None = None,
    workspace_root: Root = None,
    *,
    overwrite: bool = True,
    progress: Progress | None = None,
    logger: SandboxLogger | None = None,
) -> CopyResult:
    """Copy a file, or a folder with what is in it, from the host; each file appears whole.

    Without a path it keeps the source's name. `progress` hears of bytes as they are copied.
    """
    path = Path(source).resolve().name if relative_path is None else relative_path
    split_path(path)
    with (
        tree.closing_fd(os.open(source, os.O_RDONLY | os.O_NONBLOCK)) as source_fd,
        open_session(session_id, workspace_root) as session,
        explaining(path),
    ):
        parts = split_path(path, session.hidden)
        copy = _Copy(session.fd, parts, UNSEEN_PREFIX, overwrite=overwrite, progress=progress)
        copy.take(source_fd, session.hidden)
    log_file(logger, session_id, "written", os.fspath(path), copy.bytes)
    return copy.result()


def copy_out_of_session(
    session_id: str,
    relative_path: SessionPath | None,
    destination: str | os.PathLike[str],
    workspace_root: Root = None,
    *,
    overwrite: bool = True,
    progress: Progress | None = None,
    logger: SandboxLogger | None = None,
) -> CopyResult:
    """Copy a file, or a folder with what is in it, to the host; None is the whole workspace.

    `destination` is the new file or folder itself; an existing folder is filled. Symlinks that a
    guest made are left out, so nothing but what lies in the session can come along.
    """
    target = Path(destination)
    target.parent.mkdir(parents=True, exist_ok=True)
    shown = "." if relative_path is None else os.fspath(relative_path)
    with (
        open_session(session_id, workspace_root) as session,
        tree.closing_fd(_open_source(session, relative_path)) as source_fd,
        tree.closing_fd(os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)) as parent_fd,
    ):
        copy = _Copy(parent_fd, (target.name,), COPYING_PREFIX, overwrite=overwrite, progress=progress)
        copy.take(source_fd, session.hidden)
    log_file(logger, session_id, "read", shown, copy.bytes)
    return copy.result()


class _Copy:
    """One copy into `parts` below a folder, by descriptor on both sides."""

    def __init__(
        self,
        root_fd: int,
        parts: tuple[str, ...],
        temporary: str,
        *,
        overwrite: bool,
        progress: Progress | None,
    ) -> None:
        self.root_fd, self.parts = root_fd, parts
        self.temporary, self.overwrite, self.progress = temporary, overwrite, progress
        self.files: list[str] = []
        self.left_out: list[str] = []
        self.bytes = 0

    def take(self, source_fd: int, hidden: HostOnlyNames) -> None:
        """Copy what `source_fd` is: a regular file or a folder."""
        if stat.S_ISDIR(os.fstat(source_fd).st_mode):
            self._folder(source_fd, hidden)
            return
        *folders, name = self.parts
        with tree.closing_fd(tree.descend(self.root_fd, folders, make=True)) as target_fd:
            self._file(source_fd, target_fd, name, (name,))

    def result(self) -> CopyResult:
        return CopyResult(sorted(self.files), self.bytes, sorted(self.left_out))

    def _folder(self, source_fd: int, hidden: HostOnlyNames) -> None:
        for folder in tree.walk(source_fd, skip=hidden.hide_name):
            self.left_out += ["/".join((*folder.parts, name)) for name in folder.links + folder.others]
            with tree.closing_fd(
                tree.descend(self.root_fd, (*self.parts, *folder.parts), make=True)
            ) as target_fd:
                self._files(folder, target_fd, hidden)

    def _files(self, folder: tree.Folder, target_fd: int, hidden: HostOnlyNames) -> None:
        for entry in folder.files:
            path = (*folder.parts, entry.name)
            if hidden.hide_name(entry.name):
                self.left_out.append("/".join(path))
                continue
            try:
                source_fd = tree.open_file(entry.name, folder.fd)
            except OSError:
                self.left_out.append("/".join(path))  # gone, or no file any more
                continue
            with tree.closing_fd(source_fd):
                self._file(source_fd, target_fd, entry.name, path)

    def _file(self, source_fd: int, target_fd: int, name: str, path: tuple[str, ...]) -> None:
        tree.require_regular(source_fd)
        with replacing(name, target_fd, self.temporary, overwrite=self.overwrite) as fd:
            self.bytes += tree.copy_bytes(source_fd, fd, self.progress)
        self.files.append("/".join(path))


def _open_source(session: OpenSession, path: SessionPath | None) -> int:
    """A descriptor of a file or folder of the session, or of the whole workspace."""
    if path is None:
        return os.dup(session.fd)
    with explaining(path):
        *folders, name = split_path(path, session.hidden)
        with tree.closing_fd(tree.descend(session.fd, folders)) as parent_fd:
            return os.open(name, tree.FILE_FLAGS, dir_fd=parent_fd)
