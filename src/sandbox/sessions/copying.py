"""Files and folders carried between the host and a session."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import closing
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
        parts = (target.name,) if target.name else ()
        copy = _Copy(parent_fd, parts, COPYING_PREFIX, overwrite=overwrite, progress=progress)
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
        if not self.parts:
            raise IsADirectoryError(errno.EISDIR, "it is a folder; name the file in it")
        *folders, name = self.parts
        with tree.closing_fd(tree.descend(self.root_fd, folders, make=True)) as target_fd:
            self._file(source_fd, target_fd, name, (name,))

    def result(self) -> CopyResult:
        return CopyResult(sorted(self.files), self.bytes, sorted(self.left_out))

    def _folder(self, source_fd: int, hidden: HostOnlyNames) -> None:
        with (
            tree.closing_fd(tree.descend(self.root_fd, self.parts, make=True)) as top_fd,
            closing(_Followed(top_fd)) as target,
        ):
            for folder in tree.walk(source_fd, skip=hidden.hides_name):
                self.left_out += ["/".join((*folder.parts, name)) for name in folder.links + folder.others]
                self._files(folder, target.go_to(folder.parts), hidden)

    def _files(self, folder: tree.Folder, target_fd: int, hidden: HostOnlyNames) -> None:
        for entry in folder.files:
            path = (*folder.parts, entry.name)
            if hidden.hides_name(entry.name):
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


class _Followed:
    """The folders of a walk, met again below another folder and made where they are missing.

    Holds one descriptor whatever the depth, and takes one step for each of the walk's.
    """

    def __init__(self, top_fd: int) -> None:
        self._top_fd = top_fd
        self._fd = os.dup(top_fd)
        self._names: list[str] = []
        self._above: list[tuple[int, int]] = []

    def go_to(self, parts: tuple[str, ...]) -> int:
        """A descriptor of the next folder of the walk, open until the next call."""
        while self._names and len(self._names) >= len(parts):
            self._go_up()
        if parts:
            above = tree.identity(self._fd)
            self._move(tree.descend(self._fd, parts[-1:], make=True))
            self._names.append(parts[-1])
            self._above.append(above)
        return self._fd

    def close(self) -> None:
        os.close(self._fd)

    def _go_up(self) -> None:
        self._names.pop()
        parent = tree.open_parent(self._fd, self._above.pop())
        self._move(tree.descend(self._top_fd, self._names, make=True) if parent is None else parent)

    def _move(self, fd: int) -> None:
        os.close(self._fd)
        self._fd = fd


def _open_source(session: OpenSession, path: SessionPath | None) -> int:
    """A descriptor of a file or folder of the session, or of the whole workspace."""
    if path is None:
        return os.dup(session.fd)
    with explaining(path):
        *folders, name = split_path(path, session.hidden)
        with tree.closing_fd(tree.descend(session.fd, folders)) as parent_fd:
            return os.open(name, tree.FILE_FLAGS, dir_fd=parent_fd)
