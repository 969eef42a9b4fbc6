"""The steps that make, start, end and remove a run, each of which can be undone or done again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mas import agents, processes, workspace
from mas.config import MODES, RunConfig, load_config
from mas.errors import (
    InvalidConfiguration,
    InvalidSessionId,
    LegacyRunning,
    SessionIdTaken,
    WorkspaceFailed,
)
from mas.locks import lock_file, lock_folder
from mas.registry import UUID4, Registry, make_private_folder
from mas.tmux import PaneStart, SessionExists, Tmux
from mas.workspace import CONTROL_FILES, PREFIX_CHARACTERS, Layout
from sandbox.sessions.creation import make_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from mas.agents import Launch
    from mas.config import Mode
    from mas.settings import Settings
    from mas.tmux import Pane, Session
    from sandbox.events import SandboxLogger

__all__ = [
    "Place",
    "attempting",
    "end_agents",
    "legacy_alone",
    "make_workspace",
    "mark",
    "marks",
    "read_config",
    "remove",
    "remove_state",
    "remove_workspace",
    "reserving",
    "start_agents",
    "unmark",
]

MARKS = ("creating", "restoring", "stopping", "deleting")
"""What was begun and is not finished: one file each in the state folder, which survives a crash."""


@dataclass(frozen=True)
class Place:
    """Everything that the runs under one root share."""

    settings: Settings
    registry: Registry
    tmux: Tmux
    logger: SandboxLogger

    @property
    def root(self) -> Path:
        return self.settings.root

    @cached_property
    def root_tag(self) -> str:
        """What marks the tmux sessions of this root among those of others on the same socket."""
        return hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]

    def live(self) -> dict[str, Session]:
        """The tmux sessions of this root's runs by session id, in one call; some may be half made."""
        mine = [session for session in self.tmux.sessions() if session.run.startswith(f"{self.root_tag}:")]
        return {session.run.partition(":")[2]: session for session in mine}


@contextmanager
def reserving(place: Place, mode: Mode, wanted: str | None) -> Iterator[Layout]:
    """A free id, held for the block: nobody else takes it, or one with the same first characters.

    Its state folder is made and marked, so that what a crash leaves can be found and removed.
    """
    names = [session.name.removeprefix("mas-") for session in place.tmux.sessions()]
    with ExitStack() as held:
        with place.registry.transaction() as entries:
            layout = Layout(place.root, _choose_id(place, [*entries, *names], wanted), mode)
            make_private_folder(layout.state_dir)
            held.enter_context(lock_folder(layout.state_dir))
            mark(layout, "creating")
        yield layout


@contextmanager
def legacy_alone(place: Place, mode: Mode) -> Iterator[None]:
    """Hold the one legacy session for the block; LegacyRunning when it exists. Nothing in isolated mode."""
    if mode == "isolated":
        yield
        return
    make_private_folder(place.registry.scratch)
    with lock_file(place.registry.scratch / "legacy.lock"):
        _refuse_second_legacy(place)
        yield


def make_workspace(place: Place, layout: Layout, config: RunConfig, created_at: str, undo: ExitStack) -> None:
    """Make the folder of a run in one rename, and in legacy mode what is missing of the shared folders."""
    with workspace.disk_work(layout.folder):
        if layout.mode == "legacy":
            _complete_shared_folders(layout, config, undo)
        undo.callback(remove_workspace, place, layout)
        fill = _filling(place, layout, config, created_at)
        make_session(
            layout.session_id, layout.sandbox_root, host_only=CONTROL_FILES, fill=fill, logger=place.logger
        )


def start_agents(place: Place, layout: Layout, config: RunConfig, tmux_session: str) -> None:
    """Start every agent in its pane."""
    planned = agents.plan(layout, config, place.settings)
    with workspace.disk_work(layout.state_dir):
        _repair_folders(layout, planned)
        agents.prepare(layout, planned)
    environment = {**layout.environment(), "MAS_TMUX_SOCKET": place.settings.tmux_socket}
    run = f"{place.root_tag}:{layout.session_id}"
    try:
        place.tmux.start(tmux_session, run, _windows(layout, planned), environment)
    except SessionExists as error:
        if layout.mode == "legacy":
            raise LegacyRunning(tmux_session, None) from error
        raise


def end_agents(place: Place, layout: Layout) -> None:
    """End everything that a run has running: ask, kill the tmux session, then end what is left."""
    session = place.live().get(layout.session_id)
    panes = place.tmux.panes(session) if session else []
    processes.ask_to_stop(_supervisors(layout, panes))
    if session is not None:
        place.tmux.kill(session)
    processes.end(processes.marked(layout.root).get(layout.session_id, []))


def remove_workspace(place: Place, layout: Layout) -> None:
    """Remove the folder of a run, also one that is not there."""
    from sandbox.sessions.lifecycle import delete_session_workspace

    if layout.folder.exists():
        delete_session_workspace(layout.session_id, layout.sandbox_root, logger=place.logger)


def remove_state(layout: Layout) -> None:
    """Remove what is kept about a run outside its folder."""
    shutil.rmtree(layout.state_dir, ignore_errors=True)


