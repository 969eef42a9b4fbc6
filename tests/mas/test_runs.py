from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mas.config import default_team
from mas.errors import (
    AgentNotFound,
    AgentNotRunning,
    IdempotencyMismatch,
    InvalidSessionId,
    LegacyRunning,
    RunActive,
    RunNotActive,
    RunNotFound,
    SessionIdTaken,
    WorkspaceFailed,
    WorkspaceGone,
)
from mas.runs import Runs
from sandbox.sessions import prune_sessions

TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
GIVEN_ID = "550e8400-e29b-41d4-a716-446655440000"


def index(site):
    return json.loads((site.sessions / ".sessions.index").read_text())


def agent_states(site, session_id):
    return {agent.agent_id: agent.state for agent in site.runs.show(session_id).agents}


def logged(site, run, needle, agent_id="11"):
    """The agent's log once it holds `needle`; empty before."""
    log = site.runs.log(run.session_id, agent_id)
    return log if needle in log else b""


def session_facts(folder):
    """What a real shell reads from a .session file."""
    script = 'set -a; . "$1"; env -0'
    done = subprocess.run(
        ["env", "-i", "/bin/sh", "-c", script, "sh", folder / ".session"], capture_output=True, check=True
    )
    return dict(pair.split("=", 1) for pair in done.stdout.decode().split("\0") if pair)


def test_an_isolated_run_has_a_folder_a_tmux_session_and_an_entry(site, team):
    run = site.runs.create(team())
    folder = site.sessions / run.session_id
    assert run.model_dump(by_alias=True) == {
        "sessionId": run.session_id,
        "tmuxSession": f"mas-{run.session_id[:8]}",
        "workingDir": str(folder),
        "unitDir": str(folder / "unit"),
        "workflowsDir": str(folder / "workflows"),
        "createdAt": run.created_at,
        "status": "active",
        "sessionMode": "isolated",
    }
    assert TIMESTAMP.fullmatch(run.created_at)
    assert uuid.UUID(run.session_id).version == 4
    assert site.tmux_sessions() == [run.tmux_session]
    assert index(site) == {
        "version": "1.0",
        "sessions": [
            {
                "sessionId": run.session_id,
                "tmuxSession": run.tmux_session,
                "status": "active",
                "createdAt": run.created_at,
                "workingDir": str(folder),
                "mode": "isolated",
            }
        ],
        "lastUpdated": index(site)["lastUpdated"],
    }


def test_the_folder_of_an_isolated_run_is_private_and_complete(site, team):
    config = team()
    folder = Path(site.runs.create(config).working_dir)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / ".session").stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "config.json").stat().st_mode) == 0o600
    assert json.loads((folder / "config.json").read_text()) == config.as_received()
    assert (folder / "unit" / "10" / "ROLE.md").is_file()
    assert list((folder / "workflows").glob("*.md"))
    assert json.loads((folder / ".metadata.json").read_text())["session_id"] == folder.name


def test_a_shell_reads_the_session_file_whatever_the_root_is_called(make_site, team, eventually):
    site = make_site("it's #{pane_id} $(touch x) #(touch y);")
    run = site.runs.create(team("sh -c 'pwd; exec cat'"))
    facts = session_facts(Path(run.working_dir))
    assert {name: facts[name] for name in sorted(facts) if name != "PWD"} == {
        "CREATED_AT": run.created_at,
        "SESSION_DIR": run.working_dir,
        "SESSION_ID": run.session_id,
        "STATUS": "active",
        "TMUX_SESSION": run.tmux_session,
        "UNIT_DIR": run.unit_dir,
        "WORKFLOWS_DIR": run.workflows_dir,
    }
    eventually(lambda: logged(site, run, f"{run.unit_dir}/11".encode()), "the agent's folder")
    assert [path.name for path in site.root.iterdir()] == ["sessions"]


def test_templates_of_the_root_come_before_those_of_the_package(site, team):
    (site.root / "unit" / "10").mkdir(parents=True)
    (site.root / "unit" / "10" / "ROLE.md").write_text("my own")
    folder = Path(site.runs.create(team()).working_dir)
    assert (folder / "unit" / "10" / "ROLE.md").read_text() == "my own"
    assert sorted(path.name for path in (folder / "unit").iterdir()) == ["10", "11"]


