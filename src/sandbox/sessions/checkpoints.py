"""Named states of a session that it can go back to.

.state/<session id>/checkpoints/
  <name>/        interpreter.state, image, checkpoint.json, and workspace/ where the files were kept
  .tmp-<hex>/    one that is being made
  .old-<name>/   the one before, until the new one of that name is in its place
  .restoring/    one that is being gone back to, which whoever comes next carries on with
    workspace/     files that are still to be moved in
    leaving/       where the session's own files are moved to first; left/ when all are there
"""

from __future__ import annotations

import json
import os
import re
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sandbox import tree
from sandbox.errors import CheckpointUnknown, InvalidCheckpointName
from sandbox.sessions import cloning, locks, metadata
from sandbox.sessions.layout import FOLDER_MODE, METADATA_NAME
from sandbox.sessions.residents import live_sessions
from sandbox.sessions.statefolder import STATE_FILE, StateFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHECKPOINTS_FOLDER = "checkpoints"
FILES_FOLDER = "workspace"
NOTE_FILE = "checkpoint.json"
NEW_PREFIX, OLD_PREFIX = ".tmp-", ".old-"
RESTORING_FOLDER = ".restoring"
LEAVING_FOLDER, LEFT_FOLDER = "leaving", "left"
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
    target = _folder(root, session_id, name)
    state = StateFolder(root, session_id)
    state.make()
    target.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
    recover(root, session_id, workspace_fd)
    with _incoming(target.parent) as incoming:
        state.link_to(StateFolder(root, session_id, incoming))
        if files:
            _clone(workspace_fd, incoming / FILES_FOLDER)
        created_at = metadata.format_timestamp(datetime.now(UTC))
        (incoming / NOTE_FILE).write_text(json.dumps({"created_at": created_at}), encoding="utf-8")
        _swap(incoming, target)
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
    if not folder.is_dir() and not folder.with_name(f"{OLD_PREFIX}{name}").is_dir():
        raise CheckpointUnknown(session_id, name)
    return folder


def go_back(root: Path, session_id: str, name: str, workspace_fd: int, *, files: bool) -> None:
    """Make a checkpoint's interpreter the saved one, and its files the session's where asked."""
    source = require(root, session_id, name)
    recover(root, session_id, workspace_fd)
    with _incoming(source.parent) as incoming:
        StateFolder(root, session_id, source).link_to(StateFolder(root, session_id, incoming))
        if files and (source / FILES_FOLDER).is_dir():
            with tree.closing_fd(tree.open_folder(source / FILES_FOLDER)) as source_fd:
                _clone(source_fd, incoming / FILES_FOLDER)
            (incoming / LEAVING_FOLDER).mkdir(mode=FOLDER_MODE)
        incoming.rename(source.with_name(RESTORING_FOLDER))
    _carry_on(root, session_id, workspace_fd)


def recover(root: Path, session_id: str, workspace_fd: int) -> None:
    """Carry on with what a killed process left half done; the caller holds the session exclusively."""
    folder = StateFolder(root, session_id).path / CHECKPOINTS_FOLDER
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name.startswith(OLD_PREFIX):
            _bring_back(path)
        elif path.name.startswith(NEW_PREFIX):
            _remove(path)
    if (folder / RESTORING_FOLDER).is_dir():
        _carry_on(root, session_id, workspace_fd)


def _bring_back(old: Path) -> None:
    """Give a checkpoint its name again, unless the new one of that name is in its place."""
    target = old.with_name(old.name.removeprefix(OLD_PREFIX))
    if target.exists():
        _remove(old)
    else:
        old.rename(target)


def settle(root: Path, session_id: str) -> None:
    """Carry on with a session that was being taken back when its process was killed."""
    if (StateFolder(root, session_id).path / CHECKPOINTS_FOLDER / RESTORING_FOLDER).is_dir():
        with locks.using(root / session_id, exclusive=True) as fd:
            live_sessions.forget(root, session_id)
            with live_sessions.get(root, session_id).settled_state():
                recover(root, session_id, fd)


def _carry_on(root: Path, session_id: str, workspace_fd: int) -> None:
    """Finish going back, from wherever it stopped; what cannot be finished is undone."""
    restoring = StateFolder(root, session_id).path / CHECKPOINTS_FOLDER / RESTORING_FOLDER
    try:
        if (restoring / FILES_FOLDER).is_dir():
            _exchange(restoring, workspace_fd)
        kept, state = StateFolder(root, session_id, restoring), StateFolder(root, session_id)
        if kept.has_save():
            kept.link_to(state)
        else:
            state.discard()
    except BaseException:
        _undo(restoring, workspace_fd)
        raise
    finally:
        done = restoring.with_name(f"{NEW_PREFIX}{uuid.uuid4().hex}")
        restoring.rename(done)
        _remove(done)


def _exchange(restoring: Path, workspace_fd: int) -> None:
    """Move the session's files away and then the new ones in."""
    leaving = restoring / LEAVING_FOLDER
    if leaving.is_dir():
        _move_out(workspace_fd, leaving)
        leaving.rename(restoring / LEFT_FOLDER)
    _move_in(restoring / FILES_FOLDER, workspace_fd)


def _undo(restoring: Path, workspace_fd: int) -> None:
    left = restoring / LEFT_FOLDER
    if left.is_dir():
        _move_out(workspace_fd, restoring / FILES_FOLDER)
        _move_in(left, workspace_fd)
    elif (restoring / LEAVING_FOLDER).is_dir():
        _move_in(restoring / LEAVING_FOLDER, workspace_fd)


@contextmanager
def _incoming(folder: Path) -> Iterator[Path]:
    """A new folder under a temporary name, for the block to give a place; removed where it does not."""
    incoming = folder / f"{NEW_PREFIX}{uuid.uuid4().hex}"
    incoming.mkdir(mode=FOLDER_MODE)
    try:
        yield incoming
    finally:
        _remove(incoming)


def _clone(source_fd: int, target: Path) -> None:
    target.mkdir(mode=FOLDER_MODE)
    with tree.closing_fd(tree.open_folder(target)) as fd:
        cloning.clone_contents(source_fd, fd)


def _move_in(folder: Path, workspace_fd: int) -> None:
    with tree.closing_fd(tree.open_folder(folder)) as fd:
        _rename_all(fd, workspace_fd)


def _move_out(workspace_fd: int, folder: Path) -> None:
    with tree.closing_fd(tree.open_folder(folder)) as fd:
        _rename_all(workspace_fd, fd)


def _rename_all(from_fd: int, to_fd: int) -> None:
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
    old = target.with_name(f"{OLD_PREFIX}{target.name}")
    if target.exists():
        target.rename(old)
    incoming.rename(target)
    _remove(old)


def _remove(folder: Path) -> None:
    if folder.is_dir():
        with tree.closing_fd(tree.open_folder(folder)) as fd:
            tree.remove_contents(fd)
        folder.rmdir()
