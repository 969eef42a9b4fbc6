"""New sessions that go on from where another one is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandbox import tree
from sandbox.errors import WorkspaceUnusable
from sandbox.events import SandboxLogger
from sandbox.sessions import checkpoints, locks, metadata, removal
from sandbox.sessions.cloning import clone_contents
from sandbox.sessions.creation import make_session, open_root
from sandbox.sessions.layout import check_session_id, new_session_id, root_path
from sandbox.sessions.residents import live_sessions
from sandbox.sessions.statefolder import StateFolder

if TYPE_CHECKING:
    from pathlib import Path

    from sandbox.sessions.files import Root


def fork_session(
    session_id: str, count: int = 1, workspace_root: Root = None, logger: SandboxLogger | None = None
) -> list[str]:
    """Make new sessions with copies of a session's files and, where it is stateful, its interpreter.

    Nothing is shared that either side could write to: files are copied, or share blocks until one
    side writes; a saved interpreter is a file that is only ever replaced.
    """
    check_session_id(session_id)
    if count < 1:
        raise ValueError(f"count is {count}: it must be 1 or more")
    root = root_path(workspace_root).absolute()
    logger = logger or SandboxLogger()
    made: list[str] = []
    checkpoints.settle(root, session_id)
    with locks.using(root / session_id) as fd, live_sessions.get(root, session_id).settled_state() as state:
        try:
            made.extend(_fork(session_id, root, fd, state, logger) for _ in range(count))
        except BaseException:
            _take_back(made, root)
            raise
    return made


def _take_back(session_ids: list[str], root: Path) -> None:
    with open_root(root) as root_fd:
        for session_id in session_ids:
            fd = locks.exclusive_for_deletion(session_id, root_fd)
            removal.remove(removal.take_away(session_id, root_fd, fd), root_fd)


def _fork(session_id: str, root: Path, fd: int, source: StateFolder, logger: SandboxLogger) -> str:
    new_id = new_session_id()
    found = _metadata(fd, session_id, root)

    def fill(folder: Path) -> None:
        with tree.closing_fd(tree.open_folder(folder)) as into_fd:
            clone_contents(fd, into_fd)

    def fill_state(folder: Path) -> None:
        source.link_to(StateFolder(root, new_id, folder))

    make_session(
        new_id,
        root,
        host_only=found.host_only if found else (),
        fill=fill,
        fill_state=fill_state if source.has_save() else None,
        fields={"stateful": bool(found and found.stateful), "forked_from": session_id},
        logger=logger,
    )
    return new_id


def _metadata(fd: int, session_id: str, root: Path) -> metadata.SessionMetadata | None:
    try:
        return metadata.read(fd, session_id)
    except ValueError as error:
        raise WorkspaceUnusable(root / session_id, f"its metadata is corrupt ({error})") from None
