"""The life of a session: made, found again, used, deleted."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Unpack

from sandbox.errors import NotStateful, SandboxClosed
from sandbox.events import SandboxLogger
from sandbox.sandbox import BaseSandbox, PythonSandbox, RuntimeType, check_runtime
from sandbox.sessions import checkpoints, locks, metadata, removal
from sandbox.sessions.creation import make_session, open_root
from sandbox.sessions.files import open_session
from sandbox.sessions.layout import check_session_id, new_session_id, root_path
from sandbox.sessions.residents import live_sessions
from sandbox.sessions.stateful import StatefulPythonSandbox

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from sandbox.policy import ExecutionPolicy
    from sandbox.result import SandboxResult
    from sandbox.sandbox import ExecuteOptions
    from sandbox.sessions.checkpoints import Checkpoint
    from sandbox.sessions.files import Root
    from sandbox.sessions.live import LiveSession

__all__ = [
    "SessionSandbox",
    "create_session_sandbox",
    "delete_session_workspace",
    "get_session_sandbox",
    "hold_session",
    "make_session",
    "read_session_metadata",
    "repair_session_metadata",
]

STATEFUL_OPTIONS = {"save_within_seconds", "fresh_interpreter"}


class SessionSandbox(BaseSandbox):
    """A sandbox on the workspace of a session; every execution is noted in the session's metadata."""

    session_id: str

    def __init__(self, inner: PythonSandbox, session_id: str, workspace: Path, logger: SandboxLogger) -> None:
        self.policy = inner.policy
        self.workspace = workspace
        self.logger = logger
        self.session_id = session_id
        self._inner = inner
        self._folder = workspace.absolute()
        self._closed = False

    @property
    def is_stateful(self) -> bool:
        """Whether variables persist from one execution to the next."""
        return isinstance(self._inner, StatefulPythonSandbox)

    def execute(self, code: str, **options: Unpack[ExecuteOptions]) -> SandboxResult:
        """Run `code` and wait for its end; the session cannot be deleted meanwhile.

        The interpreter is fresh, or the session's own where it is stateful; its turns run one
        after the other.
        """
        with self._using(exclusive=self.is_stateful) as fd:
            result = self._inner.execute(code, **options)
            metadata.refresh(fd, self.session_id, self.logger)
        return result

    def validate_code(self, code: str) -> bool:
        """Whether `code` compiles; it is not run, and the session does not count as used."""
        return self._inner.validate_code(code)

    def hibernate(self) -> None:
        """Save the interpreter and take it out of memory; NotStateful where the session has none."""
        self._stateful().hibernate()

    def checkpoint(self, name: str, *, files: bool = True) -> Checkpoint:
        """Keep the session as it is under a name: its interpreter, and its files unless told not to."""
        if not files:
            self._stateful()
        with self._using(exclusive=True) as fd, self._live().settled_state():
            kept = checkpoints.take(self._folder.parent, self.session_id, name, fd, files=files)
        self.logger.info("session.checkpoint.taken", session_id=self.session_id, name=name)
        return kept

    def list_checkpoints(self) -> list[Checkpoint]:
        """What can be gone back to, oldest first."""
        return checkpoints.find_all(self._folder.parent, self.session_id)

    def restore(self, name: str, *, files: bool = True) -> None:
        """Go back to a checkpoint: its interpreter, and its files where it has them unless told not to.

        What was done since is lost.
        """
        root = self._folder.parent
        with self._using(exclusive=True) as fd:
            checkpoints.require(root, self.session_id, name)
            live_sessions.forget(root, self.session_id)
            with self._live().settled_state():
                checkpoints.go_back(root, self.session_id, name, fd, files=files)
        self.logger.info("session.checkpoint.restored", session_id=self.session_id, name=name)

    def close(self) -> None:
        """Release what the sandbox holds, not the session; may be called twice."""
        self._closed = True
        self._inner.close()

    @contextmanager
    def _using(self, *, exclusive: bool) -> Iterator[int]:
        if self._closed:
            raise SandboxClosed
        with locks.using(self._folder, exclusive=exclusive) as fd:
            yield fd

    def _live(self) -> LiveSession:
        return live_sessions.get(self._folder.parent, self.session_id, self.logger)

    def _stateful(self) -> StatefulPythonSandbox:
        if not isinstance(self._inner, StatefulPythonSandbox):
            raise NotStateful(self.session_id)
        return self._inner


def create_session_sandbox(
    runtime: RuntimeType | str = RuntimeType.PYTHON,
    policy: ExecutionPolicy | None = None,
    logger: SandboxLogger | None = None,
    workspace_root: Root = None,
    *,
    host_only: Iterable[str] = (),
    stateful: bool = False,
    **runtime_options: Any,
) -> tuple[str, SessionSandbox]:
    """A new session with a generated id, and a sandbox on it.

    `host_only` names files and folders that sandboxed code, now or later, never sees. In a
    stateful session variables persist, too; `save_within_seconds` says how soon they are on disk.
    """
    check_runtime(runtime)
    logger = logger or SandboxLogger()
    session_id = new_session_id()
    names = tuple(host_only)
    fields = {"stateful": stateful}
    make_session(session_id, root_path(workspace_root), host_only=names, fields=fields, logger=logger)
    sandbox = _open(session_id, policy, logger, workspace_root, names, runtime_options, stateful=stateful)
    return session_id, sandbox


