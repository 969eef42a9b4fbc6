"""The sessions under a root, found by reading each one's metadata and nothing else."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from sandbox import tree
from sandbox.sessions import locks, metadata, removal
from sandbox.sessions.creation import open_root
from sandbox.sessions.layout import METADATA_NAME, check_session_id, is_canonical_uuid, root_path
from sandbox.sessions.retention import SECONDS_PER_HOUR

if TYPE_CHECKING:
    from collections.abc import Iterator

# Inode and time of a metadata file: every refresh puts another file in its place.
Stamp = tuple[int, int]
Problem = Literal["no_metadata", "corrupted_metadata", "symlink", "unreadable"]
SessionState = Literal["idle", "in_use", "legacy", "corrupted", "symlink", "unreadable"]

_STATES: dict[Problem, SessionState] = {
    "no_metadata": "legacy",
    "corrupted_metadata": "corrupted",
    "symlink": "symlink",
    "unreadable": "unreadable",
}


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One session in a listing; times and age are None where there is no readable metadata.

    `size_bytes`, what a deletion frees, is None unless sizes were asked for. In a `stateful` session
    variables persist, too.
    """

    session_id: str
    state: SessionState
    created_at: datetime | None
    updated_at: datetime | None
    age_hours: float | None
    size_bytes: int | None
    stateful: bool = False


_UNKNOWN_TIME = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Found:
    """A session folder as a survey met it; small, because there may be very many."""

    session_id: str
    problem: Problem | None
    created_at: datetime = _UNKNOWN_TIME
    updated_at: datetime = _UNKNOWN_TIME
    stamp: Stamp | None = None
    held: bool = False
    stateful: bool = False


def list_sessions(
    workspace_root: str | os.PathLike[str] | None = None, *, sizes: bool = False
) -> list[SessionInfo]:
    """The sessions under a root, the last used first, those that cannot be dated at the end.

    Costs one small read and one lock attempt a session; `sizes` walks every session as well.
    Folders whose name is no canonical UUID are sessions where they have metadata.
    """
    now = datetime.now(UTC)
    with open_root(root_path(workspace_root)) as root_fd:
        found = sorted(survey(root_fd, uuids_only=False), key=lambda one: one.updated_at, reverse=True)
        return [_describe(one, root_fd, now, sizes=sizes) for one in found]


def survey(root_fd: int, *, uuids_only: bool = True) -> Iterator[Found]:
    """Every session folder under a root, in no order."""
    with os.scandir(root_fd) as entries:
        for entry in entries:
            if is_canonical_uuid(entry.name):
                if entry.is_symlink():
                    yield Found(entry.name, "symlink")
                elif entry.is_dir(follow_symlinks=False):
                    yield examine(entry.name, root_fd)
            elif not uuids_only and _is_named_session(entry, root_fd):
                yield examine(entry.name, root_fd)


def examine(session_id: str, root_fd: int) -> Found:
    """What the metadata of one session folder says."""
    try:
        data, stamp = _metadata_bytes(session_id, root_fd)
    except PermissionError:
        return Found(session_id, "unreadable")
    if stamp is None:
        return Found(session_id, "no_metadata")
    try:
        known = metadata.parse(data, session_id)
    except ValueError:
        return Found(session_id, "corrupted_metadata")
    created, updated = map(metadata.parse_timestamp, (known.created_at, known.updated_at))
    return Found(session_id, None, created, updated, stamp, known.held, known.stateful)


def measure_session(session_id: str, root_fd: int, fd: int) -> int:
    """The bytes that a deletion frees: the files' sizes, metadata and saved state included."""
    return tree.measure(fd).bytes + removal.state_bytes(session_id, root_fd)


def _is_named_session(entry: os.DirEntry[str], root_fd: int) -> bool:
    if not entry.is_dir(follow_symlinks=False):
        return False
    try:
        check_session_id(entry.name)
    except ValueError:
        return False
    return tree.exists(f"{entry.name}/{METADATA_NAME}", root_fd)


def is_unchanged(found: Found, root_fd: int) -> bool:
    """Whether the session's metadata file is still the one that the survey read."""
    try:
        status = os.stat(f"{found.session_id}/{METADATA_NAME}", dir_fd=root_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (status.st_ino, status.st_mtime_ns) == found.stamp


def _metadata_bytes(session_id: str, root_fd: int) -> tuple[bytes, Stamp | None]:
    """The metadata's bytes and stamp; none of the first where something else stands in its place."""
    try:
        fd = os.open(f"{session_id}/{METADATA_NAME}", tree.FILE_FLAGS, dir_fd=root_fd)
    except FileNotFoundError:
        return b"", None
    except PermissionError:
        raise
    except OSError:
        return b"", (0, 0)
    with tree.closing_fd(fd):
        status = os.fstat(fd)
        data = (
            os.read(fd, min(status.st_size + 1, metadata.METADATA_MAX_BYTES))
            if stat.S_ISREG(status.st_mode)
            else b""
        )
        return data, (status.st_ino, status.st_mtime_ns)


def _describe(found: Found, root_fd: int, now: datetime, *, sizes: bool) -> SessionInfo:
    state, size = _look_at(found, root_fd, sizes=sizes)
    if found.problem is not None:
        return SessionInfo(found.session_id, state, None, None, None, size)
    age = max(0.0, (now - found.updated_at).total_seconds()) / SECONDS_PER_HOUR
    return SessionInfo(
        found.session_id, state, found.created_at, found.updated_at, age, size, stateful=found.stateful
    )


def _look_at(found: Found, root_fd: int, *, sizes: bool) -> tuple[SessionState, int | None]:
    """The state and the size of a session that may go at any moment."""
    state = _STATES[found.problem] if found.problem else "idle"
    if found.problem in {"symlink", "unreadable"}:
        return state, None
    try:
        with tree.closing_fd(tree.open_folder(found.session_id, root_fd)) as fd:
            if found.problem is None and (found.held or not locks.is_free(fd)):
                state = "in_use"
            return state, measure_session(found.session_id, root_fd, fd) if sizes else None
    except FileNotFoundError:
        return state, 0 if sizes else None
