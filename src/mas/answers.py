"""What the operations on runs answer: values that the command and the API show as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from mas.agents import AgentView  # noqa: TC001 - pydantic reads the annotations
from mas.config import Mode, Value
from mas.registry import Status  # noqa: TC001 - likewise

if TYPE_CHECKING:
    from mas.workspace import Layout

__all__ = ["Entry", "Run", "RunDetails", "RunPage", "Stopped", "entry_of", "run_of"]


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


def entry_of(entry: dict[str, Any], status: Status | None) -> Entry:
    """A line of the index as a value; its own status where none is given."""
    known = {name: entry[name] for name in ("sessionId", "tmuxSession", "createdAt", "workingDir", "mode")}
    return Entry.model_validate({**known, "status": status or entry["status"]})


def run_of(layout: Layout, entry: Entry, status: Status) -> Run:
    """A run as a value, with the folders that its entry does not have."""
    return Run(
        session_id=layout.session_id,
        tmux_session=entry.tmux_session,
        working_dir=str(layout.working_dir),
        unit_dir=str(layout.unit_dir),
        workflows_dir=str(layout.workflows_dir),
        created_at=entry.created_at,
        status=status,
        session_mode=layout.mode,
    )
