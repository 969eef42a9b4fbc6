"""The files of a session, read and written by the host while a guest may be running.

The caller is trusted, the contents are not: paths are followed one component at a time by
descriptor and never through a symlink, so nothing that a guest plants, whenever it does, leads a
call out of the workspace.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox import tree
from sandbox.errors import InvalidSessionPath
from sandbox.events import SandboxLogger
from sandbox.replacement import replacing
from sandbox.sessions import metadata, removal
from sandbox.sessions.creation import open_root
from sandbox.sessions.layout import METADATA_NAME, check_session_id, root_path
from sandbox.sessions.locks import finding
from sandbox.sessions.paths import compile_pattern, split_path
from sandbox.wasm.names import HostOnlyNames

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandbox.sessions.paths import SessionPath

Root = str | os.PathLike[str] | None

# Files that are being written; the guest sees no name that begins like this.
UNSEEN_PREFIX = f"{METADATA_NAME}.writing-"


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session's folder, open, with the names that the host keeps to itself."""

    session_id: str
    fd: int
    host_only: tuple[str, ...]
    hidden: HostOnlyNames


@dataclass(frozen=True, slots=True)
class SessionUsage:
    """What a session takes: `bytes` is what its deletion frees, of which `state_bytes` is saved state.

    `files` counts what `list_session_files` lists.
    """

    bytes: int
    files: int
    state_bytes: int = 0


def list_session_files(
    session_id: str,
    workspace_root: Root = None,
    pattern: str | None = None,
    logger: SandboxLogger | None = None,
) -> list[str]:
    """The paths of the regular files in a session, sorted; folders and symlinks are left out.

    `pattern` is a glob that may begin at any depth: `*.csv`, `data/*.csv`, `data/**/*.csv`.
    """
    wanted = None if pattern is None else compile_pattern(pattern)
    with open_session(session_id, workspace_root) as session:
        paths = sorted("/".join(parts) for parts in _visible_files(session) if not wanted or wanted(parts))
    log_file(logger, session_id, "listed", pattern or "**", len(paths))
    return paths


def read_session_file(
    session_id: str,
    relative_path: SessionPath,
    workspace_root: Root = None,
    logger: SandboxLogger | None = None,
) -> bytes:
    """The contents of one file."""
    with open_session_file(session_id, relative_path, workspace_root, logger) as file:
        return file.readall()


def open_session_file(
    session_id: str,
    relative_path: SessionPath,
    workspace_root: Root = None,
    logger: SandboxLogger | None = None,
) -> io.FileIO:
    """One file, open to be read piece by piece: it may be larger than memory."""
    with locating(session_id, relative_path, workspace_root) as (parent_fd, name):
        file = io.FileIO(tree.open_file(name, parent_fd))
    size = os.fstat(file.fileno()).st_size
    log_file(logger, session_id, "read", os.fspath(relative_path), size)
    return file


def write_session_file(
    session_id: str,
    relative_path: SessionPath,
    data: bytes | str,
    workspace_root: Root = None,
    overwrite: bool = True,  # noqa: FBT001, FBT002 - the published signature
    logger: SandboxLogger | None = None,
) -> None:
    """Write one file, text as UTF-8; makes its folders, and replaces what was there in one step."""
    content = data.encode() if isinstance(data, str) else bytes(data)
    with (
        locating(session_id, relative_path, workspace_root, make=True) as (parent_fd, name),
        replacing(name, parent_fd, UNSEEN_PREFIX, overwrite=overwrite) as fd,
    ):
        tree.write_all(fd, content)
    log_file(logger, session_id, "written", os.fspath(relative_path), len(content))


def delete_session_path(
    session_id: str,
    relative_path: SessionPath,
    workspace_root: Root = None,
    recursive: bool = False,  # noqa: FBT001, FBT002 - the published signature
    logger: SandboxLogger | None = None,
) -> None:
    """Remove one file or symlink, or a folder with everything in it where `recursive` says so."""
    with locating(session_id, relative_path, workspace_root) as (parent_fd, name):
        size = _delete(name, parent_fd, recursive=recursive)
    log_file(logger, session_id, "deleted", os.fspath(relative_path), size)


def session_usage(session_id: str, workspace_root: Root = None) -> SessionUsage:
    """The bytes and files of a session; walks it, so its cost follows the number of files."""
    with open_session(session_id, workspace_root) as session, open_root(root_path(workspace_root)) as root_fd:
        files = sum(1 for _ in _visible_files(session))
        total = tree.measure(session.fd).bytes
        state = removal.state_bytes(session_id, root_fd)
    return SessionUsage(bytes=total + state, files=files, state_bytes=state)


@contextmanager
def open_session(session_id: str, workspace_root: Root) -> Iterator[OpenSession]:
    """The folder of a session that exists; FileNotFoundError where there is none."""
    folder = root_path(workspace_root) / check_session_id(session_id)
    with finding(folder):
        fd = tree.open_folder(folder)
    with tree.closing_fd(fd):
        host_only = metadata.read_host_only(fd)
        yield OpenSession(session_id, fd, host_only, HostOnlyNames(host_only))


@contextmanager
def locating(
    session_id: str, path: SessionPath, workspace_root: Root, *, make: bool = False
) -> Iterator[tuple[int, str]]:
    """The folder that holds `path`, open, and the name in it; errors in the block speak of `path`."""
    split_path(path)  # a bad path is refused before the disk is touched
    with open_session(session_id, workspace_root) as session, explaining(path):
        *folders, name = split_path(path, session.hidden)
        with tree.closing_fd(tree.descend(session.fd, folders, make=make)) as parent_fd:
            yield parent_fd, name


@contextmanager
def explaining(path: SessionPath) -> Iterator[None]:
    """Turn what the system says of a path into the errors of this package."""
    shown = os.fspath(path)
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "the session has no such file", shown) from None
    except FileExistsError:
        raise FileExistsError(errno.EEXIST, "the session has that file already", shown) from None
    except IsADirectoryError:
        raise IsADirectoryError(errno.EISDIR, "it is a folder", shown) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InvalidSessionPath(path, "it leads through a symlink") from None
        if error.errno in {errno.EINVAL, errno.ENXIO}:
            raise InvalidSessionPath(path, "it is neither a file nor a folder") from None
        raise


def _visible_files(session: OpenSession) -> Iterator[tuple[str, ...]]:
    for folder in tree.walk(session.fd, skip=session.hidden.hides_name):
        for entry in folder.files:
            if not session.hidden.hides_name(entry.name):
                yield (*folder.parts, entry.name)


def _delete(name: str, parent_fd: int, *, recursive: bool) -> int:
    status = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=parent_fd)
        return status.st_size
    if not recursive:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    with tree.closing_fd(tree.open_folder(name, parent_fd)) as fd:
        size = tree.measure(fd).bytes
    tree.remove_tree(name, parent_fd)
    return size


def log_file(logger: SandboxLogger | None, session_id: str, what: str, path: str, size: int) -> None:
    """Tell of one file or folder; `what` is read, written, deleted or listed."""
    (logger or SandboxLogger()).info(f"session.file.{what}", session_id=session_id, path=path, size=size)