def test_every_agent_has_a_pane_and_every_unit_a_window(site):
    run = site.runs.create(default_team())
    fields = "#{window_index} #{window_name} #{@mas_agent}"
    assert site.tmux("list-panes", "-s", "-t", f"={run.tmux_session}", "-F", fields) == [
        "0 meta 00",
        *(f"1 design 1{number}" for number in range(4)),
        *(f"2 development 2{number}" for number in range(4)),
        *(f"3 business 3{number}" for number in range(4)),
    ]


def test_an_agent_starts_in_its_folder_and_knows_where_it_is(site, team, eventually):
    run = site.runs.create(team("sh -c 'pwd; env; echo done; exec cat'"))
    printed = eventually(lambda: logged(site, run, b"done"), "the environment")
    lines = printed.decode().split("\r\n")
    assert lines[0] == f"{run.unit_dir}/11"
    assert {
        f"MAS_SESSION_ID={run.session_id}",
        f"MAS_SESSION_DIR={run.working_dir}",
        "MAS_AGENT_ID=11",
        f"MAS_UNIT_DIR={run.unit_dir}",
        f"MAS_WORKFLOWS_DIR={run.workflows_dir}",
        f"MAS_ROOT={site.root}",
    } <= set(lines)


def test_no_agent_sees_the_token_of_the_service(site, team, eventually, monkeypatch):
    monkeypatch.setenv("MAS_API_TOKEN", "secret-of-the-service")
    run = site.runs.create(team("sh -c 'env; echo done; exec cat'"))
    printed = eventually(lambda: logged(site, run, b"done"), "the environment")
    assert b"secret-of-the-service" not in printed


def test_a_given_id_is_used_and_cannot_be_used_again(site, team):
    assert site.runs.create(team(), session_id=GIVEN_ID).tmux_session == "mas-550e8400"
    with pytest.raises(SessionIdTaken, match=f"{GIVEN_ID} exists; choose another id"):
        site.runs.create(team(), session_id=GIVEN_ID)
    assert site.folders() == [GIVEN_ID]


def test_an_id_that_begins_like_another_is_refused(site, team):
    site.runs.create(team(), session_id=GIVEN_ID)
    twin = f"550e8400-{str(uuid.uuid4())[9:]}"
    with pytest.raises(SessionIdTaken):
        site.runs.create(team(), session_id=twin)
    assert (site.folders(), site.state_folders()) == ([GIVEN_ID], [GIVEN_ID])


@pytest.mark.parametrize("taken", ["folder", "tmux session", "entry"])
def test_a_prefix_that_is_taken_anywhere_is_refused(site, team, taken):
    site.runs.create(team())
    if taken == "folder":
        (site.sessions / f"550e8400-{uuid.uuid4().hex[:4]}").mkdir()
    elif taken == "tmux session":
        site.tmux("new-session", "-d", "-s", "mas-550e8400", "cat")
    else:
        document = index(site)
        document["sessions"].append(
            {**document["sessions"][0], "sessionId": f"550e8400-{str(uuid.uuid4())[9:]}"}
        )
        (site.sessions / ".sessions.index").write_text(json.dumps(document))
    with pytest.raises(SessionIdTaken):
        site.runs.create(team(), session_id=GIVEN_ID)


def test_an_id_whose_prefix_is_taken_is_drawn_again(site, team, monkeypatch):
    site.runs.create(team(), session_id=GIVEN_ID)
    free = uuid.uuid4()
    drawn = iter([uuid.UUID(f"550e8400-{str(uuid.uuid4())[9:]}"), free])
    monkeypatch.setattr("mas.lifecycle.uuid.uuid4", lambda: next(drawn, free))
    assert site.runs.create(team()).session_id == str(free)


@pytest.mark.parametrize(
    "bad", ["", "abc", GIVEN_ID.upper(), f"{GIVEN_ID}/", "550e8400-e29b-11d4-a716-446655440000"]
)
def test_an_id_that_is_no_version_4_uuid_is_refused(site, team, bad):
    with pytest.raises(InvalidSessionId):
        site.runs.create(team(), session_id=bad)
    assert site.folders() == []


def test_parallel_creations_are_all_registered(site, team):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: Runs(site.settings).create(team()), range(8)))
    assert len({run.session_id for run in made}) == 8
    assert sorted(entry["sessionId"] for entry in index(site)["sessions"]) == site.folders()
    assert sorted(site.tmux_sessions()) == sorted(run.tmux_session for run in made)


# Legacy mode


