"""Runs of a team of agents: the order of the steps of each operation, and its undoing."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from mas import agents, lifecycle, processes, recovery, workspace
from mas.answers import Entry, Run, RunDetails, RunPage, Stopped, entry_of, run_of
from mas.errors import (
    AgentNotFound,
    AgentNotRunning,
    IdempotencyMismatch,
    RunActive,
    RunNotActive,
    RunNotFound,
    TmuxFailed,
    WorkspaceGone,
)
from mas.lifecycle import Place, attempting
from mas.locks import lock_folder
from mas.messages import check_text, deliver
from mas.registry import Claim, Registry, make_private_folder, now
from mas.tmux import Tmux
from sandbox.events import SandboxLogger

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO
    from pathlib import Path

    from mas.agents import AgentView
    from mas.config import Mode, RunConfig
    from mas.registry import Status
    from mas.settings import Settings
    from mas.tmux import Pane, Session
    from mas.workspace import Layout
    from sandbox.sandbox import BaseSandbox

__all__ = ["Runs"]

OUTSIDE_SECONDS = 30.0


class Runs:
    """Every run under one MAS_ROOT; holds nothing between calls, so many processes may use the same root."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        logger = SandboxLogger()
        self._place = Place(settings, Registry(settings.root, logger), Tmux(settings.tmux_socket), logger)

    def init(self) -> tuple[Path, ...]:
        """Put the templates into MAS_ROOT where it has none; gives the folders that were made."""
        with workspace.disk_work(self.settings.root):
            return tuple(workspace.install_templates(self.settings.root))

    def create(
        self,
        config: RunConfig,
        *,
        mode: Mode | None = None,
        session_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Run:
        """Make a run and start its agents, all or nothing.

        The mode is `config.session_mode`, else `mode`, else the setting. Answers when every pane's process
        exists; agents get their prompts when they are ready. The same key within a day gives the same run,
        also while the first is still being made. Raises LegacyRunning, SessionIdTaken, InvalidSessionId,
        IdempotencyMismatch, TmuxError or WorkspaceFailed.
        """
        chosen = config.session_mode or mode or self.settings.session_mode
        if idempotency_key is None:
            return self._create(config, chosen, session_id)
        digest = _digest({"config": config.as_received(), "mode": chosen, "sessionId": session_id})
        with self._place.registry.claim(idempotency_key) as claim:
            return self._claimed(claim, digest) or self._create(config, chosen, session_id, (claim, digest))

    def list(self, *, status: Status | None = None, limit: int | None = None, offset: int = 0) -> RunPage:
        """The runs in order of creation, each verified: one that died is reported and recorded as stopped."""
        found = [entry for entry in self._verified() if status in (None, entry.status)]
        page = found[offset:] if limit is None else found[offset : offset + limit]
        return RunPage(sessions=tuple(page), total=len(found), timestamp=now())

    def show(self, session_id: str) -> RunDetails:
        """One run with its agents; RunNotFound."""
        entry, layout, session = self._look_up(session_id)
        panes = self._place.tmux.panes(session) if session else []
        by_agent = {pane.agent_id: pane for pane in panes}
        views = [
            agents.view(layout, launch, by_agent.get(agent_id))
            for agent_id, launch in agents.launches(layout).items()
        ]
        return RunDetails(
            **entry.model_dump(by_alias=False),
            agents=tuple(views),
            windows=tuple(dict.fromkeys(pane.window for pane in panes)),
            attach_command=self._place.tmux.attach_command(entry.tmux_session),
        )

    def stop(self, session_id: str) -> Stopped:
        """End the agents and every process they left behind, keep the workspace; may be called twice.

        RunNotFound. From inside the run it is the tmux server that does it, and the caller ends too.
        """
        with self._held(session_id) as (layout, _):
            inside = os.environ.get(processes.MARK_NAME) == session_id
            if not inside:
                self._stop(layout)
        if inside:
            self._stop_from_outside(session_id)
        return Stopped(session_id=session_id, status="stopped", timestamp=now())

    def restore(self, session_id: str) -> Run:
        """Start the agents of a stopped run again in its workspace.

        RunNotFound, WorkspaceGone, RunActive, TmuxError.
        """
        self._place.tmux.check()
        with self._held(session_id) as (layout, entry), ExitStack() as undo:
            self._layout_with_folder(session_id)
            self._refuse_active(session_id)
            with lifecycle.legacy_alone(self._place, layout.mode):
                config = lifecycle.read_config(layout)
                lifecycle.end_agents(self._place, layout)
                lifecycle.mark(layout, "restoring")
                # A stop or deletion that a crash cut short is over: it must not be finished later.
                lifecycle.unmark(layout, "stopping", "deleting")
                undo.callback(lifecycle.unmark, layout, "restoring")
                undo.callback(attempting(self._place, lifecycle.end_agents, self._place, layout))
                lifecycle.start_agents(self._place, layout, config, entry.tmux_session)
            self._place.registry.set_status([session_id], "active")
            undo.pop_all()
            lifecycle.unmark(layout, "restoring")
        return run_of(layout, entry, "active")

    def delete(self, session_id: str) -> None:
        """Remove a stopped run with its workspace; RunNotFound, RunActive, sandbox.SessionInUse."""
        with self._held(session_id) as (layout, _):
            self._refuse_active(session_id)
            lifecycle.mark(layout, "deleting")
            with ExitStack() as undo:
                undo.callback(lifecycle.unmark, layout, "deleting")
                lifecycle.end_agents(self._place, layout)
                lifecycle.remove_workspace(self._place, layout)
                undo.pop_all()
            lifecycle.remove(self._place, layout)

    def send(self, session_id: str, target: str, text: str, *, submit: bool = True) -> None:
        """Type `text` into an agent's pane, then Enter, once the agent has had its prompt.

        RunNotFound, AgentNotFound, RunNotActive, AgentNotRunning, InvalidMessage.
        """
        data = check_text(text)
        layout, launch, pane = self._running_agent(session_id, target)
        agents.wait_until_ready(layout, launch, pane)
        if not agents.view(layout, launch, pane).alive:
            raise AgentNotRunning(session_id, target)
        try:
            deliver(self._place.tmux, pane, data, submit=submit)
        except TmuxFailed:
            self._running_agent(session_id, target)  # says so where the run has stopped meanwhile
            raise

    def restart_agent(self, session_id: str, agent_id: str) -> AgentView:
        """End one agent with its processes and start it again in its pane.

        RunNotFound, AgentNotFound, WorkspaceGone, RunNotActive.
        """
        with self._held(session_id):
            self._layout_with_folder(session_id)
            layout, launch, pane = self._running_agent(session_id, agent_id)
            if not pane.dead:
                processes.ask_to_stop([processes.identify(pane.pid)])
            processes.end(agents.recorded_processes(layout, agent_id))
            agents.forget(layout, agent_id)
            self._place.tmux.respawn(pane, agents.pane_start(layout, launch))
            _, _, pane = self._running_agent(session_id, agent_id)
            return agents.view(layout, launch, pane)

    def log(self, session_id: str, agent_id: str, *, tail: int | None = None) -> bytes:
        """What the agent's pane printed, or its last `tail` lines; RunNotFound, AgentNotFound."""
        layout = self._layout_with_agent(session_id, agent_id)
        return agents.read_log(layout, agent_id, tail)

    def follow(self, session_id: str, agent_id: str) -> Iterator[bytes]:
        """What the agent's pane prints from now on, until the run stops; RunNotFound, AgentNotFound at once.

        Gives b"" about once a second while nothing is printed, so that the caller can notice that nobody
        listens.
        """
        layout = self._layout_with_agent(session_id, agent_id)
        return agents.follow_log(layout, agent_id, lambda: session_id not in self._place.live())

    def sandbox(self, session_id: str) -> BaseSandbox:
        """The run's sandbox, to be closed by the caller; RunNotFound, WorkspaceGone."""
        layout = self._layout_with_folder(session_id)
        from sandbox.sessions.lifecycle import get_session_sandbox

        return get_session_sandbox(
            session_id,
            workspace_root=layout.sandbox_root,
            host_only=workspace.CONTROL_FILES,
            logger=self._place.logger,
        )

    def list_files(self, session_id: str, *, pattern: str | None = None) -> tuple[str, ...]:
        """The files of the run's sandbox, control files left out; RunNotFound, WorkspaceGone.

        Names that are not UTF-8 are left out as well: neither sandboxed code nor a request can say them.
        """
        from sandbox.sessions.files import list_session_files

        paths = list_session_files(session_id, self._layout_with_folder(session_id).sandbox_root, pattern)
        return tuple(path for path in paths if path.encode(errors="ignore") == os.fsencode(path))

    def read_file(self, session_id: str, path: str) -> bytes:
        """A file of the run's sandbox; RunNotFound, and the errors of sandbox.read_session_file."""
        from sandbox.sessions.files import read_session_file

        return read_session_file(session_id, path, self._layout_with_folder(session_id).sandbox_root)

    def open_file(self, session_id: str, path: str) -> FileIO:
        """The same, open, to be read piece by piece and closed by the caller."""
        from sandbox.sessions.files import open_session_file

        return open_session_file(session_id, path, self._layout_with_folder(session_id).sandbox_root)

    def write_file(self, session_id: str, path: str, data: bytes) -> None:
        """Write a file of the run's sandbox; RunNotFound, and the errors of sandbox.write_session_file."""
        from sandbox.sessions.files import write_session_file

        write_session_file(session_id, path, data, self._layout_with_folder(session_id).sandbox_root)

    def delete_file(self, session_id: str, path: str, *, recursive: bool = False) -> None:
        """Remove a file of the run's sandbox; RunNotFound, and the errors of sandbox.delete_session_path."""
        from sandbox.sessions.files import delete_session_path

        delete_session_path(
            session_id, path, self._layout_with_folder(session_id).sandbox_root, recursive=recursive
        )

    def reconcile(self) -> None:
        """Make registry, folders, tmux and processes agree after a crash: call it when a server starts.

        What lives is adopted, what died is marked stopped, what was half made is removed, what was half
        stopped or half deleted is finished. Other processes may be at work in the same root meanwhile.
        """
        recovery.reconcile(self._place)

    def _create(
        self, config: RunConfig, mode: Mode, wanted: str | None, claimed: tuple[Claim, str] | None = None
    ) -> Run:
        place, created_at = self._place, now()
        place.tmux.check()
        with ExitStack() as held, ExitStack() as undo:
            held.enter_context(lifecycle.legacy_alone(place, mode))
            layout = held.enter_context(lifecycle.reserving(place, mode, wanted))
            undo.callback(attempting(place, lifecycle.remove_state, layout))
            if claimed is not None:
                claimed[0].keep(layout.session_id, claimed[1])
            lifecycle.make_workspace(place, layout, config, created_at, undo)
            undo.callback(attempting(place, lifecycle.end_agents, place, layout))
            lifecycle.start_agents(place, layout, config, layout.tmux_session)
            undo.callback(attempting(place, place.registry.remove, layout.session_id))
            entry = place.registry.add(layout, "active", created_at)
            undo.pop_all()
            lifecycle.unmark(layout, "creating")
        return run_of(layout, Entry.model_validate(entry), "active")

    def _claimed(self, claim: Claim, digest: str) -> Run | None:
        """The run that was made under a key before, finished or undone where its maker died."""
        if claim.session_id is None:
            return None
        recovery.settle(self._place, claim.session_id)
        if self._place.registry.find(claim.session_id) is None:
            return None
        if claim.digest != digest:
            raise IdempotencyMismatch(claim.session_id)
        entry, layout, _ = self._look_up(claim.session_id)
        return run_of(layout, entry, entry.status)

    def _stop(self, layout: Layout) -> None:
        lifecycle.mark(layout, "stopping")
        lifecycle.end_agents(self._place, layout)
        self._place.registry.set_status([layout.session_id], "stopped")
        lifecycle.unmark(layout, "stopping")

    def _stop_from_outside(self, session_id: str) -> None:
        """Have the tmux server run the stop: whoever is inside the run would be ended half-way."""
        variables = {"MAS_ROOT": str(self.settings.root), "MAS_TMUX_SOCKET": self.settings.tmux_socket}
        self._place.tmux.run_outside([sys.executable, "-P", "-m", "mas", "stop", session_id], variables)
        deadline = time.monotonic() + OUTSIDE_SECONDS
        while time.monotonic() < deadline and session_id in self._place.live():
            time.sleep(0.1)

    def _verified(self) -> Iterator[Entry]:
        """Every entry with its true status, which is recorded where it differs; two calls of tmux at most."""
        place, entries = self._place, self._place.registry.entries()
        live = place.live() if entries else {}
        true = {key: recovery.true_status(place, entry, live) for key, entry in entries.items()}
        changed = {key: entry for key, entry in entries.items() if entry["status"] != true[key]}
        if changed:
            recovery.record_statuses(place, changed)
        for key, entry in entries.items():
            yield entry_of(entry, true[key])

    def _look_up(self, session_id: str) -> tuple[Entry, Layout, Session | None]:
        """A run, verified, with its tmux session when it has one."""
        entry = self._find(session_id)
        live = self._place.live()
        status = recovery.true_status(self._place, entry, live)
        if status != entry["status"]:
            recovery.record_statuses(self._place, {session_id: entry})
        session = live.get(session_id) if status == "active" else None
        return entry_of(entry, status), self._place.registry.layout_of(entry), session

    @contextmanager
    def _held(self, session_id: str) -> Iterator[tuple[Layout, Entry]]:
        """Hold a run alone; RunNotFound also when it is deleted while this waits."""
        layout = self._layout(session_id)
        make_private_folder(layout.state_dir)
        try:
            with lock_folder(layout.state_dir):
                yield layout, entry_of(self._find(session_id), None)
        except FileNotFoundError as error:
            if layout.state_dir.exists():
                raise
            raise RunNotFound(session_id) from error

    def _refuse_active(self, session_id: str) -> None:
        if session_id in self._place.live():
            raise RunActive(session_id)

    def _find(self, session_id: str) -> dict[str, Any]:
        entry = self._place.registry.find(session_id)
        if entry is None:
            raise RunNotFound(session_id)
        return entry

    def _layout(self, session_id: str) -> Layout:
        return self._place.registry.layout_of(self._find(session_id))

    def _layout_with_folder(self, session_id: str) -> Layout:
        """The layout of a run whose folder is there; RunNotFound, WorkspaceGone."""
        layout = self._layout(session_id)
        if not layout.folder.is_dir():
            raise WorkspaceGone(session_id)
        return layout

    def _layout_with_agent(self, session_id: str, agent_id: str) -> Layout:
        layout = self._layout(session_id)
        if agent_id not in agents.launches(layout):
            raise AgentNotFound(session_id, agent_id)
        return layout

    def _running_agent(self, session_id: str, agent_id: str) -> tuple[Layout, agents.Launch, Pane]:
        """An agent with its pane; RunNotFound, AgentNotFound, RunNotActive."""
        layout = self._layout_with_agent(session_id, agent_id)
        session = self._place.live().get(session_id)
        if session is None:
            raise RunNotActive(session_id)
        for pane in self._place.tmux.panes(session):
            if pane.agent_id == agent_id:
                return layout, agents.launches(layout)[agent_id], pane
        raise AgentNotRunning(session_id, agent_id)


def _digest(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
