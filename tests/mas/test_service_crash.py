"""The API is killed while it works: the next one finds everything in order."""

import json
import os
import random
import signal
import threading
import time
import uuid
from pathlib import Path

import httpx2

ROUNDS = 10
CONFIG = {
    "sessionMode": "isolated",
    "agents": {
        "units": [
            {
                "unitId": 1,
                "manager": {"id": "10", "prompt": "Lead."},
                "workers": [{"id": "11", "prompt": "Work."}],
            }
        ]
    },
}


def pid_of(world):
    return json.loads((world.root / "sessions" / ".api.json").read_text())["pid"]


def make_and_stop(url, key):
    """What a client does; its server dies under it."""
    try:
        with httpx2.Client(base_url=url, timeout=30) as client:
            made = client.post("/runs", json=CONFIG, headers={"Idempotency-Key": key}).json()
            client.post(f"/sessions/{made['sessionId']}/stop")
            client.post(f"/sessions/{made['sessionId']}/restore")
    except httpx2.HTTPError:
        pass


def processes(world):
    """The ids of the sessions of this world that have processes."""
    mark, found = f"MAS_ROOT={world.root}".encode(), set()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = environ.read_bytes().split(b"\0")
        except OSError:
            continue
        if mark in variables:
            found |= {value[15:].decode() for value in variables if value.startswith(b"MAS_SESSION_ID=")}
    return found


def assert_agreement(world, entries):
    active = {entry["sessionId"]: entry["tmuxSession"] for entry in entries if entry["status"] == "active"}
    folders = {path.name for path in (world.root / "sessions").iterdir() if not path.name.startswith(".")}
    assert folders == {entry["sessionId"] for entry in entries}
    assert sorted(world.tmux_sessions()) == sorted(active.values())
    assert world.index()["sessions"] == entries
    world.wait_until(lambda: processes(world) == set(active), "processes for the active sessions alone")


def test_a_killed_server_leaves_nothing_that_the_next_does_not_put_in_order(world):
    dice, keys = random.Random(5), []
    for _ in range(ROUNDS):
        with world.server() as url:
            assert_agreement(world, httpx2.get(f"{url}/sessions").json()["sessions"])
            keys = [str(uuid.uuid4()) for _ in range(2)]
            clients = [threading.Thread(target=make_and_stop, args=(url, key)) for key in keys]
            for client in clients:
                client.start()
            time.sleep(dice.uniform(0.0, 1.0))  # the moment of the kill is what varies, nothing is waited for
            os.kill(pid_of(world), signal.SIGKILL)
            for client in clients:
                client.join()
    with world.server() as url, httpx2.Client(base_url=url, timeout=60) as client:
        assert_agreement(world, client.get("/sessions").json()["sessions"])
        again = [
            client.post("/runs", json=CONFIG, headers={"Idempotency-Key": keys[0]}).json() for _ in range(2)
        ]
        assert again[0]["sessionId"] == again[1]["sessionId"]
        for entry in client.get("/sessions").json()["sessions"]:
            client.post(f"/sessions/{entry['sessionId']}/stop")
            assert client.delete(f"/sessions/{entry['sessionId']}").status_code == 204
        assert_agreement(world, [])


def test_a_server_adopts_what_lives_and_restores_what_tmux_lost(world):
    with world.server() as url:
        made = httpx2.post(f"{url}/runs", json=CONFIG).json()
        os.kill(pid_of(world), signal.SIGKILL)
    with world.server() as url, httpx2.Client(base_url=url, timeout=60) as client:
        path = f"/sessions/{made['sessionId']}"
        before = {agent["agentId"]: agent["alive"] for agent in client.get(path).json()["agents"]}
        assert before == {"10": True, "11": True}
        Path(made["workingDir"], "kept.txt").write_text("kept")

        world.tmux("kill-server")

        assert [entry["status"] for entry in client.get("/sessions").json()["sessions"]] == ["stopped"]
        assert client.post(f"{path}/restore").json() == made
        assert Path(made["workingDir"], "kept.txt").read_text() == "kept"
        assert {agent["alive"] for agent in client.get(path).json()["agents"]} == {True}


def test_a_server_that_is_told_to_end_lets_its_clients_go(world):
    answers = {}

    def ask(client, name, method, path, **options):
        answers[name] = client.request(method, path, timeout=60, **options)

    with world.server() as url, httpx2.Client(base_url=url, timeout=60) as client:
        made = client.post("/runs", json=CONFIG).json()
        path = f"/sessions/{made['sessionId']}"
        endless = {"code": "open('/app/begun', 'w')\nwhile True: pass", "timeoutSeconds": 300}
        threads = [
            threading.Thread(target=ask, args=(client, "stream", "GET", f"{path}/output/10")),
            threading.Thread(
                target=ask, args=(client, "code", "POST", f"{path}/execute"), kwargs={"json": endless}
            ),
        ]
        for thread in threads:
            thread.start()
        world.wait_until(Path(made["workingDir"], "begun").exists, "the program's start")
        os.kill(pid_of(world), signal.SIGTERM)
        for thread in threads:
            thread.join()
    assert answers["stream"].status_code == 200
    assert (answers["code"].status_code, answers["code"].json()["stopped_by"]) == (200, "cancelled")
    assert not (world.root / "sessions" / ".api.json").exists()
