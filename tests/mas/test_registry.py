from __future__ import annotations

import json
import os
import uuid

import pytest

from mas.errors import WorkspaceFailed
from mas.registry import Registry
from mas.runs import Runs
from mas.workspace import Layout
from sandbox.events import SandboxLogger

PROCESSES = 20


class Recorded:
    """A logger that keeps what it is told."""

    def __init__(self):
        self.events = []

    def __getattr__(self, level):
        return lambda event, **fields: self.events.append((level, event, fields))


@pytest.fixture
def recorded():
    return Recorded()


@pytest.fixture
def registry(tmp_path, recorded):
    return Registry(tmp_path, SandboxLogger(recorded))


def add(registry, mode="isolated", status="active", created_at="2026-01-02T03:04:05Z"):
    layout = Layout(registry.root, str(uuid.uuid4()), mode)
    layout.folder.mkdir(parents=True)
    registry.folder.joinpath(".mas").mkdir(exist_ok=True)
    registry.add(layout, status, created_at)
    return layout


def in_processes(count, work):
    """Run `work(number)` in as many processes at once; gives their exit codes."""
    pids = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                work(number)
                os._exit(0)
            except BaseException:
                os._exit(1)
        pids.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def test_runs_made_and_stopped_by_many_processes_at_once_are_all_right(site, team):
    def work(number):
        runs = Runs(site.settings)
        run = runs.create(team())
        if number % 2:
            runs.stop(run.session_id)

    assert in_processes(PROCESSES, work) == [0] * PROCESSES
    entries = site.runs.list().sessions
    assert sorted(entry.session_id for entry in entries) == site.folders()
    assert [entry.status for entry in entries].count("active") == PROCESSES / 2
    active = [entry.tmux_session for entry in entries if entry.status == "active"]
    assert sorted(site.tmux_sessions()) == sorted(active)


def test_no_entry_is_lost_between_processes(registry):
    def work(number):
        for _ in range(10):
            add(registry)

    assert in_processes(8, work) == [0] * 8
    assert len(registry.entries()) == 80


def test_readers_never_see_half_an_index(registry):
    add(registry)
    pid = os.fork()
    if pid == 0:
        for _ in range(100):
            add(registry)
        os._exit(0)
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        assert registry._read() is not None
    assert len(registry.entries()) == 101


def test_unknown_fields_survive(registry):
    layout = add(registry)
    document = json.loads(registry.index.read_text())
    document["sessions"][0]["owner"] = "me"
    document["theme"] = {"dark": True}
    registry.index.write_text(json.dumps(document))
    registry.set_status([layout.session_id], "stopped")
    add(registry)
    after = json.loads(registry.index.read_text())
    assert after["theme"] == {"dark": True}
    assert (after["sessions"][0]["owner"], after["sessions"][0]["status"]) == ("me", "stopped")


def test_a_status_is_written_to_both_files(registry):
    layout = add(registry)
    registry.set_status([layout.session_id], "stopped")
    assert registry.find(layout.session_id)["status"] == "stopped"
    assert registry.read_session_file(layout.folder)["STATUS"] == "stopped"


def test_a_corrupt_index_is_kept_aside_with_a_warning(registry, recorded):
    layout = add(registry, status="stopped")
    registry.index.write_text("broken")
    assert list(registry.entries()) == [layout.session_id]
    (kept,) = registry.folder.glob(".sessions.index.corrupt-*")
    assert kept.read_text() == "broken"
    assert recorded.events == [
        ("warning", "registry.rebuilt", {"index": str(registry.index), "kept": str(kept), "sessions": 1})
    ]


def test_a_first_index_is_made_without_a_warning(registry, recorded):
    assert registry.entries() == {}
    assert recorded.events == []
    assert json.loads(registry.index.read_text())["version"] == "1.0"


@pytest.mark.parametrize(
    "text",
    [
        "SESSION_ID={id}\nSTATUS=$(touch owned)\n",
        "SESSION_ID={id}\nSTATUS=`touch owned`\n",
        "touch owned\nSESSION_ID={id}\nSTATUS=stopped; touch owned\n",
    ],
)
def test_a_session_file_is_read_and_never_run(registry, monkeypatch, text):
    monkeypatch.chdir(registry.root)
    layout = add(registry)
    (layout.folder / ".session").write_text(text.format(id=layout.session_id))
    registry.index.unlink()
    assert registry.find(layout.session_id)["sessionId"] == layout.session_id
    assert not (registry.root / "owned").exists()


def test_a_session_file_that_names_another_session_is_not_believed(registry):
    layout = add(registry)
    (layout.folder / ".session").write_text(f"SESSION_ID={uuid.uuid4()}\n")
    registry.index.unlink()
    assert registry.entries() == {}


def test_no_temporary_files_are_left(registry):
    layout = add(registry)
    registry.set_status([layout.session_id], "stopped")
    assert sorted(path.name for path in layout.folder.iterdir()) == [".session"]
    assert list((registry.folder / ".mas").iterdir()) == []


def test_a_disk_that_refuses_is_told(registry):
    registry.folder.write_text("in the way")
    with pytest.raises(WorkspaceFailed), registry.transaction():
        pass


def test_keys_are_forgotten_after_a_day(registry):
    with registry.claim("old") as claim:
        claim.keep("id", "digest")
    with registry.claim("old") as claim:
        assert claim.session_id == "id"
    for path in (registry.folder / ".mas" / "keys").iterdir():
        os.utime(path, (0, 0))
    with registry.claim("other"):
        pass
    with registry.claim("old") as claim:
        assert claim.session_id is None