def test_a_legacy_run_works_in_the_shared_folders(site, team):
    run = site.runs.create(team(mode="legacy"))
    assert (run.session_mode, run.tmux_session) == ("legacy", "mas-tmux")
    assert (run.working_dir, run.unit_dir) == (str(site.root), str(site.root / "unit"))
    assert run.workflows_dir == str(site.root / "workflows")
    assert (site.root / "unit" / "10" / "ROLE.md").is_file()
    assert site.folders() == []
    facts = session_facts(site.sessions / ".legacy" / run.session_id)
    assert (facts["UNIT_DIR"], facts["TMUX_SESSION"]) == (run.unit_dir, "mas-tmux")
    assert [(entry.session_id, entry.mode) for entry in site.runs.list().sessions] == [
        (run.session_id, "legacy")
    ]


def test_there_is_one_legacy_run_at_a_time(site, team):
    run = site.runs.create(team(mode="legacy"))
    with pytest.raises(LegacyRunning, match=f"mas-tmux is already running .session {run.session_id}."):
        site.runs.create(team(mode="legacy"))
    assert site.state_folders() == [run.session_id]
    site.runs.stop(run.session_id)
    again = site.runs.create(team(mode="legacy"))
    assert {entry.session_id: entry.status for entry in site.runs.list().sessions} == {
        run.session_id: "stopped",
        again.session_id: "active",
    }


def test_a_project_that_changes_its_name_has_one_legacy_run_still(site, team):
    first = site.runs.create(team(mode="legacy"))
    (site.root / ".masrc").write_text("PROJECT_NAME=new")
    with pytest.raises(LegacyRunning, match="mas-tmux is already running"):
        site.runs.create(team(mode="legacy"))
    site.runs.stop(first.session_id)
    assert site.runs.create(team(mode="legacy")).tmux_session == "mas-new"
    with pytest.raises(LegacyRunning, match="mas-new is already running"):
        site.runs.restore(first.session_id)


def test_a_legacy_run_of_another_folder_is_not_told_as_one_of_this(make_site, team):
    mine, other = make_site("mine"), make_site("other")
    other.runs.create(team(mode="legacy"))
    with pytest.raises(LegacyRunning) as refused:
        Runs(mine.configured(tmux_socket=other.socket)).create(team(mode="legacy"))
    assert str(refused.value) == (
        "mas-tmux is already running for another folder; "
        "put PROJECT_NAME=... into a .masrc here, or use isolated mode"
    )
    assert refused.value.session_id is None


def test_of_legacy_runs_started_at_once_one_is_made(site, team):
    def attempt(_):
        try:
            return Runs(site.settings).create(team(mode="legacy"))
        except LegacyRunning:
            return None

    with ThreadPoolExecutor(4) as pool:
        made = [run for run in pool.map(attempt, range(4)) if run]
    assert site.state_folders() == [run.session_id for run in made]
    assert len(made) == 1
    assert (site.root / "unit" / "10").is_dir()


def test_a_project_names_the_legacy_session(site, team):
    (site.root.parent / ".masrc").write_text('# mine\nexport PROJECT_NAME="My $(touch x) Project.1"  # so\n')
    assert site.runs.create(team(mode="legacy")).tmux_session == "mas-My---touch-x--Project-1"
    assert not (site.root / "x").exists()


def test_deleting_a_legacy_run_keeps_the_shared_folders(site, team):
    run = site.runs.create(team(mode="legacy"))
    site.runs.stop(run.session_id)
    site.runs.delete(run.session_id)
    assert (site.root / "unit" / "10" / "ROLE.md").is_file()
    assert list((site.sessions / ".legacy").glob("*-*")) == []


def test_the_mode_of_the_configuration_comes_before_the_setting(site, team):
    runs = Runs(site.configured(session_mode="legacy"))
    assert runs.create(team(mode="isolated")).session_mode == "isolated"
    assert runs.create(team(), mode="isolated").session_mode == "isolated"
    assert runs.create(team()).session_mode == "legacy"


# Looking at runs


def test_a_session_that_died_behind_our_back_is_listed_and_recorded_as_stopped(site, team):
    alive, dead = site.runs.create(team()), site.runs.create(team())
    site.tmux("kill-session", "-t", f"={dead.tmux_session}")
    listed = {entry.session_id: entry.status for entry in site.runs.list().sessions}
    assert listed == {alive.session_id: "active", dead.session_id: "stopped"}
    assert {entry["sessionId"]: entry["status"] for entry in index(site)["sessions"]} == listed
    assert session_facts(Path(dead.working_dir))["STATUS"] == "stopped"


