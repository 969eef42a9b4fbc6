"""Sessions put away in files, one `.tar.zst` each, and brought back."""

from __future__ import annotations

import errno
import json
import os
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandbox import tree
from sandbox.errors import SessionInUse
from sandbox.events import SandboxLogger
from sandbox.replacement import replacing
from sandbox.sessions import checkpoints, creation, locks, metadata, removal, tarball
from sandbox.sessions.layout import FOLDER_MODE, check_session_id, root_path
from sandbox.sessions.prune import run_prune
from sandbox.sessions.residents import live_sessions
from sandbox.sessions.retention import RetentionPolicy, check_hours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sandbox.sessions.files import Root

FORMAT = 1
SUFFIX = ".tar.zst"
FILE_MODE = 0o600
ARCHIVING_PREFIX = ".session-sandbox-archiving-"
RELEASE = "stop what holds it, or let it go with hold_session(session_id, held=False)"
DEFAULT_LIMITS = tarball.Limits(max_bytes=8 * 1024**3, max_files=500_000)


@dataclass(frozen=True)
class ArchiveResult:
    """What was put away; in a dry run, what would be. `left_out` are paths that no archive keeps."""

    archives: dict[str, Path] = field(default_factory=dict)
    skipped_sessions: list[str] = field(default_factory=list)
    archived_bytes: int = 0
    errors: dict[str, str] = field(default_factory=dict)
    dry_run: bool = False
    left_out: dict[str, list[str]] = field(default_factory=dict)


def archive_sessions(
    older_than_hours: float,
    archive_path: str | os.PathLike[str],
    workspace_root: Root = None,
    dry_run: bool = False,  # noqa: FBT001, FBT002 - as prune_sessions
    logger: SandboxLogger | None = None,
    *,
    progress: Callable[[int, int], object] | None = None,
) -> ArchiveResult:
    """Prune sessions as `prune_sessions` does, each one archived in the folder first.

    A session goes only when its archive is on disk; one that cannot be archived stays.
    """
    root, folder = root_path(workspace_root), Path(archive_path)
    log = logger or SandboxLogger()
    left_out: dict[str, list[str]] = {}

    def archive(session_id: str, root_fd: int, fd: int) -> None:
        with _settled(session_id, root, fd):
            left_out[session_id] = _write(session_id, root_fd, fd, folder, log)

    result = run_prune(
        RetentionPolicy(max_age_hours=check_hours(older_than_hours)),
        root,
        log,
        dry_run=dry_run,
        before=archive,
        progress=progress,
    )
    return ArchiveResult(
        archives={session_id: folder / f"{session_id}{SUFFIX}" for session_id in result.deleted_sessions},
        skipped_sessions=result.skipped_sessions,
        archived_bytes=result.reclaimed_bytes,
        errors=result.errors,
        dry_run=dry_run,
        left_out={session_id: paths for session_id, paths in left_out.items() if paths},
    )


def archive_session(
    session_id: str,
    archive_path: str | os.PathLike[str],
    workspace_root: Root = None,
    *,
    keep: bool = False,
    logger: SandboxLogger | None = None,
) -> Path:
    """Put one session away, of whatever age, in a folder; `keep` leaves the session where it is.

    SessionInUse where code executes in it, and without `keep` also where it is held.
    """
    check_session_id(session_id)
    root, folder = root_path(workspace_root), Path(archive_path)
    log = logger or SandboxLogger()
    with creation.open_root(root) as root_fd:
        with locks.finding(root / session_id):
            fd = locks.exclusive_for_deletion(session_id, root_fd)
        with ExitStack() as held:
            held.callback(os.close, fd)
            if not keep and _is_held(fd, session_id):
                raise SessionInUse(session_id, remedy=RELEASE)
            with _settled(session_id, root, fd):
                _write(session_id, root_fd, fd, folder, log)
            if keep:
                return folder / f"{session_id}{SUFFIX}"
            held.pop_all()
        removal.delete(session_id, root_fd, fd)
    log.info("session.deleted", session_id=session_id)
    return folder / f"{session_id}{SUFFIX}"


def restore_session(
    archive: str | os.PathLike[str],
    workspace_root: Root = None,
    *,
    max_bytes: int = DEFAULT_LIMITS.max_bytes,
    max_files: int = DEFAULT_LIMITS.max_files,
    logger: SandboxLogger | None = None,
) -> str:
    """Bring a session back from its archive, whole or not at all; returns its id.

    The archive is not trusted: whatever leads out of the session, or past the limits, is
    ArchiveRejected. FileExistsError where the session exists. It counts as used now.
    """
    path, root = Path(archive), root_path(workspace_root)
    limits = tarball.Limits(max_bytes, max_files)
    with tarball.decompressing(path) as stream:
        creation.make_root(root)
        with creation.open_root(root) as root_fd:
            session_id = _unpack(tarball.Reader(path, stream, limits), root_fd)
    log = logger or SandboxLogger()
    log.info("session.restored", session_id=session_id, archive=str(path))
    return session_id


@contextmanager
def _settled(session_id: str, root: Path, fd: int) -> Iterator[None]:
    """Has everything of a session on disk and whole: turns may be in memory alone for a moment."""
    with live_sessions.get(root.absolute(), session_id).settled_state():
        checkpoints.recover(root, session_id, fd)
        yield


def _is_held(fd: int, session_id: str) -> bool:
    try:
        found = metadata.read(fd, session_id)
    except ValueError:
        return False  # corrupt metadata hold nothing, for a prune either
    return found is not None and found.held


