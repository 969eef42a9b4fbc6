"""Session lifecycle management, scenario by scenario, through every door and in both modes."""

from __future__ import annotations

import json
import re
import shlex
import socket
import sys
import uuid
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

GIVEN_ID = "550e8400-e29b-41d4-a716-446655440000"
TIMESTAMP = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
UUID4 = re.compile(r"^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")


def team(command=None):
    def agent(agent_id):
        return {"id": agent_id, "prompt": f"You are {agent_id}."} | ({"command": command} if command else {})

    return {
        "agents": {
            "metaManager": agent("00"),
            "units": [{"unitId": 1, "manager": agent("10"), "workers": [agent("11")]}],
        }
    }


class Http:
    """A server started in the given mode, and requests to it."""

    def __init__(self, world, client):
        self.world, self.client = world, client

    def start(self, config):
        response = self.client.post("/runs", json=config)
        assert response.status_code == 201, response.text
        return response.json()

    def list(self):
        return self.client.get("/sessions").raise_for_status().json()["sessions"]

    def stop(self, session_id):
        return self.client.post(f"/sessions/{session_id}/stop").raise_for_status().json()


class Command:
    """The mas command, in an environment of the given mode."""

    def __init__(self, world, **env):
        self.world, self.env = world, env

    def run(self, *words, **options):
        return self.world.mas(*words, **self.env | options)

    def start(self, config, **env):
        (self.world.root / "team.json").write_text(json.dumps(config))
        return json.loads(self.run("start", "--config", "team.json", "--json", **env).stdout)

    def list(self):
        return json.loads(self.run("list", "--json").stdout)["sessions"]

    def stop(self, session_id):
        self.run("stop", session_id)


class Script(Command):
    """The shell script, in an environment of the given mode."""

    def run(self, *words, **options):
        return self.world.script(*words, **self.env | options)

    def stop(self, session_id):
        self.run(
            "stop",
            **({"MAS_SESSION_ID": session_id} if self.env.get("MAS_SESSION_MODE") == "isolated" else {}),
        )


@contextmanager
def open_door(name, world, **env):
    if name == "http":
        with world.server(**env) as url, httpx2.Client(base_url=url, timeout=60) as client:
            yield Http(world, client)
    else:
        yield {"mas": Command, "script": Script}[name](world, **env)


doors = pytest.mark.parametrize("door", ["http", "mas", "script"])
modes = pytest.mark.parametrize("mode", ["isolated", "legacy"])


def session_file(folder):
    return dict(line.split("=", 1) for line in (Path(folder) / ".session").read_text().splitlines() if line)


def control_folder(world, run, mode):
    return (
        Path(run["workingDir"])
        if mode == "isolated"
        else world.root / "sessions" / ".legacy" / run["sessionId"]
    )


def files_below(folder):
    return sorted(path.relative_to(folder) for path in Path(folder).rglob("*") if path.is_file())


# Scenario: Creating a session via API
@doors
def test_a_session_created_in_isolated_mode_has_a_workspace_a_configuration_and_a_tmux_session(world, door):
    config = team()
    with open_door(door, world, MAS_SESSION_MODE="isolated") as opened:
        run = opened.start(config)

    folder = world.root / "sessions" / run["sessionId"]
    assert UUID4.match(run["sessionId"])
    assert folder.is_dir()
    packaged = Path(__file__).resolve().parents[2] / "src" / "mas" / "templates"
    for name in ("unit", "workflows"):
        assert set(files_below(packaged / name)) <= set(files_below(folder / name))
        for path in files_below(packaged / name):
            assert (folder / name / path).read_bytes() == (packaged / name / path).read_bytes()
    assert json.loads((folder / "config.json").read_text()) == config
    assert world.tmux_sessions() == [f"mas-{run['sessionId'][:8]}"]
    assert run == {
        "sessionId": run["sessionId"],
        "tmuxSession": f"mas-{run['sessionId'][:8]}",
        "workingDir": str(folder),
        "unitDir": str(folder / "unit"),
        "workflowsDir": str(folder / "workflows"),
        "createdAt": run["createdAt"],
        "status": "active",
        "sessionMode": "isolated",
    }
    assert TIMESTAMP.match(run["createdAt"])


# Scenario: Registering a new session
@doors
@modes
def test_a_new_session_is_registered_in_the_index(world, door, mode):
    named = {} if door == "http" else {"MAS_SESSION_ID": GIVEN_ID}  # over HTTP the server draws the id
    with open_door(door, world, MAS_SESSION_MODE=mode, **named) as opened:
        run = opened.start(team())

    assert door == "http" or run["sessionId"] == GIVEN_ID
    (entry,) = world.index()["sessions"]
    assert entry == {
        "sessionId": run["sessionId"],
        "tmuxSession": f"mas-{run['sessionId'][:8]}" if mode == "isolated" else "mas-tmux",
        "status": "active",
        "createdAt": run["createdAt"],
        "workingDir": str(world.root / "sessions" / run["sessionId"])
        if mode == "isolated"
        else str(world.root),
        "mode": mode,
    }