def test_a_run_whose_folder_is_gone_is_an_error(site, team):
    run = site.runs.create(team())
    site.runs.stop(run.session_id)
    shutil.rmtree(run.working_dir)
    assert [entry.status for entry in site.runs.list().sessions] == ["error"]


def test_pages_are_cut_from_the_entries_of_a_status(site, team):
    made = [site.runs.create(team()) for _ in range(4)]
    site.runs.stop(made[1].session_id)
    page = site.runs.list(status="active", limit=2, offset=1)
    assert [entry.session_id for entry in page.sessions] == [made[2].session_id, made[3].session_id]
    assert page.total == 3
    assert site.runs.list(offset=9).sessions == ()


def test_listing_takes_one_call_of_tmux_however_many_sessions_there_are(site, team, tmp_path, monkeypatch):
    for _ in range(3):
        site.runs.create(team())
    calls = tmp_path / "calls"
    real = shutil.which("tmux")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tmux").write_text(f'#!/bin/sh\necho "$@" >> {calls}\nexec {real} "$@"\n')
    (tmp_path / "bin" / "tmux").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    assert site.runs.list().total == 3
    assert len(calls.read_text().splitlines()) == 1


def test_an_agent_is_shown_as_it_is_now(site, team, eventually):
    run = site.runs.create(team("cat"))
    eventually(lambda: set(agent_states(site, run.session_id).values()) == {"running"}, "two running agents")
    shown = site.runs.show(run.session_id)
    assert shown.attach_command == f"tmux -L {site.socket} attach-session -t ={run.tmux_session}"
    assert shown.windows == ("design",)
    assert [agent.model_dump(by_alias=True) for agent in shown.agents][1] == {
        "agentId": "11",
        "window": "design",
        "pane": shown.agents[1].pane,
        "alive": True,
        "exitCode": None,
        "command": "cat",
        "state": "running",
        "lastOutputAt": shown.agents[1].last_output_at,
    }


def test_a_crashed_agent_shows_its_exit_code_and_keeps_its_pane(site, team, eventually):
    run = site.runs.create(team("sh -c 'echo oops; exit 7'"))
    eventually(lambda: set(agent_states(site, run.session_id).values()) == {"exited"}, "two exited agents")
    agent = site.runs.show(run.session_id).agents[0]
    assert (agent.alive, agent.exit_code, agent.window) == (False, 7, "design")
    assert site.runs.log(run.session_id, "10") == b"oops\r\n\r\n[agent 10 exited with code 7]\r\n"
    assert site.runs.list().sessions[0].status == "active"


@pytest.mark.parametrize(("command", "code"), [("no-such-program-here", 127), ("sh -c 'kill -9 $$'", 137)])
def test_how_an_agent_ended_is_told_as_a_shell_tells_it(site, team, eventually, command, code):
    run = site.runs.create(team(command))
    eventually(lambda: set(agent_states(site, run.session_id).values()) == {"exited"}, "two exited agents")
    assert site.runs.show(run.session_id).agents[0].exit_code == code


def test_an_agent_whose_pane_was_killed_is_dead(site, team, eventually):
    run = site.runs.create(team())
    eventually(lambda: set(agent_states(site, run.session_id).values()) == {"running"}, "two running agents")
    pane = site.runs.show(run.session_id).agents[1].pane
    supervisor = int(site.tmux("display-message", "-p", "-t", pane, "#{pane_pid}")[0])
    subprocess.run(["kill", "-9", str(supervisor)], check=True)
    eventually(lambda: agent_states(site, run.session_id) == {"10": "running", "11": "dead"}, "a dead agent")


@pytest.mark.parametrize("unknown", [GIVEN_ID, "", "..", "550e8400", "x" * 500, "a\0b"])
def test_an_unknown_id_is_not_found_by_any_operation(site, team, unknown):
    run = site.runs.create(team())
    operations = (
        site.runs.show,
        site.runs.stop,
        site.runs.restore,
        site.runs.delete,
        site.runs.sandbox,
        site.runs.list_files,
        lambda key: site.runs.log(key, "10"),
        lambda key: site.runs.follow(key, "10"),
        lambda key: site.runs.send(key, "10", "x"),
        lambda key: site.runs.restart_agent(key, "10"),
    )
    for operation in operations:
        with pytest.raises(RunNotFound):
            operation(unknown)
    assert site.runs.list().sessions[0].session_id == run.session_id


