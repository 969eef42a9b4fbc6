"""Named states of a session that it can go back to."""

from __future__ import annotations

import json
import os
import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sandbox import tree
from sandbox.errors import CheckpointUnknown, InvalidCheckpointName
from sandbox.sessions import cloning, metadata
from sandbox.sessions.layout import FOLDER_MODE, METADATA_NAME
from sandbox.sessions.statefolder import STATE_FILE, StateFolder

if TYPE_CHECKING:
    from pathlib import Path

CHECKPOINTS_FOLDER = "checkpoints"
FILES_FOLDER = "workspace"
NOTE_FILE = "checkpoint.json"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Checkpoint:
    """One state that can be gone back to."""

    name: str
    created_at: str
    has_interpreter: bool
    has_files: bool


def take(root: Path, session_id: str, name: str, workspace_fd: int, *, files: bool) -> Checkpoint:
    """Keep the saved interpreter, and the files where asked, under a name; replaces one of that name."""
    state, target = StateFolder(root, session_id), _folder(root, session_id, name)
    state.make()
    target.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
    incoming = target.with_name(f".tmp-{uuid.uuid4().hex}")
    incoming.mkdir(mode=FOLDER_MODE)
    try:
        state.link_to(StateFolder(root, session_id, incoming))
        if files:
            (incoming / FILES_FOLDER).mkdir(mode=FOLDER_MODE)
            with tree.closing_fd(tree.open_folder(incoming / FILES_FOLDER)) as fd:
                cloning.clone_contents(workspace_fd, fd)
        created_at = metadata.format_timestamp(datetime.now(UTC))
        (incoming / NOTE_FILE).write_text(json.dumps({"created_at": created_at}), encoding="utf-8")
        _swap(incoming, target)
    except BaseException:
        _remove(incoming)
        raise
    return _describe(target)


def find_all(root: Path, session_id: str) -> list[Checkpoint]:
    """The checkpoints of a session, oldest first."""
    folder = StateFolder(root, session_id).path / CHECKPOINTS_FOLDER
    try:
        names = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    except FileNotFoundError:
        return []
    return sorted(map(_describe, names), key=lambda checkpoint: checkpoint.created_at)


def require(root: Path, session_id: str, name: str) -> Path:
    """The folder of a checkpoint; CheckpointUnknown where there is none."""
    folder = _folder(root, session_id, name)
    if not folder.is_dir():
        raise CheckpointUnknown(session_id, name)
    return folder


def go_back(root: Path, session_id: str, name: str, workspace_fd: int, *, files: bool) -> None:
    """Make a checkpoint's interpreter the saved one, and its files the session's where asked."""
    source = require(root, session_id, name)
    if files and (source / FILES_FOLDER).is_dir():
        _put_back(source / FILES_FOLDER, source.with_name(f".tmp-{uuid.uuid4().hex}"), workspace_fd)
    state, kept = StateFolder(root, session_id), StateFolder(root, session_id, source)
    if kept.has_save():
        kept.link_to(state)
    else:
        state.discard()


def _put_back(source: Path, staging: Path, workspace_fd: int) -> None:
    """Replace the files; they are all copied before the first one of the session goes."""
    staging.mkdir(mode=FOLDER_MODE)
    try:
        with (
            tree.closing_fd(tree.open_folder(source)) as source_fd,
            tree.closing_fd(tree.open_folder(staging)) as staging_fd,
        ):
            cloning.clone_contents(source_fd, staging_fd)
            old = staging.with_name(f".tmp-{uuid.uuid4().hex}")
            old.mkdir(mode=FOLDER_MODE)
            with tree.closing_fd(tree.open_folder(old)) as old_fd:
                _exchange(workspace_fd, staging_fd, old_fd)
            _remove(old)
    finally:
        _remove(staging)


def _exchange(workspace_fd: int, staging_fd: int, old_fd: int) -> None:
    """Move the session's files away and the new ones in, or leave all as it was."""
    try:
        _move_all(workspace_fd, old_fd)
        _move_all(staging_fd, workspace_fd)
    except BaseException:
        _move_all(workspace_fd, staging_fd)
        _move_all(old_fd, workspace_fd)
        raise


def _move_all(from_fd: int, to_fd: int) -> None:
    for name in os.listdir(from_fd):
        if not name.startswith(METADATA_NAME):
            os.rename(name, name, src_dir_fd=from_fd, dst_dir_fd=to_fd)


def _folder(root: Path, session_id: str, name: str) -> Path:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidCheckpointName(name)
    return StateFolder(root, session_id).path / CHECKPOINTS_FOLDER / name


def _describe(folder: Path) -> Checkpoint:
    try:
        created_at = str(json.loads((folder / NOTE_FILE).read_text(encoding="utf-8"))["created_at"])
    except (OSError, ValueError, KeyError, TypeError):
        created_at = ""
    has_files = (folder / FILES_FOLDER).is_dir()
    return Checkpoint(folder.name, created_at, (folder / STATE_FILE).exists(), has_files)


def _swap(incoming: Path, target: Path) -> None:
    old = target.with_name(f".tmp-{uuid.uuid4().hex}")
    if target.exists():
        target.rename(old)
    incoming.rename(target)
    _remove(old)


def _remove(folder: Path) -> None:
    if folder.is_dir():
        with tree.closing_fd(tree.open_folder(folder)) as fd:
            tree.remove_contents(fd)
        folder.rmdir()
