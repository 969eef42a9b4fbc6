"""Sessions on their way in: made under another name, visible whole in one rename."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandbox import tree
from sandbox.errors import WorkspaceUnusable
from sandbox.events import SandboxLogger
from sandbox.sessions import locks, metadata, removal
from sandbox.sessions.layout import FOLDER_MODE, STATE_FOLDER, check_session_id, incoming_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


def make_session(
    session_id: str,
    root: str | os.PathLike[str],
    *,
    host_only: Iterable[str] = (),
    fill: Callable[[Path], None] | None = None,
    fill_state: Callable[[Path], None] | None = None,
    fields: Mapping[str, Any] | None = None,
    logger: SandboxLogger | None = None,
) -> Path:
    """Make a session of a given id; FileExistsError where there is one already.

    `fill` puts the first files into the folder before anybody can see it, `fill_state` what it
    keeps beside it; what they raise undoes everything. `fields` go into the metadata. A failed
    metadata write still gives a session, and one warning.
    """
    check_session_id(session_id)
    root = Path(root)
    logger = (logger or SandboxLogger()).bind(session_id=session_id)
    make_root(root)
    with open_root(root) as root_fd, incoming(root_fd) as (name, fd), ExitStack() as held:
        refuse_existing(session_id, root_fd)
        if fill is not None:
            fill(root / name)
        state_name = None
        if fill_state is not None:
            states_fd = held.enter_context(states_folder(root_fd))
            state_name, _ = held.enter_context(incoming(states_fd))
            fill_state(root / STATE_FOLDER / state_name)
        problem = _write_metadata(fd, metadata.new_metadata(session_id, tuple(host_only), **(fields or {})))
        place(name, session_id, root_fd, state_name=state_name)
    if problem is None:
        logger.info("session.metadata.created")
    else:
        logger.warning("session.metadata.failed", error=problem)
    logger.info("session.created", workspace_path=str(root / session_id))
    return root / session_id


def make_root(root: Path) -> None:
    """The folder that holds the sessions, made where it is missing."""
    try:
        root.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise WorkspaceUnusable(root, "it is a file; name a folder") from None


@contextmanager
def open_root(root: str | os.PathLike[str]) -> Iterator[int]:
    """The folder that holds the sessions, open; the caller chose it, so it may be a symlink."""
    with tree.closing_fd(os.open(root, os.O_RDONLY | os.O_DIRECTORY)) as fd:
        yield fd


def refuse_existing(session_id: str, root_fd: int) -> None:
    """FileExistsError where the id is taken."""
    if tree.exists(session_id, root_fd):
        raise FileExistsError(errno.EEXIST, "there is a session of that id already", session_id)


@contextmanager
def incoming(parent_fd: int) -> Iterator[tuple[str, int]]:
    """An empty folder under a temporary name; it is removed where the block raises."""
    name = incoming_name()
    # Made and locked in one: a sweep in between would take it for a leftover.
    with locks.placing(parent_fd):
        os.mkdir(name, FOLDER_MODE, dir_fd=parent_fd)
        fd = tree.open_folder(name, parent_fd)
        fcntl.flock(fd, fcntl.LOCK_EX)
    with tree.closing_fd(fd):
        try:
            yield name, fd
        except BaseException:
            with suppress(OSError):
                tree.remove_contents(fd)
                os.rmdir(name, dir_fd=parent_fd)
            raise


def place(name: str, session_id: str, root_fd: int, *, state_name: str | None = None) -> None:
    """Give a finished folder, and its state where it has one, the name of its session."""
    with locks.placing(root_fd):
        refuse_existing(session_id, root_fd)
        removal.discard_orphaned_state(session_id, root_fd)
        if state_name is not None:
            with states_folder(root_fd) as states_fd:
                os.rename(state_name, session_id, src_dir_fd=states_fd, dst_dir_fd=states_fd)
        os.rename(name, session_id, src_dir_fd=root_fd, dst_dir_fd=root_fd)


@contextmanager
def states_folder(root_fd: int) -> Iterator[int]:
    """The folder that holds the sessions' saved states, made where it is missing."""
    with suppress(FileExistsError):
        os.mkdir(STATE_FOLDER, FOLDER_MODE, dir_fd=root_fd)
    with tree.closing_fd(tree.open_folder(STATE_FOLDER, root_fd)) as fd:
        yield fd


def _write_metadata(fd: int, found: metadata.SessionMetadata) -> str | None:
    """What went wrong, if anything: a session is usable without metadata."""
    try:
        metadata.write_first(fd, found)
    except OSError as error:
        return str(error)
    return None