def test_an_id_is_matched_whole(site, team):
    run = site.runs.create(team())
    with pytest.raises(RunNotFound):
        site.runs.stop(run.session_id[:8])
    with pytest.raises(RunNotFound):
        site.runs.stop(run.session_id.upper())


# Stop, restore, delete


def test_stopping_keeps_the_folder_and_ends_everything_else(site, team):
    run = site.runs.create(team())
    (Path(run.working_dir) / "kept.txt").write_text("kept")
    stopped = site.runs.stop(run.session_id)
    assert (stopped.session_id, stopped.status) == (run.session_id, "stopped")
    assert site.tmux_sessions() == []
    assert site.processes() == []
    assert index(site)["sessions"][0]["status"] == "stopped"
    assert session_facts(Path(run.working_dir))["STATUS"] == "stopped"
    assert (Path(run.working_dir) / "kept.txt").read_text() == "kept"
    assert site.runs.stop(run.session_id).status == "stopped"


def test_stopping_one_run_leaves_every_process_of_the_others(site, team, eventually):
    kept, ended = site.runs.create(team()), site.runs.create(team())
    eventually(lambda: set(agent_states(site, kept.session_id).values()) == {"running"}, "running agents")
    before = set(site.tmux("list-panes", "-s", "-t", f"={kept.tmux_session}", "-F", "#{pane_pid}"))
    site.runs.stop(ended.session_id)
    assert set(agent_states(site, kept.session_id).values()) == {"running"}
    assert set(site.tmux("list-panes", "-a", "-F", "#{pane_pid}")) == before


@pytest.mark.parametrize("agent_lives", [True, False])
def test_a_daemon_that_an_agent_left_behind_is_gone_after_stop(
    site, team, program, eventually, is_running, tmp_path, agent_lives
):
    note = tmp_path / "pid"
    run = site.runs.create(team(program("daemon", note, 600 if agent_lives else 0)))
    daemon = int(eventually(lambda: note.exists() and note.read_text(), "the daemon"))
    state = "running" if agent_lives else "exited"
    eventually(lambda: set(agent_states(site, run.session_id).values()) == {state}, "the agents' state")
    assert is_running(daemon)
    site.runs.stop(run.session_id)
    assert not is_running(daemon)


def test_an_agent_that_ignores_being_asked_is_killed(site, team, eventually):
    run = site.runs.create(team("sh -c \"trap '' TERM HUP; echo deaf; while :; do sleep 1; done\""))
    eventually(lambda: logged(site, run, b"deaf", "10") and logged(site, run, b"deaf"), "two deaf agents")
    site.runs.stop(run.session_id)
    assert site.processes() == []


def test_an_agent_can_clean_up_when_it_is_asked_to_stop(site, team, eventually, tmp_path):
    note = tmp_path / "note"
    run = site.runs.create(
        team(f"sh -c \"trap 'echo bye >> {note}; exit 0' TERM; echo up; while :; do sleep 0.1; done\"")
    )
    eventually(lambda: logged(site, run, b"up", "10") and logged(site, run, b"up"), "two agents")
    site.runs.stop(run.session_id)
    assert note.read_text() == "bye\nbye\n"


def test_a_process_that_was_stopped_with_a_signal_ends_too(site, team, eventually):
    run = site.runs.create(team("sh -c 'echo up; kill -STOP $$'"))
    eventually(lambda: logged(site, run, b"up", "10") and logged(site, run, b"up"), "two agents")
    site.runs.stop(run.session_id)
    assert site.processes() == []


def test_a_stopped_run_can_be_restored_in_its_folder(site, team, eventually):
    run = site.runs.create(team("sh -c 'echo started; exec cat'"))
    eventually(lambda: logged(site, run, b"started"), "the first start")
    (Path(run.unit_dir) / "11" / "work.txt").write_text("kept")
    site.runs.stop(run.session_id)
    restored = site.runs.restore(run.session_id)
    assert restored == run
    eventually(lambda: site.runs.log(run.session_id, "11").count(b"started") == 2, "the second start")
    assert (Path(run.unit_dir) / "11" / "work.txt").read_text() == "kept"
    assert [entry.status for entry in site.runs.list().sessions] == ["active"]
    assert session_facts(Path(run.working_dir))["STATUS"] == "active"


