"""One agent in one pane: what is started there, what it is doing, what it printed."""

from __future__ import annotations

import json
import os
import shlex
import stat
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict

from mas.config import AgentId, RunConfig, Value, split_command
from mas.processes import Process, is_alive
from mas.registry import timestamp
from mas.tmux import Pane, PaneStart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mas.settings import Settings
    from mas.workspace import Layout

__all__ = [
    "AgentState",
    "AgentView",
    "Launch",
    "follow_log",
    "forget",
    "launches",
    "pane_start",
    "plan",
    "prepare",
    "read_log",
    "read_record",
    "recorded_processes",
    "recorded_supervisors",
    "view",
    "wait_until_ready",
]

AgentState = Literal["starting", "running", "exited", "dead"]

# -P: the agent's folder is open to sandboxed code, which must not choose what the host imports.
BUILT_IN = (sys.executable, "-P", "-m", "mas.agent")
SUPERVISOR = Path(__file__).with_name("supervisor.py")
CHUNK_BYTES = 65_536
GENERATION_MAX_BYTES = 10_000_000
"""Read of one generation of a log, twice what a supervisor writes; sandboxed code can make it any size."""
POLL_SECONDS = 0.05
HEARTBEAT_SECONDS = 1.0


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


class Launch(Value):
    """How one agent is started: what its supervisor reads."""

    model_config = ConfigDict(extra="ignore")  # a newer version may have written it

    agent_id: AgentId
    window: str
    argv: tuple[str, ...]
    cwd: str
    within: str
    """The folder from which `cwd` is reached without following a link; empty where links are trusted."""
    env: dict[str, str]
    log: str
    prompt: str
    ready_seconds: float


def plan(layout: Layout, config: RunConfig, settings: Settings) -> list[Launch]:
    """How each agent of a configuration is started, in the order of the panes."""
    fallback = split_command(settings.agent_command) if settings.agent_command else list(BUILT_IN)
    environment = {**layout.environment(), "MAS_TMUX_SOCKET": settings.tmux_socket}
    return [
        Launch(
            agent_id=agent.id,
            window=window,
            argv=tuple(split_command(agent.command) if agent.command else fallback),
            cwd=str(layout.unit_dir / agent.id),
            within=str(layout.folder) if layout.mode == "isolated" else "",
            env={**environment, "MAS_AGENT_ID": agent.id},
            log=str(_log_path(layout, agent.id)),
            prompt=agent.prompt,
            ready_seconds=settings.agent_ready_seconds,
        )
        for window, agents in config.windows()
        for agent in agents
    ]


def prepare(layout: Layout, planned: list[Launch]) -> None:
    """Write what the supervisors read, and forget what earlier ones recorded."""
    for path in [*layout.state_dir.glob("launch-*.json"), *layout.state_dir.glob("agent-*.json")]:
        path.unlink()
    for launch in planned:
        path = layout.state_dir / f"launch-{launch.agent_id}.json"
        temporary = path.with_suffix(".tmp")
        temporary.touch(mode=0o600)
        temporary.write_text(launch.model_dump_json(by_alias=True), encoding="utf-8")
        temporary.rename(path)


def launches(layout: Layout) -> dict[str, Launch]:
    """How each agent of the run was started, by id; one whose file a power failure emptied is left out."""
    paths = sorted(layout.state_dir.glob("launch-*.json"))
    found = [Launch.model_validate_json(text) for path in paths if (text := path.read_bytes())]
    return {launch.agent_id: launch for launch in found}


def pane_start(layout: Layout, launch: Launch) -> PaneStart:
    """The pane of an agent: its supervisor, which then starts it."""
    argv = (sys.executable, "-I", "-S", str(SUPERVISOR), str(layout.state_dir), launch.agent_id)
    return PaneStart(launch.agent_id, Path(launch.cwd), argv)


def view(layout: Layout, launch: Launch, pane: Pane | None) -> AgentView:
    """What an agent is doing, from its pane and what its supervisor recorded."""
    record = read_record(layout, launch.agent_id)
    state = _state(record, pane)
    return AgentView(
        agent_id=launch.agent_id,
        window=pane.window if pane else None,
        pane=pane.pane_id if pane else None,
        alive=state in ("starting", "running"),
        exit_code=record.get("exitCode") if state == "exited" else None,
        command=shlex.join(launch.argv),
        state=state,
        last_output_at=_last_output_at(layout, launch.agent_id),
    )


