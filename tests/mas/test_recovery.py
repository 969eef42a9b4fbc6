"""Whatever dies, and whenever: registry, folders, tmux and processes agree after the next start."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
import uuid
from pathlib import Path

import pytest

from mas.runs import Runs

ROUNDS = 50


def in_a_process(work):
    """Run `work` in a child process; gives its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return pid


def index(site):
    path = site.sessions / ".sessions.index"
    return json.loads(path.read_text())["sessions"] if path.exists() else []


def status_in_file(site, entry):
    folder = site.sessions / entry["sessionId"]
    lines = (folder / ".session").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)["STATUS"]


def runs_with_processes(site):
    """The ids of the runs for which any process is at work."""
    found = set()
    for pid in site.processes():
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        found |= {value[11:].decode() for value in variables if value.startswith(b"MAS_RUN_ID=")}
    return found


def assert_agreement(site, eventually):
    entries = index(site)
    active = {entry["sessionId"]: entry["tmuxSession"] for entry in entries if entry["status"] == "active"}
    site.sessions.mkdir(exist_ok=True)
    assert site.folders() == sorted(entry["sessionId"] for entry in entries)
    assert site.state_folders() == site.folders()
    assert [path.name for path in site.sessions.glob(".t*-*")] == []
    assert list((site.sessions / ".mas").glob("*/*ing")) == []
    assert sorted(site.tmux_sessions()) == sorted(active.values())
    assert [entry["status"] for entry in entries] == [status_in_file(site, entry) for entry in entries]
    eventually(lambda: runs_with_processes(site) == set(active), "processes for the active runs alone")


def test_rounds_of_kill_9_while_runs_are_made_stopped_restored_and_deleted(site, team, eventually):
    dice = random.Random(4)
    config = team(workers=2)

    def work():
        runs = Runs(site.settings)
        run = runs.create(config, idempotency_key=str(uuid.uuid4()))
        runs.stop(run.session_id)
        runs.restore(run.session_id)
        runs.stop(run.session_id)
        runs.delete(run.session_id)

    for _ in range(ROUNDS):
        victim = in_a_process(work)
        time.sleep(dice.uniform(0.0, 0.55))  # the moment of the kill is what varies, nothing is waited for
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        site.runs.reconcile()
        assert_agreement(site, eventually)
        assert {entry["status"] for entry in index(site)} <= {"active", "stopped"}
        for entry in index(site):
            site.runs.stop(entry["sessionId"])
            site.runs.delete(entry["sessionId"])


def test_what_lives_is_adopted_and_what_died_is_marked(site, team, eventually):
    alive, dead = site.runs.create(team()), site.runs.create(team())
    site.tmux("kill-session", "-t", f"={dead.tmux_session}")
    Runs(site.settings).reconcile()
    statuses = {entry["sessionId"]: entry["status"] for entry in index(site)}
    assert statuses == {alive.session_id: "active", dead.session_id: "stopped"}
    assert_agreement(site, eventually)


def test_a_run_that_is_being_made_is_left_to_its_maker(site, team):
    maker = in_a_process(lambda: site.runs.create(team(workers=5, meta=True)))
    while os.waitpid(maker, os.WNOHANG) == (0, 0):
        Runs(site.settings).reconcile()
    assert [entry["status"] for entry in index(site)] == ["active"]
    assert len(site.tmux_sessions()) == 1


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"sessions": 1}', '{"sessions": [{"sessionId": "x"}]}', "lost"]
)
def test_an_index_that_is_lost_or_corrupt_is_rebuilt(site, team, damage):
    active, stopped = site.runs.create(team()), site.runs.create(team())
    legacy = site.runs.create(team(mode="legacy"))
    site.runs.stop(stopped.session_id)
    before = sorted(index(site), key=lambda entry: entry["sessionId"])
    path = site.sessions / ".sessions.index"
    path.unlink() if damage == "lost" else path.write_text(damage)
    listed = {entry.session_id: entry.status for entry in site.runs.list().sessions}
    assert listed == {active.session_id: "active", stopped.session_id: "stopped", legacy.session_id: "active"}
    assert sorted(index(site), key=lambda entry: entry["sessionId"]) == before
    kept = [file.read_text() for file in site.sessions.glob(".sessions.index.corrupt-*")]
    assert kept == ([] if damage == "lost" else [damage])


def test_a_rebuilt_index_asks_tmux_which_runs_are_alive(site, team):
    run = site.runs.create(team())
    site.tmux("kill-server")
    (site.sessions / ".sessions.index").write_text("broken")
    assert [entry.status for entry in site.runs.list().sessions] == ["stopped"]
    assert site.folders() == [run.session_id]