def _write(session_id: str, root_fd: int, fd: int, folder: Path, logger: SandboxLogger) -> list[str]:
    """Write the archive of a locked session; returns what was left out of it."""
    folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    target = folder / f"{session_id}{SUFFIX}"
    with tree.closing_fd(os.open(folder, os.O_RDONLY | os.O_DIRECTORY)) as folder_fd:
        with replacing(target.name, folder_fd, ARCHIVING_PREFIX, mode=FILE_MODE) as out:
            left_out = _write_to(out, session_id, root_fd, fd)
            os.fsync(out)  # the session is deleted next
        os.fsync(folder_fd)
    logger.info("session.archived", session_id=session_id, archive=str(target), left_out_count=len(left_out))
    return left_out


def _write_to(out: int, session_id: str, root_fd: int, fd: int) -> list[str]:
    manifest = {"format": FORMAT, "session_id": session_id, "archived_at": _now()}
    # Closed in any case: tarfile closes what is left open later, and prints that it cannot.
    with tarball.compressing(out) as stream, closing(tarball.Writer(stream)) as writer:
        writer.add_manifest(json.dumps(manifest).encode())
        writer.add_tree(tarball.WORKSPACE, fd)
        with removal.state_of(session_id, root_fd) as state_fd:
            if state_fd is not None:
                writer.add_tree(tarball.STATE, state_fd)
    return writer.left_out


def _unpack(reader: tarball.Reader, root_fd: int) -> str:
    with ExitStack() as held:
        entries = iter(reader)
        session_id = _read_manifest(reader, next(entries, None))
        creation.refuse_existing(session_id, root_fd)
        name, fd = held.enter_context(creation.incoming(root_fd))
        unpacking = _Unpacking(reader, fd, root_fd, held)
        for entry in entries:
            unpacking.take(entry)
        _accept_metadata(reader, fd, session_id)
        creation.place(name, session_id, root_fd, state_name=unpacking.state_name)
    return session_id


def _read_manifest(reader: tarball.Reader, entry: tarball.Entry | None) -> str:
    if entry is None or entry.parts != (tarball.MANIFEST,) or entry.size > tarball.MAX_MANIFEST_BYTES:
        raise reader.rejected(f"it does not begin with {tarball.MANIFEST}")
    try:
        manifest: Any = json.loads(reader.read())
        if manifest["format"] != FORMAT:
            raise reader.rejected(f"its format is {manifest['format']!r}, and this version reads {FORMAT}")
        return check_session_id(manifest["session_id"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise reader.rejected(f"its {tarball.MANIFEST} is not valid: {error}") from None


def _accept_metadata(reader: tarball.Reader, fd: int, session_id: str) -> None:
    try:
        # Used now: otherwise the next prune takes it away again. Whoever held it does not hold this one.
        metadata.update(fd, session_id, {"held": False} if _is_held(fd, session_id) else {})
    except (ValueError, OSError) as error:
        raise reader.rejected(f"its metadata is not valid: {error}") from None


class _Unpacking:
    """Puts entries where they belong below two fresh folders, following nothing."""

    def __init__(self, reader: tarball.Reader, fd: int, root_fd: int, held: ExitStack) -> None:
        self._reader, self._root_fd, self._held = reader, root_fd, held
        self._tops: dict[str, int] = {tarball.WORKSPACE: fd}
        self._met: set[str] = set()
        self.state_name: str | None = None

    def take(self, entry: tarball.Entry) -> None:
        shown = "/".join(entry.parts)[:200]
        try:
            if len(entry.parts) == 1:
                self._take_top(entry)
                return
            with tree.closing_fd(tree.descend(self._tops[entry.parts[0]], entry.parts[1:-1])) as parent_fd:
                self._put(entry, parent_fd)
        except FileExistsError:
            raise self._reader.rejected(f"{shown!r} is in it twice") from None
        except (FileNotFoundError, NotADirectoryError, KeyError):
            raise self._reader.rejected(f"{shown!r} comes before its folder") from None
        except OSError as error:
            if error.errno not in {errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL}:
                raise
            raise self._reader.rejected(f"{shown!r} cannot be a file: {error.strerror}") from None

    def _take_top(self, entry: tarball.Entry) -> None:
        top = entry.parts[0]
        if top in self._met or top == tarball.MANIFEST:
            raise FileExistsError(top)
        self._met.add(top)
        if top == tarball.STATE:
            states_fd = self._held.enter_context(creation.states_folder(self._root_fd))
            self.state_name, self._tops[top] = self._held.enter_context(creation.incoming(states_fd))

    def _put(self, entry: tarball.Entry, parent_fd: int) -> None:
        name = entry.parts[-1]
        if entry.kind == "folder":
            os.mkdir(name, entry.mode | 0o700, dir_fd=parent_fd)
        elif entry.kind == "link":
            os.symlink(entry.target, name, dir_fd=parent_fd)
        else:
            self._put_file(entry, name, parent_fd)

    def _put_file(self, entry: tarball.Entry, name: str, parent_fd: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with tree.closing_fd(os.open(name, flags, entry.mode | 0o600, dir_fd=parent_fd)) as fd:
            while data := self._reader.read():
                tree.write_all(fd, data)
            os.utime(fd, (entry.mtime, entry.mtime))


def _now() -> str:
    return metadata.format_timestamp(datetime.now(UTC))