def test_an_active_run_is_neither_restored_nor_deleted(site, team):
    run = site.runs.create(team())
    with pytest.raises(RunActive, match="stop it first"):
        site.runs.restore(run.session_id)
    with pytest.raises(RunActive, match="stop it first"):
        site.runs.delete(run.session_id)
    assert site.runs.list().sessions[0].status == "active"


def test_a_deleted_run_leaves_nothing(site, team):
    run = site.runs.create(team())
    site.runs.stop(run.session_id)
    site.runs.delete(run.session_id)
    assert (site.folders(), site.state_folders(), index(site)["sessions"]) == ([], [], [])
    with pytest.raises(RunNotFound):
        site.runs.show(run.session_id)


@pytest.mark.parametrize("how", ["kill-server", "kill -9"])
def test_a_killed_tmux_server_is_noticed_and_the_run_restored(site, team, eventually, how):
    run = site.runs.create(team())
    if how == "kill -9":
        subprocess.run(["kill", "-9", *site.tmux("display-message", "-p", "#{pid}")], check=True)
    else:
        site.tmux("kill-server")
    assert [entry.status for entry in site.runs.list().sessions] == ["stopped"]
    site.runs.restore(run.session_id)
    eventually(lambda: set(agent_states(site, run.session_id).values()) == {"running"}, "running agents")


# Single agents


def test_one_agent_can_be_restarted_alone(site, team, eventually):
    run = site.runs.create(team("sh -c 'echo started; read line; exit 3'"))
    eventually(lambda: set(agent_states(site, run.session_id).values()) == {"exited"}, "two exited agents")
    before = site.runs.show(run.session_id).agents
    restarted = site.runs.restart_agent(run.session_id, "11")
    assert (restarted.agent_id, restarted.pane, restarted.exit_code) == ("11", before[1].pane, None)
    eventually(lambda: site.runs.log(run.session_id, "11").count(b"started") == 2, "the second start")
    assert site.runs.log(run.session_id, "10").count(b"started") == 1


def test_restarting_an_agent_ends_what_it_started(site, team, program, eventually, is_running, tmp_path):
    note = tmp_path / "pid"
    run = site.runs.create(team(program("daemon", note, 600)))
    first = int(eventually(lambda: note.exists() and note.read_text(), "the daemons"))
    eventually(lambda: logged(site, run, b"left", "10") and logged(site, run, b"left"), "both agents")
    for agent_id in ("10", "11"):
        site.runs.restart_agent(run.session_id, agent_id)
    assert not is_running(first)


def test_agents_that_are_not_there_are_not_found(site, team):
    run = site.runs.create(team())
    for operation in (site.runs.log, site.runs.follow, site.runs.restart_agent):
        with pytest.raises(AgentNotFound):
            operation(run.session_id, "45")
    with pytest.raises(AgentNotFound):
        site.runs.send(run.session_id, "1", "x")


def test_a_stopped_run_takes_no_messages_and_restarts_no_agents(site, team):
    run = site.runs.create(team())
    site.runs.stop(run.session_id)
    with pytest.raises(RunNotActive):
        site.runs.send(run.session_id, "10", "x")
    with pytest.raises(RunNotActive):
        site.runs.restart_agent(run.session_id, "10")
    assert site.runs.log(run.session_id, "10") is not None


def test_a_message_does_not_wait_for_an_agent_that_was_killed(site, team, eventually):
    runs = Runs(site.configured(agent_ready_seconds=600))  # longer than a test may take
    run = runs.create(team("sh -c 'while :; do echo busy; sleep 0.1; done'"))
    eventually(lambda: set(agent_states(site, run.session_id).values()) == {"running"}, "two busy agents")
    for pid in site.tmux("list-panes", "-a", "-F", "#{pane_pid}"):
        os.kill(int(pid), signal.SIGKILL)
    with pytest.raises(AgentNotRunning):
        runs.send(run.session_id, "10", "x")


def test_an_agent_that_exited_takes_no_messages(site, team, eventually):
    run = site.runs.create(team("true"))
    eventually(lambda: set(agent_states(site, run.session_id).values()) == {"exited"}, "two exited agents")
    with pytest.raises(AgentNotRunning):
        site.runs.send(run.session_id, "10", "x")


# Idempotency


def test_the_same_key_gives_the_same_run(site, team):
    first = site.runs.create(team(), idempotency_key="k")
    assert Runs(site.settings).create(team(), idempotency_key="k") == first
    assert site.runs.create(team(), idempotency_key="other") != first
    assert len(site.folders()) == 2