def test_a_folder_without_an_entry_is_registered(site, team, eventually):
    run = site.runs.create(team())
    document = json.loads((site.sessions / ".sessions.index").read_text())
    (site.sessions / ".sessions.index").write_text(json.dumps({**document, "sessions": []}))
    site.runs.reconcile()
    assert [(entry["sessionId"], entry["status"]) for entry in index(site)] == [(run.session_id, "active")]
    assert_agreement(site, eventually)


def test_a_plain_sandbox_session_in_the_same_folder_is_left_alone(site, team):
    from sandbox.sessions.creation import make_session

    site.runs.create(team())
    plain = str(uuid.uuid4())
    make_session(plain, site.sessions)
    site.runs.reconcile()
    assert plain in site.folders()
    assert plain not in [entry["sessionId"] for entry in index(site)]


def test_a_tmux_session_without_a_run_is_ended(site, team, eventually):
    run = site.runs.create(team())
    for folder in (Path(run.working_dir), site.sessions / ".mas" / run.session_id):
        # Supervisors that are just starting write into it: once more then.
        eventually(lambda folder=folder: shutil.rmtree(folder, ignore_errors=True) or not folder.exists())
    (site.sessions / ".sessions.index").unlink()
    site.runs.reconcile()
    assert (site.tmux_sessions(), site.processes(), site.state_folders()) == ([], [], [])


def test_a_process_that_outlived_its_supervisor_is_ended(site, team, eventually, is_running):
    run = site.runs.create(team("sh -c \"trap '' HUP; echo $$; while :; do sleep 1; done\""))
    log = eventually(lambda: b"\n" in (found := site.runs.log(run.session_id, "11")) and found, "the pid")
    agent = int(log.split()[0])
    for pid in site.tmux("list-panes", "-a", "-F", "#{pane_pid}"):
        os.kill(int(pid), signal.SIGKILL)
    site.tmux("kill-server")
    assert is_running(agent)
    site.runs.reconcile()
    assert not is_running(agent)


def test_a_root_without_sessions_stays_as_it_is(site):
    site.runs.reconcile()
    assert list(site.root.iterdir()) == []
    assert site.runs.list().sessions == ()


def test_a_key_whose_maker_was_killed_gives_one_run(site, team, eventually):
    for delay in (0.02, 0.06, 0.1, 0.15, 0.2, 0.3):
        key = str(uuid.uuid4())
        victim = in_a_process(lambda key=key: Runs(site.settings).create(team(), idempotency_key=key))
        time.sleep(delay)  # the moment of the kill is what varies
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        run = site.runs.create(team(), idempotency_key=key)
        assert site.folders() == [run.session_id]
        site.runs.reconcile()
        assert_agreement(site, eventually)
        site.runs.stop(run.session_id)
        site.runs.delete(run.session_id)


def test_what_cannot_be_put_right_keeps_nothing_else_from_being_put_right(site, team):
    from sandbox.sessions.locks import using

    stuck, dead = site.runs.create(team()), site.runs.create(team())
    site.runs.stop(stuck.session_id)
    (site.sessions / ".mas" / stuck.session_id / "deleting").write_text("isolated")
    site.tmux("kill-session", "-t", f"={dead.tmux_session}")
    with using(Path(stuck.working_dir)):
        site.runs.reconcile()
    assert site.folders() == sorted([stuck.session_id, dead.session_id])
    assert {entry["status"] for entry in index(site)} == {"stopped"}
    site.runs.reconcile()
    assert site.folders() == [dead.session_id]


def test_without_tmux_nothing_is_said_to_have_died(site, team, monkeypatch):
    run = site.runs.create(team())
    with monkeypatch.context() as broken:
        broken.setenv("PATH", "/nowhere")
        site.runs.reconcile()
    assert [(entry["sessionId"], entry["status"]) for entry in index(site)] == [(run.session_id, "active")]


@pytest.mark.parametrize("unfinished", ["stopping", "deleting"])
def test_what_was_cut_short_before_a_restore_is_not_finished_after_it(site, team, unfinished):
    run = site.runs.create(team())
    site.runs.stop(run.session_id)
    (site.sessions / ".mas" / run.session_id / unfinished).write_text("isolated")
    site.runs.restore(run.session_id)
    site.runs.reconcile()
    assert [(entry["sessionId"], entry["status"]) for entry in index(site)] == [(run.session_id, "active")]