# Scenario: Listing all sessions
@doors
@modes
def test_every_session_is_listed_with_the_status_that_tmux_has_now(world, door, mode):
    with open_door(door, world, MAS_SESSION_MODE=mode) as opened:
        first = opened.start(team() | {"sessionMode": "isolated"})
        second = opened.start(team() | {"sessionMode": "isolated"})
        third = opened.start(team())
        started = [first["sessionId"], second["sessionId"], third["sessionId"]]
        assert [entry["sessionId"] for entry in opened.list()] == started
        assert [entry["status"] for entry in opened.list()] == ["active"] * 3

        world.tmux("kill-session", "-t", f"={second['tmuxSession']}")

        assert {entry["sessionId"]: entry["status"] for entry in opened.list()} == {
            first["sessionId"]: "active",
            second["sessionId"]: "stopped",
            third["sessionId"]: "active",
        }
    assert [entry["status"] for entry in world.index()["sessions"]] == ["active", "stopped", "active"]


# Scenario: Stopping a session
@doors
@modes
def test_a_stopped_session_leaves_its_folder_and_no_process(world, door, mode):
    serve = f"{shlex.quote(sys.executable)} -u -m http.server 0 --bind 127.0.0.1"
    config = team()
    config["agents"]["units"][0]["workers"][0]["command"] = serve
    config["agents"]["units"][0]["manager"]["command"] = f"bash -c 'setsid sleep 1000 & exec {serve}'"
    named = {} if door == "http" else {"MAS_SESSION_ID": GIVEN_ID}
    with open_door(door, world, MAS_SESSION_MODE=mode, **named) as opened:
        run = opened.start(config)
        folder = control_folder(world, run, mode)
        ports = [world.wait_until(lambda a=a: served_port(folder, a), "a server") for a in ("10", "11")]
        assert [listens(port) for port in ports] == [True, True]
        (folder / "kept.txt").write_text("still here")
        before = files_below(folder)

        opened.stop(run["sessionId"])
        opened.stop(run["sessionId"])

        assert run["tmuxSession"] not in world.tmux_sessions()
        assert [entry["status"] for entry in opened.list()] == ["stopped"]
    assert [entry["status"] for entry in world.index()["sessions"]] == ["stopped"]
    assert session_file(folder)["STATUS"] == "stopped"
    assert set(before) <= set(files_below(folder))
    assert (folder / "kept.txt").read_text() == "still here"
    assert [listens(port) for port in ports] == [False, False]
    assert processes_of(world, run["sessionId"]) == []


# Scenario: Starting in isolated mode
@doors
def test_isolated_mode_makes_a_new_session_folder_for_every_start(world, door):
    with open_door(door, world, MAS_SESSION_MODE="isolated") as opened:
        runs = [opened.start(team()) for _ in range(2)]

    folders = [world.root / "sessions" / run["sessionId"] for run in runs]
    assert len(set(folders)) == 2
    for run, folder in zip(runs, folders, strict=True):
        assert (run["unitDir"], run["workflowsDir"]) == (str(folder / "unit"), str(folder / "workflows"))
        assert pane_folders(world, run) == [str(folder / "unit" / agent) for agent in ("00", "10", "11")]
    assert not (world.root / "unit").exists()
    assert sorted(world.tmux_sessions()) == sorted(run["tmuxSession"] for run in runs)


# Scenario: Starting in legacy mode
@doors
@pytest.mark.parametrize("env", [{"MAS_SESSION_MODE": "legacy"}, {}], ids=["legacy", "unset"])
def test_legacy_mode_uses_the_shared_folders_and_one_session(world, door, env):
    with open_door(door, world, **env) as opened:
        run = opened.start(team())
        assert (run["unitDir"], run["workflowsDir"]) == (
            str(world.root / "unit"),
            str(world.root / "workflows"),
        )
        assert (run["tmuxSession"], run["sessionMode"]) == ("mas-tmux", "legacy")
        assert pane_folders(world, run) == [str(world.root / "unit" / agent) for agent in ("00", "10", "11")]

        if door == "http":
            second = opened.client.post("/runs", json=team())
            assert (second.status_code, second.json()["code"]) == (409, "legacy-running")
        else:
            second = opened.run("start")
            assert (second.returncode, second.stdout.split(";")[0]) == (
                0,
                f"mas-tmux is already running (session {run['sessionId']})",
            )
    assert world.tmux_sessions() == ["mas-tmux"]
    assert [entry["sessionId"] for entry in world.index()["sessions"]] == [run["sessionId"]]