def test_the_same_key_gives_the_same_run_while_it_is_being_made(site, team):
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: Runs(site.settings).create(team(), idempotency_key="k"), range(4)))
    assert len({run.session_id for run in made}) == 1
    assert len(site.folders()) == 1


def test_a_key_cannot_be_used_for_another_configuration(site, team):
    site.runs.create(team(), idempotency_key="k")
    with pytest.raises(IdempotencyMismatch):
        site.runs.create(team(workers=2), idempotency_key="k")
    assert len(site.folders()) == 1


def test_a_key_whose_creation_failed_can_be_used_again(site, team, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setenv("PATH", "/nowhere")
        with pytest.raises(Exception, match="install tmux"):
            site.runs.create(team(), idempotency_key="k")
    site.runs.create(team(), idempotency_key="k")
    assert len(site.folders()) == 1


# The sandbox of a run


@pytest.mark.parametrize("mode", ["isolated", "legacy"])
def test_the_files_of_a_run_leave_out_its_control_files(site, team, mode):
    run = site.runs.create(team(mode=mode))
    site.runs.write_file(run.session_id, "notes/a.txt", b"a")
    assert site.runs.read_file(run.session_id, "notes/a.txt") == b"a"
    listed = site.runs.list_files(run.session_id)
    assert "notes/a.txt" in listed
    assert not {".session", "config.json", ".metadata.json"} & set(listed)
    for name in (".session", "config.json"):
        with pytest.raises(ValueError, match=r"\w"):
            site.runs.read_file(run.session_id, name)
    site.runs.delete_file(run.session_id, "notes", recursive=True)
    assert "notes/a.txt" not in site.runs.list_files(run.session_id)


@pytest.mark.parametrize("mode", ["isolated", "legacy"])
def test_sandboxed_code_sees_the_run_and_not_its_control_files(site, team, mode):
    run = site.runs.create(team(mode=mode))
    code = (
        "import os\nprint([os.path.exists(name) for name in ('logs', '.session', 'config.json', '.Session')])"
    )
    with site.runs.sandbox(run.session_id) as sandbox:
        result = sandbox.execute(code)
    assert (result.stdout, result.stderr) == ("[True, False, False, False]\n", "")
    assert result.metadata["session_id"] == run.session_id


def test_a_run_whose_folder_is_gone_has_no_sandbox(site, team):
    run = site.runs.create(team())
    site.runs.stop(run.session_id)
    shutil.rmtree(run.working_dir)
    with pytest.raises(WorkspaceGone):
        site.runs.sandbox(run.session_id)
    assert not Path(run.working_dir).exists()


def test_a_configuration_that_somebody_broke_is_named(site, team):
    run = site.runs.create(team())
    site.runs.stop(run.session_id)
    config = Path(run.working_dir) / "config.json"
    config.write_text('{"agents": {}}')
    with pytest.raises(WorkspaceFailed) as failed:
        site.runs.restore(run.session_id)
    assert str(failed.value) == (
        f"{config}: this is not the configuration that the session was made with "
        "(agents.units: Field required); put it back, or delete the session and start another"
    )


def test_a_legacy_run_is_restored_after_its_shared_folders_were_removed(site, team, eventually):
    run = site.runs.create(team(mode="legacy"))
    site.runs.stop(run.session_id)
    shutil.rmtree(run.unit_dir)
    assert site.runs.restore(run.session_id) == run
    eventually(lambda: set(agent_states(site, run.session_id).values()) == {"running"}, "running agents")
    assert (Path(run.unit_dir) / "10" / "ROLE.md").is_file()


def test_stopping_a_run_leaves_the_run_of_the_same_id_in_another_root_alive(make_site, team):
    one, copy = make_site("one"), make_site("copy")
    run_id = str(uuid.uuid4())
    for place in (one, copy):
        place.runs.create(team(), session_id=run_id)
    one.runs.stop(run_id)
    assert {agent.alive for agent in copy.runs.show(run_id).agents} == {True}


def test_a_team_that_runs_is_not_pruned_and_one_that_stopped_is(site, team):
    running, stopped = site.runs.create(team()), site.runs.create(team())
    site.runs.stop(stopped.session_id)
    result = prune_sessions(0, site.sessions)
    assert result.deleted_sessions == [stopped.session_id]
    assert site.folders() == [running.session_id]
