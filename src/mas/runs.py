"""Runs of a team of agents: the order of the steps of each operation, and their undoing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from mas.config import AgentId, Mode, RunConfig, Value
from mas.settings import Settings

if TYPE_CHECKING:
    from sandbox.events import SandboxLogger
    from sandbox.sandbox import BaseSandbox

__all__ = ["AgentView", "Entry", "Run", "RunDetails", "RunPage", "Runs", "Status", "Stopped"]

Status = Literal["active", "stopped", "error"]
AgentState = Literal["starting", "running", "exited", "dead"]


class Entry(Value):
    """One line of the index, verified against tmux."""

    session_id: str
    tmux_session: str
    status: Status
    created_at: str
    working_dir: str
    mode: Mode


class Run(Value):
    """A run that was made or restored: what POST /runs answers."""

    session_id: str
    tmux_session: str
    working_dir: str
    unit_dir: str
    workflows_dir: str
    created_at: str
    status: Status
    session_mode: Mode


class RunPage(Value):
    """A page of the index; `total` counts every entry that matches, not only those of the page."""

    sessions: tuple[Entry, ...]
    total: int
    timestamp: str


class AgentView(Value):
    """What one agent is doing now.

    `exit_code` is None until it exited, and 128 + n after a signal n. `pane` and `window` are None when
    tmux has no pane for it. `command` is the line that runs in the pane.
    """

    agent_id: AgentId
    window: str | None
    pane: str | None
    alive: bool
    exit_code: int | None
    command: str
    state: AgentState
    last_output_at: str | None


class RunDetails(Entry):
    """An entry with its agents, the names of its windows in order, and the command that attaches to it."""

    agents: tuple[AgentView, ...]
    windows: tuple[str, ...]
    attach_command: str


class Stopped(Value):
    """The answer to a stop."""

    session_id: str
    status: Literal["stopped"]
    timestamp: str


class Runs:
    """Every run under one MAS_ROOT; holds nothing between calls, so many processes may use the same root."""

    def __init__(self, settings: Settings, *, logger: SandboxLogger | None = None) -> None:
        self.settings = settings

    def create(
        self,
        config: RunConfig,
        *,
        mode: Mode | None = None,
        session_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Run:
        """Make a run and start its agents, all or nothing.

        The mode is `config.session_mode`, else `mode`, else the setting. Answers when every pane's process exists;
        agents get their prompts when they are ready. The same key within a day gives the same run, also while the
        first is still being made. Raises LegacyRunning, SessionIdTaken, InvalidSessionId, IdempotencyMismatch,
        TmuxError or WorkspaceFailed.
        """
        raise NotImplementedError

    def list(self, *, status: Status | None = None, limit: int | None = None, offset: int = 0) -> RunPage:
        """The runs in order of creation, each verified: one that died is reported and recorded as stopped."""
        raise NotImplementedError

    def show(self, session_id: str) -> RunDetails:
        """One run with its agents; RunNotFound."""
        raise NotImplementedError

    def stop(self, session_id: str) -> Stopped:
        """End the agents and every process they left behind, keep the workspace; may be called twice; RunNotFound."""
        raise NotImplementedError

    def restore(self, session_id: str) -> Run:
        """Start the agents of a stopped run again in its workspace; RunNotFound, RunActive, TmuxError."""
        raise NotImplementedError

    def delete(self, session_id: str) -> None:
        """Remove a stopped run with its workspace; RunNotFound, RunActive."""
        raise NotImplementedError

    def send(self, session_id: str, target: str, text: str, *, submit: bool = True) -> None:
        """Type `text` into an agent's pane, then Enter; RunNotFound, AgentNotFound, RunNotActive, InvalidMessage."""
        raise NotImplementedError

    def restart_agent(self, session_id: str, agent_id: str) -> AgentView:
        """End one agent with its processes and start it again in its pane; RunNotFound, AgentNotFound, RunNotActive."""
        raise NotImplementedError

    def log(self, session_id: str, agent_id: str, *, tail: int | None = None) -> bytes:
        """What the agent's pane printed, or its last `tail` lines; RunNotFound, AgentNotFound."""
        raise NotImplementedError

    def follow(self, session_id: str, agent_id: str) -> Iterator[bytes]:
        """What the agent's pane prints from now on, until the run stops; RunNotFound, AgentNotFound before the first.

        Gives b"" about once a second while nothing is printed, so that the caller can notice that nobody listens.
        """
        raise NotImplementedError

    def sandbox(self, session_id: str) -> BaseSandbox:
        """The run's sandbox, to be closed by the caller; RunNotFound."""
        raise NotImplementedError

    def list_files(self, session_id: str, *, pattern: str | None = None) -> list[str]:
        """The files of the run's sandbox, control files left out; RunNotFound."""
        raise NotImplementedError

    def read_file(self, session_id: str, path: str) -> bytes:
        """A file of the run's sandbox; RunNotFound, and the errors of sandbox.read_session_file."""
        raise NotImplementedError

    def write_file(self, session_id: str, path: str, data: bytes) -> None:
        """Write a file of the run's sandbox; RunNotFound, and the errors of sandbox.write_session_file."""
        raise NotImplementedError

    def delete_file(self, session_id: str, path: str, *, recursive: bool = False) -> None:
        """Remove a file of the run's sandbox; RunNotFound, and the errors of sandbox.delete_session_path."""
        raise NotImplementedError

    def reconcile(self) -> None:
        """Make registry, folders, tmux and processes agree after a crash: call it when a server starts.

        What lives is adopted, what died is marked stopped, what was half made is removed, what was half
        stopped or half deleted is finished. Other processes may be at work in the same root meanwhile.
        """
        raise NotImplementedError
