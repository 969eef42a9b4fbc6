"""What is known of a session besides its files: `.metadata.json`.

Writes go to another name in the same folder and replace the file, so a reader, and a process that
dies, always finds a whole one. A refresh alone overwrites the digits of `updated_at` in place, in
one call: the file is as whole as before, and no file has to be made and freed for it. Nothing is
forced to disk: after a power failure the file may be the one before, or, on file systems that
reorder a rename before the data, empty (`repair`).

Writers hold `flock` on the metadata file itself and look again whether it is still in place: no
lock file to leave behind, and nothing to do with the lock that executions hold for minutes.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from sandbox import tree
from sandbox.replacement import replacing
from sandbox.sessions.layout import METADATA_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sandbox.events import SandboxLogger

SCHEMA_VERSION = 1
METADATA_MAX_BYTES = 1024 * 1024
USUAL_BYTES = 4096  # a read takes room for all that it may get, which for the most costs more than the rest
FILE_MODE = 0o600

# Both begin with the host-only name, so no guest meets them.
_NEXT = f"{METADATA_NAME}.next"
_SET_ASIDE = f"{METADATA_NAME}.corrupt"
_TICK = timedelta(microseconds=1)
_LAST_MOMENT = datetime.max.replace(tzinfo=UTC)


class SessionMetadata(BaseModel):
    """The contents of `.metadata.json`; fields that this version does not know are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")

    session_id: str
    created_at: str
    updated_at: str
    version: int = SCHEMA_VERSION
    host_only: tuple[str, ...] = ()
    stateful: bool = False
    held: bool = False  # kept from pruning by something that uses it besides executions

    @field_validator("created_at", "updated_at")
    @classmethod
    def _is_timestamp(cls, value: str) -> str:
        parse_timestamp(value)
        return value

    def as_json(self) -> dict[str, Any]:
        """The fields as they are stored; those of special sessions only where they say something."""
        fields = self.model_dump(mode="json")
        for name in ("host_only", "stateful", "held"):
            if not fields[name]:
                del fields[name]
        return fields


def parse_timestamp(value: str) -> datetime:
    """An ISO 8601 time in UTC; one without a zone is taken as UTC."""
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{value!r} is not a time in UTC") from None


def format_timestamp(moment: datetime) -> str:
    """`YYYY-MM-DDTHH:MM:SS.ffffffZ`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def new_metadata(session_id: str, host_only: tuple[str, ...] = (), **extra: Any) -> SessionMetadata:
    """Metadata of a session that begins now."""
    now = format_timestamp(datetime.now(UTC))
    return SessionMetadata(
        session_id=session_id, created_at=now, updated_at=now, host_only=host_only, **extra
    )


def parse(data: bytes, session_id: str) -> SessionMetadata:
    """Metadata from its bytes; ValueError says what is wrong with them."""
    try:
        found = SessionMetadata.model_validate_json(data)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise ValueError(f"{where}: {problem['msg']}" if where else problem["msg"]) from None
    if found.session_id != session_id:
        raise ValueError(f"session_id: it belongs to session {found.session_id!r}")
    return found


def read(workspace_fd: int, session_id: str) -> SessionMetadata | None:
    """The metadata of a session, None where there is none; ValueError where it is corrupt."""
    data = _read_bytes(workspace_fd)
    return None if data is None else parse(data, session_id)


def read_host_only(workspace_fd: int) -> tuple[str, ...]:
    """The names that a session's metadata keeps from guests, also where the rest of it is corrupt."""
    try:
        names = _salvage(_read_bytes(workspace_fd) or b"").get("host_only")
    except OSError:
        return ()
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def write_first(workspace_fd: int, found: SessionMetadata) -> None:
    """Give a session that nobody else sees yet its metadata."""
    _write(workspace_fd, found.as_json())


def refresh(workspace_fd: int, session_id: str, logger: SandboxLogger) -> None:
    """Note that the session was just used; never raises.

    `updated_at` grows strictly, whoever else refreshes. Missing metadata is left missing without
    a word; corrupt metadata is left as it is, with one warning.
    """
    try:
        updated_at = update(workspace_fd, session_id, {})
    except (ValueError, OSError) as error:
        logger.warning("session.metadata.failed", session_id=session_id, error=str(error))
        return
    if updated_at is not None:
        logger.info("session.metadata.updated", session_id=session_id, updated_at=updated_at)


def update(workspace_fd: int, session_id: str, changes: Mapping[str, Any]) -> str | None:
    """Change fields and move `updated_at` on; returns it, or None where there is no metadata."""
    with _locked(workspace_fd) as fd:
        if fd is None:
            return None
        data = _content(fd)
        before = parse(data, session_id)
        updated_at = format_timestamp(_later_than(parse_timestamp(before.updated_at)))
        if changes or not _overwrite_time(workspace_fd, data, before.updated_at, updated_at):
            _write(workspace_fd, {**json.loads(data), **changes, "updated_at": updated_at})
        return updated_at


