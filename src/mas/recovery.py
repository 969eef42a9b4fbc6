"""What a crash left: adopted where it lives, finished or removed where it was half done."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from mas import lifecycle, processes
from mas.config import MODES
from mas.locks import try_lock_folder
from mas.registry import TEMPORARY_PREFIX, UUID4, Status, make_private_folder
from mas.workspace import Layout
from sandbox.sessions.creation import open_root
from sandbox.sessions.removal import sweep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from mas.lifecycle import Place
    from mas.tmux import Session

__all__ = ["reconcile", "record_statuses", "settle", "true_status"]

STALE_SECONDS = 3600
ORPHAN_SECONDS = 1.0
CLIENT_SECONDS = 20.0  # longer than a call of tmux may take
POLL_SECONDS = 0.02


def reconcile(place: Place) -> None:
    """Make registry, folders, tmux and processes agree; what another process is working on is left to it.

    What cannot be put right is logged: it must not keep a server from starting.
    """
    if not place.registry.folder.is_dir():
        return
    for step in (
        _sweep_folders,
        _remove_stale_files,
        _settle_all,
        _adopt_folders,
        _end_strangers,
        _finish_dead_runs,
    ):
        lifecycle.attempting(place, step, place)()


def _settle_all(place: Place) -> None:
    for path in sorted(place.registry.scratch.glob("*-*-*-*-*")):
        if UUID4.fullmatch(path.name) and (lifecycle.marks(path) or place.registry.find(path.name) is None):
            lifecycle.attempting(place, settle, place, path.name)()


def settle(place: Place, session_id: str) -> None:
    """Finish or undo what a dead process began with one run."""
    state_dir = Layout(place.root, session_id, "isolated").state_dir
    with _holding_orphan(place, state_dir) as known:
        if known is None:
            return
        begun = lifecycle.marks(state_dir)
        for what, mode in begun.items():
            _settle_one(place, Layout(place.root, session_id, mode), what, known=known)
        if not begun and not known and not _has_folder(place, session_id):
            lifecycle.remove_state(Layout(place.root, session_id, "isolated"))


@contextmanager
def _holding_orphan(place: Place, state_dir: Path) -> Iterator[bool | None]:
    """Hold a run that nobody works on, and say whether it has an entry; None when somebody does.

    Asked for a while: what a dead process had just started keeps its locks for a moment.
    """
    deadline = time.monotonic() + ORPHAN_SECONDS
    with ExitStack() as held:
        while True:
            # In a transaction, because an id is reserved in one: a folder that can be locked has no maker.
            with place.registry.transaction() as entries:
                known = state_dir.name in entries
                if held.enter_context(try_lock_folder(state_dir)):
                    break
            if not state_dir.exists() or time.monotonic() > deadline:
                yield None
                return
            time.sleep(POLL_SECONDS)
        yield known


def true_status(place: Place, entry: dict[str, Any], live: dict[str, Session]) -> Status:
    """What a run is, from tmux and the disk."""
    if not place.registry.layout_of(entry).folder.is_dir():
        return "error"
    session = live.get(entry["sessionId"])
    return "active" if session is not None and session.whole else "stopped"


def record_statuses(place: Place, entries: dict[str, dict[str, Any]]) -> None:
    """Record what these runs are now, except those that another process is working on."""
    with ExitStack() as held:
        mine = [entry for entry in entries.values() if held.enter_context(_lock_run(place, entry))]
        live = place.live()
        found: dict[Status, list[str]] = {}
        for entry in mine:
            found.setdefault(true_status(place, entry, live), []).append(entry["sessionId"])
        for status, session_ids in found.items():
            place.registry.set_status(session_ids, status)


def _lock_run(place: Place, entry: dict[str, Any]) -> Any:
    state_dir = place.registry.layout_of(entry).state_dir
    make_private_folder(state_dir)
    return try_lock_folder(state_dir)


def _settle_one(place: Place, layout: Layout, what: str, *, known: bool) -> None:
    place.logger.warning("run.recovered", session_id=layout.session_id, unfinished=what)
    if what == "creating" and known:
        lifecycle.unmark(layout, what)
        return
    _wait_for_clients(layout.session_id)
    session = place.live().get(layout.session_id)
    restored = what == "restoring" and session is not None and session.whole
    if not restored:
        lifecycle.end_agents(place, layout)
    if what in ("creating", "deleting"):
        lifecycle.remove(place, layout)
        return
    place.registry.set_status([layout.session_id], "active" if restored else "stopped")
    lifecycle.unmark(layout, what)


def _wait_for_clients(session_id: str) -> None:
    """Wait for calls of tmux that outlived whoever made them: they may still start what is to be ended."""
    deadline = time.monotonic() + CLIENT_SECONDS
    while processes.callers_of_tmux(session_id) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _adopt_folders(place: Place) -> None:
    """Register runs that have a folder and no entry."""
    for layout, facts in list(place.registry.session_folders()):
        if place.registry.find(layout.session_id) is not None:
            continue
        with _lock_run(place, {"sessionId": layout.session_id, "mode": layout.mode}) as held:
            if held and place.registry.find(layout.session_id) is None:
                place.registry.adopt(layout, facts)


def _end_strangers(place: Place) -> None:
    """End tmux sessions of this root that belong to no run."""
    for session_id in place.live():
        state_dir = Layout(place.root, session_id, "isolated").state_dir
        if UUID4.fullmatch(session_id) and place.registry.find(session_id) is None:
            make_private_folder(state_dir)
            with try_lock_folder(state_dir) as held:
                if held and place.registry.find(session_id) is None:
                    lifecycle.end_agents(place, Layout(place.root, session_id, "isolated"))
                    lifecycle.remove_state(Layout(place.root, session_id, "isolated"))


def _finish_dead_runs(place: Place) -> None:
    """Record what each run is, and end what dead ones left running."""
    entries, live = place.registry.entries(), place.live()
    record_statuses(place, {key: entry for key, entry in entries.items() if _is_outdated(place, entry, live)})
    left = processes.marked(place.root) if entries else {}
    for session_id in entries.keys() & left.keys() - live.keys():
        with _lock_run(place, entries[session_id]) as held:
            if held and session_id not in place.live():
                lifecycle.end_agents(place, place.registry.layout_of(entries[session_id]))


def _is_outdated(place: Place, entry: dict[str, Any], live: dict[str, Session]) -> bool:
    """Whether the index or the .session file says something else than is true."""
    status = true_status(place, entry, live)
    facts = place.registry.read_session_file(place.registry.layout_of(entry).folder) or {}
    return entry["status"] != status or facts.get("STATUS", status) != status


def _sweep_folders(place: Place) -> None:
    """Remove the folders that were on their way in or out."""
    for folder in [Layout(place.root, "", mode).sandbox_root for mode in MODES]:
        if folder.is_dir():
            with open_root(folder) as descriptor:
                sweep(descriptor)


def _remove_stale_files(place: Place) -> None:
    oldest = time.time() - STALE_SECONDS
    for path in place.registry.scratch.glob(f"**/{TEMPORARY_PREFIX}*"):
        try:
            if path.stat().st_mtime < oldest:
                os.unlink(path)  # noqa: PTH108 - a file that is gone meanwhile is no error
        except FileNotFoundError:
            pass


def _has_folder(place: Place, session_id: str) -> bool:
    return any(Layout(place.root, session_id, mode).folder.exists() for mode in MODES)