def get_session_sandbox(
    session_id: str,
    runtime: RuntimeType | str = RuntimeType.PYTHON,
    policy: ExecutionPolicy | None = None,
    logger: SandboxLogger | None = None,
    workspace_root: Root = None,
    *,
    host_only: Iterable[str] = (),
    stateful: bool | None = None,
    **runtime_options: Any,
) -> SessionSandbox:
    """A sandbox on a session; where there is none of that id, a new one is made.

    `host_only` adds to the names that the session's metadata keeps from sandboxed code. Whether it
    is stateful the session knows itself; True makes it so from now on, False runs this sandbox's
    code in fresh interpreters. `fresh_interpreter=True` forgets the saved variables.
    """
    check_session_id(session_id)
    check_runtime(runtime)
    logger = logger or SandboxLogger()
    root, names = root_path(workspace_root), tuple(host_only)
    if not os.path.lexists(root / session_id):
        with suppress(FileExistsError):  # another process was faster
            fields = {"stateful": bool(stateful)}
            make_session(session_id, root, host_only=names, fields=fields, logger=logger)
    checkpoints.settle(root.absolute(), session_id)
    with open_session(session_id, root) as session:
        names += session.host_only
        stateful = _settle_stateful(session.fd, session_id, wanted=stateful)
    sandbox = _open(session_id, policy, logger, root, names, runtime_options, stateful=stateful)
    logger.info("session.retrieved", session_id=session_id, workspace_path=str(root / session_id))
    return sandbox


def delete_session_workspace(
    session_id: str, workspace_root: Root = None, logger: SandboxLogger | None = None
) -> None:
    """Delete a session with its files and saved state; nothing happens where there is none.

    SessionInUse where code executes in it. The session disappears in one step, or stays whole.
    """
    check_session_id(session_id)
    root = root_path(workspace_root)
    try:
        with open_root(root) as root_fd:
            with locks.finding(root / session_id):
                fd = locks.exclusive_for_deletion(session_id, root_fd)
            removal.delete(session_id, root_fd, fd)
    except FileNotFoundError:
        return
    live_sessions.forget(root.absolute(), session_id)
    (logger or SandboxLogger()).info("session.deleted", session_id=session_id)


def hold_session(session_id: str, workspace_root: Root = None, *, held: bool = True) -> None:
    """Keep a session from being pruned or archived until it is let go, across processes and crashes.

    For programs that use its folder between executions. Nothing happens where it has no metadata.
    """
    with open_session(session_id, workspace_root) as session:
        metadata.update(session.fd, session_id, {"held": held})


def read_session_metadata(session_id: str, workspace_root: Root = None) -> metadata.SessionMetadata | None:
    """The metadata of a session; None for a legacy one, ValueError where it is corrupt."""
    with open_session(session_id, workspace_root) as session:
        return metadata.read(session.fd, session_id)


def repair_session_metadata(
    session_id: str, workspace_root: Root = None, logger: SandboxLogger | None = None
) -> metadata.SessionMetadata:
    """Give a legacy or corrupt session metadata, dated by its files; valid ones stay as they are.

    What was corrupt is kept beside it as `.metadata.json.corrupt`. A repaired session is pruned
    like any other.
    """
    with open_session(session_id, workspace_root) as session:
        repaired = metadata.repair(session.fd, session_id)
    log = logger or SandboxLogger()
    log.info("session.metadata.repaired", session_id=session_id, updated_at=repaired.updated_at)
    return repaired


def _settle_stateful(fd: int, session_id: str, *, wanted: bool | None) -> bool:
    """What the caller wants, else what the session's metadata say; noted where it is new."""
    try:
        found = metadata.read(fd, session_id)
    except ValueError:
        return bool(wanted)
    if wanted and found is not None and not found.stateful:
        metadata.update(fd, session_id, {"stateful": True})
    return found is not None and found.stateful if wanted is None else wanted


def _open(
    session_id: str,
    policy: ExecutionPolicy | None,
    logger: SandboxLogger,
    workspace_root: Root,
    host_only: tuple[str, ...],
    runtime_options: dict[str, Any],
    *,
    stateful: bool,
) -> SessionSandbox:
    workspace = root_path(workspace_root) / session_id
    options = {
        "policy": policy,
        "workspace": workspace.absolute(),
        "logger": logger.bind(session_id=session_id),
        "session_id": session_id,
        "host_only": host_only,
        **runtime_options,
    }
    inner: PythonSandbox
    if stateful:
        inner = StatefulPythonSandbox(root=workspace.absolute().parent, **options)
    elif STATEFUL_OPTIONS & runtime_options.keys():
        raise NotStateful(session_id)
    else:
        inner = PythonSandbox(**options)
    return SessionSandbox(inner, session_id, workspace, logger)