def _overwrite_time(workspace_fd: int, data: bytes, before: str, now: str) -> bool:
    """Put one time in the place of another of the same length; False where that cannot be done."""
    field = f'"updated_at": "{before}"'.encode()
    if len(before) != len(now) or data.count(b'"updated_at"') != 1 or data.count(field) != 1:
        return False
    flags = os.O_WRONLY | os.O_NOFOLLOW
    with tree.closing_fd(os.open(METADATA_NAME, flags, dir_fd=workspace_fd)) as fd:
        return os.pwrite(fd, now.encode(), data.index(field) + field.index(before.encode())) == len(now)


def repair(workspace_fd: int, session_id: str) -> SessionMetadata:
    """Metadata for a session that has none or corrupt ones, dated by its files.

    Whatever can be read of corrupt metadata is kept in it, and the file itself is set aside
    beside it. Valid metadata stays as it is.
    """
    with _locked(workspace_fd) as fd:
        if fd is None:
            found = _from_files(workspace_fd, session_id, {})
            _write_if_missing(workspace_fd, found.as_json())
            return read(workspace_fd, session_id) or found
        data = _content(fd)
        try:
            return parse(data, session_id)
        except ValueError:
            found = _from_files(workspace_fd, session_id, _salvage(data))
        _write_file(workspace_fd, _SET_ASIDE, data)
        _write(workspace_fd, found.as_json())
        return found


def _later_than(before: datetime) -> datetime:
    """Now, or a tick after `before` where the clock is not past it."""
    now = datetime.now(UTC)
    if now > before:
        return now
    return before + _TICK if before < _LAST_MOMENT else before


@contextmanager
def _locked(workspace_fd: int) -> Iterator[int | None]:
    """The metadata file, open and locked; None where there is none."""
    fd = None
    while fd is None:
        try:
            fd = tree.open_file(METADATA_NAME, workspace_fd)
        except FileNotFoundError:
            yield None
            return
        fcntl.flock(fd, fcntl.LOCK_EX)
        # The writer before us put another file in its place: lock that one instead.
        if not tree.is_in_place(fd, METADATA_NAME, workspace_fd):
            os.close(fd)
            fd = None
    with tree.closing_fd(fd):
        yield fd


def _read_bytes(workspace_fd: int) -> bytes | None:
    try:
        fd = tree.open_file(METADATA_NAME, workspace_fd)
    except FileNotFoundError:
        return None
    with tree.closing_fd(fd):
        return _content(fd)


def _content(fd: int) -> bytes:
    data = os.read(fd, USUAL_BYTES)
    return data if len(data) < USUAL_BYTES else data + os.read(fd, METADATA_MAX_BYTES - USUAL_BYTES)


def _write(workspace_fd: int, fields: Mapping[str, Any]) -> None:
    # One name for all writers: they hold the lock, and what a dead one left is overwritten.
    _write_file(workspace_fd, _NEXT, _encode(fields))
    os.replace(_NEXT, METADATA_NAME, src_dir_fd=workspace_fd, dst_dir_fd=workspace_fd)


def _write_if_missing(workspace_fd: int, fields: Mapping[str, Any]) -> None:
    # Nothing to lock yet, and another may be faster.
    with (
        suppress(FileExistsError),
        replacing(METADATA_NAME, workspace_fd, f"{_NEXT}-", overwrite=False, mode=FILE_MODE) as fd,
    ):
        tree.write_all(fd, _encode(fields))


def _write_file(workspace_fd: int, name: str, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with tree.closing_fd(os.open(name, flags, FILE_MODE, dir_fd=workspace_fd)) as fd:
        tree.write_all(fd, data)


def _encode(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, indent=2).encode() + b"\n"


def _salvage(data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _from_files(workspace_fd: int, session_id: str, salvaged: dict[str, Any]) -> SessionMetadata:
    oldest, newest = _file_times(workspace_fd)
    dated = {"created_at": format_timestamp(oldest), "updated_at": format_timestamp(newest)}
    dated |= {name: salvaged[name] for name in dated if _is_usable_time(salvaged.get(name))}
    own: dict[str, Any] = {"session_id": session_id, **dated, "version": SCHEMA_VERSION}
    try:
        return SessionMetadata(**{**salvaged, **own})
    except ValidationError:
        return SessionMetadata(**own)


def _is_usable_time(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(parse_timestamp(value))
    except ValueError:
        return False


def _file_times(workspace_fd: int) -> tuple[datetime, datetime]:
    times = [os.fstat(workspace_fd).st_mtime]
    for folder in tree.walk(workspace_fd):
        times += [
            entry.stat(follow_symlinks=False).st_mtime
            for entry in folder.files
            if not entry.name.startswith(METADATA_NAME)
        ]
    return datetime.fromtimestamp(min(times), UTC), datetime.fromtimestamp(max(times), UTC)