# Scenario: Session ID in API responses
@doors
def test_the_full_id_is_in_every_answer_and_its_beginning_in_the_tmux_name(world, door):
    world.mas("start", MAS_SESSION_MODE="isolated", MAS_SESSION_ID=GIVEN_ID)
    with open_door(door, world, MAS_SESSION_MODE="isolated") as opened:
        (entry,) = opened.list()
        shown = (
            opened.client.get(f"/sessions/{GIVEN_ID}").json()
            if door == "http"
            else json.loads(opened.run("show" if door == "mas" else "status", "--json").stdout)
        )
    for answer in (entry, shown):
        assert (answer["sessionId"], answer["tmuxSession"]) == (GIVEN_ID, "mas-550e8400")


# Scenario: Setting directories in isolated mode
def test_the_script_sets_the_directories_of_an_isolated_session(world):
    started = traced_start(world, MAS_SESSION_MODE="isolated", MAS_SESSION_ID=GIVEN_ID)

    assert started == {
        "UNIT_DIR": f"{world.root}/sessions/{GIVEN_ID}/unit",
        "WORKFLOWS_DIR": f"{world.root}/sessions/{GIVEN_ID}/workflows",
        "SESSION_NAME": "mas-550e8400",
    }
    assert (world.root / "sessions" / GIVEN_ID / "unit").is_dir()
    assert world.tmux_sessions() == ["mas-550e8400"]


def test_the_script_draws_an_id_where_none_is_given(world):
    first = traced_start(world, MAS_SESSION_MODE="isolated")
    (entry,) = world.index()["sessions"]
    assert uuid.UUID(entry["sessionId"]).version == 4
    assert first == {
        "UNIT_DIR": f"{entry['workingDir']}/unit",
        "WORKFLOWS_DIR": f"{entry['workingDir']}/workflows",
        "SESSION_NAME": entry["tmuxSession"],
    }


# Scenario: Setting directories in legacy mode
@pytest.mark.parametrize("env", [{"MAS_SESSION_MODE": "legacy"}, {}], ids=["legacy", "unset"])
@pytest.mark.parametrize(
    ("masrc", "name"), [(None, "mas-tmux"), ("PROJECT_NAME='My project'\n", "mas-My-project")]
)
def test_the_script_sets_the_directories_of_the_legacy_session(world, env, masrc, name):
    if masrc is not None:
        (world.root / ".masrc").write_text(masrc)
    started = traced_start(world, **env)

    assert started == {
        "UNIT_DIR": f"{world.root}/unit",
        "WORKFLOWS_DIR": f"{world.root}/workflows",
        "SESSION_NAME": name,
    }
    assert world.tmux_sessions() == [name]


def traced_start(world, **env):
    """The variables that the script sets, read from its trace; the last assignment of each."""
    result = world.run(
        "bash", "-x", Path(__file__).resolve().parents[2] / "mas_refactored.sh", "start", **env
    )
    assigned = {}
    for line in result.stderr.splitlines():
        found = re.match(r"^\++ (UNIT_DIR|WORKFLOWS_DIR|SESSION_NAME)=(.*)$", line)
        if found:
            (assigned[found[1]],) = shlex.split(found[2])
    return assigned


def pane_folders(world, run):
    listed = world.tmux(
        "list-panes", "-s", "-t", f"={run['tmuxSession']}", "-F", "#{pane_pid}"
    ).stdout.split()
    return [
        str(world.wait_until(lambda pid=pid: agent_folder(int(pid)), "the agent's start")) for pid in listed
    ]


def agent_folder(pid):
    """Where the agent below a pane's process works, once it runs its command."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if Path(f"/proc/{child}/cmdline").read_bytes() == b"cat\0":
            return Path(f"/proc/{child}/cwd").readlink()
    return None


def processes_of(world, session_id):
    """The processes whose environment says that they belong to a session of this world."""
    marks = {f"MAS_SESSION_ID={session_id}".encode(), f"MAS_ROOT={world.root}".encode()}
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if marks <= set(environ.read_bytes().split(b"\0")):
                found.append(int(environ.parent.name))
        except OSError:
            continue
    return found


def served_port(folder, agent):
    """The port on which an agent says that it serves."""
    log = folder / "logs" / f"agent-{agent}.log"
    found = re.search(rb"Serving HTTP on 127.0.0.1 port (\d+)", log.read_bytes() if log.exists() else b"")
    return found and int(found[1])


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
