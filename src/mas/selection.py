"""Which runs a command is about, and which of their sessions it means."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mas.client import Client, find_server
from mas.config import default_team, load_config
from mas.errors import LegacyRunning, MasError
from mas.runs import Runs
from mas.settings import read_settings

if TYPE_CHECKING:
    from mas.answers import Entry, Run
    from mas.config import RunConfig
    from mas.settings import Settings
    from sandbox.result import SandboxResult

__all__ = [
    "choose",
    "create",
    "execute",
    "find_runs",
    "is_running_already",
    "known_session",
    "local_runs",
    "read_team",
    "read_text",
]


def local_runs(settings: Settings) -> Runs:
    """The runs under MAS_ROOT, without a server."""
    return Runs(settings)


def find_runs() -> Runs | Client:
    """The runs behind the API where one serves this MAS_ROOT, else the same ones directly."""
    settings = read_settings()
    return find_server(settings) or local_runs(settings)


def choose(runs: Runs | Client, session_id: str | None, tmux: str | None) -> str:
    """The session that a command means."""
    if session_id is not None:
        return session_id
    if tmux is not None:
        return _named(runs, tmux)
    inside = read_settings().session_id
    if inside is not None:
        return inside
    active = runs.list(status="active").sessions
    if not active:
        raise MasError("no session is active; mas start starts one, mas list shows those that stopped")
    if len(active) > 1:
        ids = "".join(f"\n  {entry.session_id}" for entry in active)
        raise MasError(f"{len(active)} sessions are active; name one with --session:{ids}")
    return active[0].session_id


def _named(runs: Runs | Client, tmux: str) -> str:
    """The active session of a tmux name, else the latest."""
    found = [entry for entry in runs.list().sessions if entry.tmux_session == tmux]
    if not found:
        raise MasError(f"no session is named {tmux}; mas start starts one, mas list shows which there are")
    return max(found, key=lambda entry: (entry.status == "active", entry.created_at)).session_id


def read_team(file: str | None, mode: str | None) -> RunConfig:
    """The team of a file, - being standard input, else the default one; `mode` wins over the file's."""
    team = default_team()
    if file is not None:
        team = load_config(sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes())
    return team if mode is None else load_config({**team.as_received(), "sessionMode": mode})


def known_session(settings: Settings) -> Entry | None:
    """The session that MAS_SESSION_ID names, where it exists."""
    if settings.session_id is None:
        return None
    entries = local_runs(settings).list().sessions
    return next((entry for entry in entries if entry.session_id == settings.session_id), None)


def create(team: RunConfig, settings: Settings) -> Run:
    """A new run, by the API where it serves this MAS_ROOT; one whose id is given is made here."""
    server = None if settings.session_id else find_server(settings)
    if server is None:
        return local_runs(settings).create(team, session_id=settings.session_id)
    return server.create(_with_command(team, settings.agent_command), mode=settings.session_mode)


def is_running_already(error: MasError) -> bool:
    """Whether a start failed because the one legacy session exists, which is no failure for a person."""
    return isinstance(error, LegacyRunning) or getattr(error, "code", None) == "legacy-running"


def _with_command(team: RunConfig, command: str | None) -> RunConfig:
    """The team with this shell's MAS_AGENT_COMMAND written out: the server has an environment of its own."""
    if command is None:
        return team
    document = team.as_received()
    agents = document["agents"]
    members = [agents[name] for name in ("metaManager",) if name in agents]
    for unit in agents["units"]:
        members += [unit["manager"], *unit["workers"]]
    for member in members:
        member.setdefault("command", command)
    return load_config(document)


def execute(runs: Runs | Client, session_id: str, code: str) -> SandboxResult:
    """Run code in a session's sandbox, here or by the API."""
    if isinstance(runs, Client):
        return runs.execute(session_id, code)
    with runs.sandbox(session_id) as sandbox:
        return sandbox.execute(code)


def read_text(text: str) -> str:
    """An argument as it is, or standard input for -, which must be UTF-8."""
    return sys.stdin.buffer.read().decode() if text == "-" else text