def read_record(layout: Layout, agent_id: str) -> dict[str, Any]:
    """What the supervisor recorded last; empty before it started."""
    try:
        record: dict[str, Any] = json.loads((layout.state_dir / f"agent-{agent_id}.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return record


def forget(layout: Layout, agent_id: str) -> None:
    """Forget what was recorded, before the agent is started again."""
    (layout.state_dir / f"agent-{agent_id}.json").unlink(missing_ok=True)


def recorded_processes(layout: Layout, agent_id: str) -> list[Process]:
    """The supervisor and the agent that were recorded, as far as they live."""
    record = read_record(layout, agent_id)
    found = (_process(record.get("supervisor")), _process(record))
    return [process for process in found if process is not None and is_alive(process)]


def recorded_supervisors(layout: Layout) -> set[Process]:
    """The supervisors that left a record and live."""
    ids = [path.stem.removeprefix("agent-") for path in layout.state_dir.glob("agent-*.json")]
    found = [_process(read_record(layout, agent_id).get("supervisor")) for agent_id in ids]
    return {process for process in found if process is not None and is_alive(process)}


def wait_until_ready(layout: Layout, launch: Launch, pane: Pane) -> None:
    """Wait until the agent has its prompt, so that nothing gets there before it, or until it ended."""
    deadline = time.monotonic() + launch.ready_seconds + HEARTBEAT_SECONDS
    while time.monotonic() < deadline:
        record = read_record(layout, launch.agent_id)
        if record.get("ready") or _state(record, pane) in ("exited", "dead"):
            return
        time.sleep(POLL_SECONDS)


def read_log(layout: Layout, agent_id: str, tail: int | None) -> bytes:
    """What the pane printed, the older generation first; the last `tail` lines of it when given."""
    name = _log_path(layout, agent_id).name
    try:
        with _logs_folder(layout) as folder:
            printed = b"".join(_read_end(part, folder) for part in (f"{name}.1", name))
    except OSError:
        return b""  # sandboxed code can remove its logs, or put something else in their place
    if tail is None:
        return printed
    return b"".join(printed.splitlines(keepends=True)[-tail:]) if tail else b""


def follow_log(layout: Layout, agent_id: str, is_over: Callable[[], bool]) -> Iterator[bytes]:
    """What is printed from now on; b"" when nothing was for a while, and the end when `is_over` says so."""
    name = _log_path(layout, agent_id).name
    try:
        with _logs_folder(layout) as folder:
            yield from _follow(name, folder, is_over)
    except OSError:
        return  # as for read_log


def _follow(name: str, folder: int, is_over: Callable[[], bool]) -> Iterator[bytes]:
    file = _open_log(name, folder)
    if file is not None:
        os.lseek(file, 0, os.SEEK_END)
    heartbeat = time.monotonic() + HEARTBEAT_SECONDS
    try:
        while True:
            data = os.read(file, CHUNK_BYTES) if file is not None else b""
            if data:
                yield data
                continue
            file, changed = _reopen(file, name, folder)
            if not changed and time.monotonic() > heartbeat:
                heartbeat = time.monotonic() + HEARTBEAT_SECONDS
                if is_over():
                    return
                yield b""
            elif not changed:
                time.sleep(POLL_SECONDS)
    finally:
        if file is not None:
            os.close(file)


def _reopen(file: int | None, name: str, folder: int) -> tuple[int | None, bool]:
    """The log that has the name now, after the one that was followed is read to its end."""
    newer = _open_log(name, folder)
    if newer is None:
        return file, False
    if file is not None and os.path.sameopenfile(file, newer):
        os.close(newer)
        return file, False
    if file is not None:
        os.close(file)
    return newer, True


@contextmanager
def _logs_folder(layout: Layout) -> Iterator[int]:
    """The logs, open; sandboxed code can reach them, so a link in their place is not followed."""
    descriptor = os.open(layout.logs_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_log(name: str, folder: int) -> int | None:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def _read_end(name: str, folder: int) -> bytes:
    descriptor = _open_log(name, folder)
    if descriptor is None:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(0, os.fstat(descriptor).st_size - GENERATION_MAX_BYTES))
        return file.read(GENERATION_MAX_BYTES)


def _log_path(layout: Layout, agent_id: str) -> Path:
    return layout.logs_dir / f"agent-{agent_id}.log"


def _state(record: dict[str, Any], pane: Pane | None) -> AgentState:
    supervisor, agent = _process(record.get("supervisor")), _process(record)
    if pane is not None and not pane.dead and (supervisor is None or supervisor[0] != pane.pid):
        return "starting"
    if record.get("state") == "exited":
        return "exited"
    return "running" if agent is not None and is_alive(agent) else "dead"


def _process(facts: dict[str, Any] | None) -> Process | None:
    return (facts["pid"], facts["start"]) if facts and "pid" in facts else None


def _last_output_at(layout: Layout, agent_id: str) -> str | None:
    """When the log was last written."""
    try:
        facts = os.stat(_log_path(layout, agent_id), follow_symlinks=False)  # noqa: PTH116 - Path.stat reads worse
    except OSError:
        return None
    return timestamp(facts.st_mtime) if facts.st_size else None