def remove(place: Place, layout: Layout) -> None:
    """Remove a run whose agents have ended: folder, entry, state, in this order."""
    remove_workspace(place, layout)
    place.registry.remove(layout.session_id)
    remove_state(layout)


def read_config(layout: Layout) -> RunConfig:
    """The configuration that the run was made with."""
    path = layout.folder / "config.json"
    try:
        with workspace.disk_work(path):
            return load_config(path.read_bytes())
    except InvalidConfiguration as error:
        reason = f"this is not the configuration that the session was made with ({error})"
        raise WorkspaceFailed(path, reason, "put it back, or delete the session and start another") from error


def mark(layout: Layout, what: str) -> None:
    """Note what is about to be done; the mode is kept with it, because a folder may not exist yet."""
    (layout.state_dir / what).write_text(layout.mode, encoding="utf-8")


def unmark(layout: Layout, *done: str) -> None:
    """Note that it is done."""
    for what in done:
        (layout.state_dir / what).unlink(missing_ok=True)


def marks(state_dir: Path) -> dict[str, Mode]:
    """What was begun and not finished, with the mode of the run."""
    found: dict[str, Mode] = {}
    for what in MARKS:
        if (state_dir / what).exists():
            found[what] = (
                "legacy" if (state_dir / what).read_text(encoding="utf-8") == "legacy" else "isolated"
            )
    return found


def attempting(place: Place, step: Callable[..., object], *args: object) -> Callable[[], None]:
    """A step of an undoing or a recovery: one that fails is logged, and the others follow all the same."""

    def attempt() -> None:
        try:
            step(*args)
        except Exception as error:  # noqa: BLE001 - whatever it is, the rest must be done
            place.logger.warning("run.step.failed", step=step.__name__.strip("_"), error=str(error))

    return attempt


def _refuse_second_legacy(place: Place) -> None:
    """LegacyRunning where the name is taken, or where a run of this root has the shared folders already."""
    name, sessions = workspace.legacy_session_name(place.root), place.tmux.sessions()
    legacy = {key for key, entry in place.registry.entries().items() if entry["mode"] == "legacy"}
    for session in sessions:
        tag, _, session_id = session.run.partition(":")
        mine = tag == place.root_tag
        if session.name == name or (mine and session_id in legacy):
            elsewhere = bool(tag) and not mine  # a person's own session has no tag at all
            raise LegacyRunning(session.name, session_id if mine else None, elsewhere=elsewhere)


def _choose_id(place: Place, known: Iterable[str], wanted: str | None) -> str:
    folders = [Layout(place.root, "", mode).sandbox_root for mode in MODES]
    on_disk = [path.name for folder in [*folders, place.registry.scratch] for path in _entries_of(folder)]
    taken = {name[:PREFIX_CHARACTERS]: name for name in [*known, *on_disk]}
    if wanted is not None:
        if not UUID4.fullmatch(wanted):
            raise InvalidSessionId(wanted)
        if wanted[:PREFIX_CHARACTERS] in taken:
            raise SessionIdTaken(wanted, taken[wanted[:PREFIX_CHARACTERS]])
        return wanted
    while (drawn := str(uuid.uuid4()))[:PREFIX_CHARACTERS] in taken:
        pass
    return drawn


def _entries_of(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _complete_shared_folders(layout: Layout, config: RunConfig, undo: ExitStack) -> None:
    for folder in workspace.install_templates(layout.root):
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
    for folder in workspace.make_folders(layout.unit_dir.resolve(), config.members()):
        undo.callback(shutil.rmtree, folder, ignore_errors=True)


def _repair_folders(layout: Layout, planned: list[Launch]) -> None:
    """Make what agents or sandboxed code may have removed since the run was made."""
    workspace.make_folders(layout.folder, ["logs"])
    if layout.mode == "isolated":
        workspace.make_folders(layout.folder, ["unit"])
        units = layout.unit_dir
    else:
        workspace.install_templates(layout.root)
        units = layout.unit_dir.resolve()
    workspace.make_folders(units, [launch.agent_id for launch in planned])


def _filling(place: Place, layout: Layout, config: RunConfig, created_at: str) -> Callable[[Path], None]:
    """What puts the first files into the folder of a run, wherever it is being made."""

    def fill(folder: Path) -> None:
        if layout.mode == "isolated":
            workspace.copy_templates(layout.root, folder)
            workspace.make_folders(folder / "unit", config.members())
        (folder / "logs").mkdir(mode=0o700)
        descriptor = os.open(folder / "config.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(config.as_received(), file, indent=2, ensure_ascii=False)
        place.registry.write_session_file(layout, "active", created_at, folder=folder)

    return fill


def _windows(layout: Layout, planned: list[Launch]) -> list[tuple[str, list[PaneStart]]]:
    windows: dict[str, list[PaneStart]] = {}
    for launch in planned:
        windows.setdefault(launch.window, []).append(agents.pane_start(layout, launch))
    return list(windows.items())


def _supervisors(layout: Layout, panes: list[Pane]) -> set[processes.Process]:
    """The supervisors of a run: those that its panes show, and those that left a record."""
    shown = {processes.identify(pane.pid) for pane in panes if pane.agent_id and not pane.dead}
    return shown | agents.recorded_supervisors(layout)
