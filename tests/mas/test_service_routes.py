import json
import os
import re
import select
import shlex
import shutil
import socket
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from mas.service.app import REQUESTS_AT_ONCE

UNKNOWN = "550e8400-e29b-41d4-a716-446655440000"
HOSTILE = "-n; $(touch /tmp/x) `id` Enter\n\tzwei Zeilen, \u00e4\u20ac\U0001f600 'x' \"y\" \\n #{pane_id}"


def team(**first):
    worker = {"id": "11", "prompt": "Wait."} | first
    return {
        "sessionMode": "isolated",
        "agents": {"units": [{"unitId": 1, "manager": {"id": "10", "prompt": "Lead."}, "workers": [worker]}]},
    }


@pytest.fixture(scope="module")
def served(make_world):
    world = make_world()
    with world.server() as url, httpx2.Client(base_url=url, timeout=60) as client:
        yield world, client


@pytest.fixture(scope="module")
def world(served):
    return served[0]


@pytest.fixture(scope="module")
def client(served):
    return served[1]


def create(client, config=None, **headers):
    response = client.post("/runs", json=config or team(), headers=headers)
    assert response.status_code == 201, response.text
    return response.json()


@pytest.fixture(scope="module")
def session(client):
    """One running session that tests may write into."""
    return create(client)


@pytest.fixture(scope="module")
def recorded(world, client):
    """A session whose agent 11 writes every byte that it is sent into a file, and that file."""
    program = Path(__file__).parent / "programs" / "reader.py"
    made = create(
        client, team(command=shlex.join([sys.executable, str(program), str(world.root / "received")]))
    )
    file = world.root / "received-11"
    world.wait_until(lambda: file.exists() and file.read_bytes() == b"Wait.\r", "the prompt")
    return made, file


def problem_of(response):
    assert response.headers["content-type"] == "application/problem+json"
    return response.status_code, response.json()["code"]


def test_a_session_passes_through_its_whole_life(client):
    made = create(client)
    path = f"/sessions/{made['sessionId']}"
    assert problem_of(client.delete(path)) == (409, "run-active")
    assert problem_of(client.post(f"{path}/restore")) == (409, "run-active")

    stopped = client.post(f"{path}/stop").json()
    assert (stopped["sessionId"], stopped["status"]) == (made["sessionId"], "stopped")
    assert client.post(f"{path}/stop").status_code == 200
    assert client.get(path).json()["status"] == "stopped"
    message = {"target": "10", "text": "hello"}
    assert problem_of(client.post(f"{path}/messages", json=message)) == (409, "run-not-active")

    assert client.post(f"{path}/restore").json() == made
    assert client.get(path).json()["status"] == "active"

    client.post(f"{path}/stop")
    gone = client.delete(path)
    assert (gone.status_code, gone.content) == (204, b"")
    assert not Path(made["workingDir"]).exists()
    assert problem_of(client.get(path)) == (404, "run-not-found")
    assert problem_of(client.delete(path)) == (404, "run-not-found")


def test_a_session_is_shown_with_its_agents(client, session):
    shown = client.get(f"/sessions/{session['sessionId']}").json()
    assert (shown["windows"], shown["mode"]) == (["design"], "isolated")
    assert f"={session['tmuxSession']}" in shown["attachCommand"]
    assert [(agent["agentId"], agent["window"], agent["command"]) for agent in shown["agents"]] == [
        ("10", "design", "cat"),
        ("11", "design", "cat"),
    ]
    assert {agent["alive"] for agent in shown["agents"]} == {True}
    assert {agent["exitCode"] for agent in shown["agents"]} == {None}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda config: config["agents"]["units"][0].update(unitId=5), "agents.units.0.unitId"),
        (lambda config: config["agents"]["units"][0]["manager"].update(id="20"), "agents.units.0.manager"),
        (
            lambda config: config["agents"]["units"][0]["workers"][0].update(prompt=""),
            "agents.units.0.workers.0.prompt",
        ),
        (
            lambda config: config["agents"]["units"][0]["workers"][0].update(prompt="x" * 5001),
            "agents.units.0.workers.0.prompt",
        ),
        (lambda config: config["agents"]["units"][0].update(workers=[]), "agents.units.0.workers"),
        (lambda config: config["agents"].update(units=[]), "agents.units"),
        (lambda config: config.update(sessionMode="shared"), "sessionMode"),
        (lambda config: config.update(extra=1), "extra"),
        (lambda config: config.pop("agents"), "agents"),
    ],
)
def test_a_wrong_configuration_names_the_field_and_makes_nothing(world, client, change, field):
    config = team()
    change(config)
    before = sorted((world.root / "sessions").iterdir())
    response = client.post("/runs", json=config)
    assert problem_of(response) == (422, "invalid-request")
    assert [error["field"] for error in response.json()["errors"]] == [field]
    assert sorted((world.root / "sessions").iterdir()) == before


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"x"', b'{"agents": NaN}', b"\xff", b'{"agents": "\\ud800"}']
)
def test_a_body_that_is_no_configuration_is_refused(client, body):
    response = client.post("/runs", content=body, headers={"content-type": "application/json"})
    assert problem_of(response)[0] == 422


def test_the_same_idempotency_key_gives_the_same_run(client):
    first = create(client, **{"Idempotency-Key": "retry-1"})
    assert create(client, **{"Idempotency-Key": "retry-1"}) == first
    other = client.post("/runs", json=team(prompt="Other."), headers={"Idempotency-Key": "retry-1"})
    assert problem_of(other) == (409, "idempotency-mismatch")
    assert create(client, **{"Idempotency-Key": "retry-2"})["sessionId"] != first["sessionId"]
    assert problem_of(client.post("/runs", json=team(), headers={"Idempotency-Key": "x" * 256}))[0] == 422


def test_retries_at_the_same_time_make_one_run(client):
    made = []
    threads = [
        threading.Thread(
            target=lambda: made.append(create(client, **{"Idempotency-Key": "burst"})["sessionId"])
        )
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(set(made))) == (6, 1)


def test_pages_of_the_list_are_cut_after_counting(client, session):
    everything = client.get("/sessions").json()
    assert everything["total"] == len(everything["sessions"])
    page = client.get("/sessions", params={"limit": 1, "offset": 1}).json()
    assert page["sessions"] == everything["sessions"][1:2]
    assert page["total"] == everything["total"]
    assert client.get("/sessions", params={"offset": 10**9}).json()["sessions"] == []
    active = client.get("/sessions", params={"status": "active"}).json()
    assert {entry["status"] for entry in active["sessions"]} == {"active"}


def test_a_message_arrives_as_it_was_written(world, client, session):
    path = f"/sessions/{session['sessionId']}"
    response = client.post(f"{path}/messages", json={"target": "11", "text": HOSTILE})
    assert (response.status_code, response.json()) == (
        202,
        {"sessionId": session["sessionId"], "target": "11", "characters": len(HOSTILE)},
    )
    shown = HOSTILE.replace("\n", "\r\n").encode()  # as the terminal prints it
    world.wait_until(
        lambda: shown in Path(session["workingDir"], "logs", "agent-11.log").read_bytes(), "the message"
    )


@pytest.mark.parametrize(
    "text",
    [
        "one\ntwo\n\nthree\n",
        "-n --flag - x",
        "a; b;",
        "$(touch made) `touch made` $HOME ${x}",
        "Enter",
        "C-c Escape q",
        "\u00e4\u20ac\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\ttab and 'quotes' \"here\" \\\\ #{pane_id} %% !! {}",
        "".join(f"line {number} \u00e4\n" for number in range(8_000))[:100_000],
        "x" * 100_000,
    ],
    ids=[
        "lines",
        "dashes",
        "semicolons",
        "shell",
        "enter",
        "keys",
        "emoji",
        "quotes",
        "100kB",
        "one-100kB-line",
    ],
)
def test_a_message_arrives_byte_for_byte(world, client, recorded, text):
    session, file = recorded
    before = len(file.read_bytes())
    client.post(
        f"/sessions/{session['sessionId']}/messages", json={"target": "11", "text": text}
    ).raise_for_status()
    wanted = text.encode() + b"\r"
    world.wait_until(lambda: len(file.read_bytes()) >= before + len(wanted), "the message")
    assert file.read_bytes()[before:] == wanted


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ({"target": "12", "text": "hi"}, 404),
        ({"target": "1", "text": "hi"}, 422),
        ({"target": "11", "text": ""}, 422),
        ({"target": "11", "text": "\x1b[201~"}, 422),
        ({"target": "11", "text": "a\x00b"}, 422),
        ({"target": "11"}, 422),
        ({"target": "11", "text": 5}, 422),
        ({"target": "11", "text": "hi", "submit": "yes"}, 422),
    ],
)
def test_a_message_that_cannot_be_delivered_is_refused(client, session, message, status):
    response = client.post(f"/sessions/{session['sessionId']}/messages", json=message)
    assert problem_of(response)[0] == status


BUSY = "sh -c 'while :; do echo busy; sleep 0.1; done'"


def post_message(client, session, text):
    """A request that is sent and whose answer nobody has read yet."""
    body = json.dumps({"target": "11", "text": text})
    head = f"POST /sessions/{session['sessionId']}/messages HTTP/1.1\r\nHost: localhost\r\nConnection: close"
    connection = socket.create_connection((client.base_url.host, client.base_url.port))
    connection.sendall(
        f"{head}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    return connection


def test_messages_that_wait_for_an_agent_keep_nobody_else_waiting(make_world):
    world = make_world()
    with world.server(MAS_AGENT_READY_SECONDS="10") as url, httpx2.Client(base_url=url, timeout=60) as client:
        session = create(client, team(command=BUSY))
        many = REQUESTS_AT_ONCE + 5
        with ExitStack() as held:
            waiting = [
                held.enter_context(post_message(client, session, f"<{number}>")) for number in range(many)
            ]
            path = f"/sessions/{session['sessionId']}"
            assert client.get("/sessions").json()["total"] == 1
            assert client.get("/health").status_code == 200
            client.post(f"{path}/messages", json={"target": "10", "text": "passes"}).raise_for_status()
            assert select.select(waiting, [], [], 0)[0] == []  # all of them wait still
            assert {connection.makefile("rb").readline().split()[1] for connection in waiting} == {b"202"}
        log = Path(session["workingDir"], "logs", "agent-11.log")
        everything = {f"<{number}>" for number in range(many)}
        world.wait_until(lambda: everything <= set(re.findall(r"<\d+>", log.read_text())), "every message")


def test_a_log_is_read_whole_or_from_its_end(world, client, session):
    path = f"/sessions/{session['sessionId']}/logs/10"
    world.wait_until(lambda: "Lead." in client.get(path).text, "the prompt in the log")
    whole = client.get(path)
    assert whole.headers["content-type"] == "text/plain; charset=utf-8"
    assert client.get(path, params={"tail": 1}).text in whole.text
    assert client.get(path, params={"tail": 0}).text == ""
    assert problem_of(client.get(path.replace("/10", "/99"))) == (404, "agent-not-found")
    assert problem_of(client.get(f"/sessions/{UNKNOWN}/logs/10")) == (404, "run-not-found")


def read_events(lines):
    """Name and data of each event, as they arrive."""
    name = None
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_output_is_streamed_until_the_session_stops(client):
    made = create(client)
    path = f"/sessions/{made['sessionId']}"
    with client.stream("GET", f"{path}/output/11") as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = response.iter_lines()
        assert next(lines) == ": nothing new"  # connected: what is printed from now on arrives
        client.post(f"{path}/messages", json={"target": "11", "text": "streamed \u00e4"})
        seen = ""
        for name, data in read_events(lines):
            seen += data.get("text", "")
            if "streamed \u00e4" in seen and name != "end":
                client.post(f"{path}/stop")
        assert (name, data) == ("end", {})
    assert "streamed \u00e4" in seen
    assert problem_of(client.get(f"{path}/output/99")) == (404, "agent-not-found")


def test_a_stream_ends_when_its_reader_leaves(world, client, session):
    """The server holds the log open only while somebody reads the stream."""
    log = Path(session["workingDir"], "logs", "agent-10.log").resolve()
    pid = json.loads((world.root / "sessions" / ".api.json").read_text())["pid"]

    def readers():
        return [fd for fd in Path(f"/proc/{pid}/fd").iterdir() if _target(fd) == log]

    with (
        httpx2.Client(base_url=client.base_url) as leaver,
        leaver.stream("GET", f"/sessions/{session['sessionId']}/output/10"),
    ):
        world.wait_until(readers, "the reader")
    world.wait_until(lambda: not readers(), "the end of the reader")


def _target(link):
    try:
        return link.readlink()
    except OSError:
        return None


def test_an_agent_that_ended_shows_its_code_and_can_be_restarted_alone(world, client):
    config = team(command="bash -c 'read line; exit 7'")
    made = create(client, config)
    path = f"/sessions/{made['sessionId']}"

    def agents():
        return {agent["agentId"]: agent for agent in client.get(path).json()["agents"]}

    ended = world.wait_until(
        lambda: (found := agents()["11"])["exitCode"] is not None and found, "the agent's end"
    )
    assert (ended["alive"], ended["exitCode"], ended["state"]) == (False, 7, "exited")
    assert problem_of(client.post(f"{path}/messages", json={"target": "11", "text": "x"})) == (
        409,
        "agent-not-running",
    )
    assert agents()["10"]["alive"]

    again = client.post(f"{path}/agents/11/restart")
    assert (again.status_code, again.json()["agentId"]) == (200, "11")
    world.wait_until(lambda: agents()["11"]["exitCode"] == 7, "its second end")
    assert problem_of(client.post(f"{path}/agents/99/restart")) == (404, "agent-not-found")


def test_files_are_written_read_listed_and_deleted(client, session):
    path = f"/sessions/{session['sessionId']}/files"
    content = bytes(range(256))
    assert client.put(f"{path}/work/a%20b.bin", content=content).json() == {
        "path": "work/a b.bin",
        "size": 256,
    }
    read = client.get(f"{path}/work/a b.bin")
    assert (read.content, read.headers["content-type"]) == (content, "application/octet-stream")
    client.put(f"{path}/work/note.txt", content=b"")
    assert client.get(path, params={"pattern": "work/*"}).json() == {
        "sessionId": session["sessionId"],
        "files": ["work/a b.bin", "work/note.txt"],
    }
    assert problem_of(client.delete(f"{path}/work"))[0] == 422
    assert client.delete(f"{path}/work/note.txt").json() == {"path": "work/note.txt", "deleted": True}
    assert client.delete(f"{path}/work", params={"recursive": "true"}).status_code == 200
    assert problem_of(client.get(f"{path}/work/note.txt"))[0] == 404


@pytest.mark.parametrize(
    "path",
    [
        "%2e%2e/x", "a/%2e%2e/%2e%2e/x", "%2fetc/passwd", "a%00b", "%2e", "",
        ".session", "config.json", ".metadata.json", "CONFIG.JSON", "./.session", "x" * 300,
    ],
)  # fmt: skip
def test_paths_outside_and_control_files_are_refused(world, client, session, path):
    target = f"/sessions/{session['sessionId']}/files/{path}"
    before = sorted(Path(session["workingDir"]).rglob("*"))
    for response in (client.get(target), client.put(target, content=b"x"), client.delete(target)):
        assert response.status_code in (404, 405, 422)
        assert "x" * 300 in path or str(world.root) not in response.text
        assert response.headers["content-type"] == "application/problem+json"
    assert sorted(Path(session["workingDir"]).rglob("*")) == before


def test_a_file_larger_than_memory_is_sent_piece_by_piece(client, session):
    vast = Path(session["workingDir"], "vast")
    vast.touch()
    os.truncate(vast, 2**42)
    with client.stream("GET", f"/sessions/{session['sessionId']}/files/vast") as response:
        assert response.headers["content-length"] == str(2**42)
        assert next(response.iter_bytes(1_000)) == bytes(1_000)


def test_files_whose_names_are_no_text_are_left_out_of_a_listing(client, session):
    path = f"/sessions/{session['sessionId']}/files"
    folder = Path(session["workingDir"], "odd")
    folder.mkdir()
    (folder / "grüße").touch()
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).touch()
    assert client.get(path, params={"pattern": "odd/*"}).json()["files"] == ["odd/grüße"]


def test_a_link_out_of_the_session_is_not_followed(tmp_path, client, session):
    (tmp_path / "secret").write_text("secret")
    link = Path(session["workingDir"], "link")
    link.symlink_to(tmp_path)
    path = f"/sessions/{session['sessionId']}/files/link"
    assert client.get(f"{path}/secret").status_code in (404, 422)
    assert client.put(f"{path}/secret", content=b"x").status_code in (404, 409, 422)
    link.unlink()
    assert (tmp_path / "secret").read_text() == "secret"


def test_code_runs_in_the_sandbox_of_the_session(client, session):
    path = f"/sessions/{session['sessionId']}"
    code = (
        "import sys, os\n"
        "open('/app/made.txt', 'w').write('hello')\n"
        "print(sys.argv[1:], sys.stdin.read(), os.listdir('/app'))"
    )
    result = client.post(f"{path}/execute", json={"code": code, "stdin": "in", "args": ["a"]}).json()
    assert (result["success"], result["exit_code"], result["stderr"]) == (True, 0, "")
    assert result["stdout"].startswith("['a'] in ")
    assert "config.json" not in result["stdout"]
    assert ".session" not in result["stdout"]
    assert result["metadata"]["session_id"] == session["sessionId"]
    assert "made.txt" in result["files_created"]
    assert client.get(f"{path}/files/made.txt").content == b"hello"


def test_what_code_did_is_data(client, session):
    path = f"/sessions/{session['sessionId']}/execute"
    failed = client.post(path, json={"code": "1/0"})
    assert (failed.status_code, failed.json()["exit_code"]) == (200, 1)
    assert "ZeroDivisionError" in failed.json()["stderr"]
    stopped = client.post(path, json={"code": "while True: pass", "timeoutSeconds": 0.2})
    assert (stopped.status_code, stopped.json()["stopped_by"]) == (200, "timeout")
    assert problem_of(client.post(path, json={"code": ""}))[0] == 422
    assert problem_of(client.post(path, json={"code": "1", "timeoutSeconds": 0}))[0] == 422
    assert problem_of(client.post(f"/sessions/{UNKNOWN}/execute", json={"code": "1"})) == (
        404,
        "run-not-found",
    )


def test_code_ends_when_its_client_leaves(world, client):
    session = create(client)
    path = f"/sessions/{session['sessionId']}"
    code = "import time\nwhile True:\n    open('/app/beat', 'w').write(str(time.time()))"
    with httpx2.Client(base_url=client.base_url, timeout=5) as leaver, pytest.raises(httpx2.ReadTimeout):
        leaver.post(f"{path}/execute", json={"code": code, "timeoutSeconds": 300})
    beat = Path(session["workingDir"], "beat")
    assert beat.exists()

    def is_still():
        before = beat.stat().st_mtime_ns
        return time.sleep(0.3) or beat.stat().st_mtime_ns == before

    world.wait_until(is_still, "the end of the program")
    # A session that executes cannot be deleted, so its deletion shows that nothing runs any more.
    client.post(f"{path}/stop")
    assert client.delete(path).status_code == 204


@pytest.mark.parametrize("runs_still", [True, False], ids=["active", "stopped"])
def test_a_session_whose_folder_was_removed_says_so_until_it_is_deleted(world, client, runs_still):
    session = create(client)
    path = f"/sessions/{session['sessionId']}"
    if not runs_still:
        client.post(f"{path}/stop")
    folder = Path(session["workingDir"])
    # Supervisors that are just starting write into it: once more then.
    world.wait_until(lambda: shutil.rmtree(folder, ignore_errors=True) or not folder.exists(), "its end")
    for response in (
        client.post(f"{path}/execute", json={"code": "1"}),
        client.post(f"{path}/restore"),
        client.post(f"{path}/agents/11/restart"),
        client.get(f"{path}/files"),
        client.get(f"{path}/files/a"),
        client.put(f"{path}/files/a", content=b"x"),
        client.delete(f"{path}/files/a"),
    ):
        assert problem_of(response) == (409, "workspace-gone")
        assert response.json()["detail"] == (
            f"the folder of session {session['sessionId']} is gone; "
            "put it back, or stop the session and delete it"
        )
    assert client.get(path).json()["status"] == "error"
    entries = {entry["sessionId"]: entry["status"] for entry in client.get("/sessions").json()["sessions"]}
    assert entries[session["sessionId"]] == "error"
    assert not folder.exists()
    assert client.post(f"{path}/stop").status_code == 200
    assert client.delete(path).status_code == 204
    assert problem_of(client.get(path)) == (404, "run-not-found")


def test_a_template_that_cannot_be_copied_is_named_and_nothing_is_left(make_world):
    world = make_world()
    world.mas("init")
    os.mkfifo(world.root / "unit" / "10" / "pipe")
    with world.server() as url:
        response = httpx2.post(url + "/runs", json=team())
        assert problem_of(response) == (503, "template-unusable")
        assert response.json()["detail"] == (
            "the template unit/10/pipe is a named pipe and cannot be copied; "
            "mend it or move it out of the templates, then start again"
        )
        assert httpx2.get(url + "/sessions").json()["total"] == 0
    assert (list((world.root / "sessions").glob("*-*")), world.tmux_sessions()) == ([], [])
    assert list((world.root / "sessions" / ".mas").glob("*-*")) == []


def test_without_tmux_a_run_is_refused_and_nothing_is_left(make_world, tmp_path):
    world = make_world()
    with world.server(PATH=str(tmp_path)) as url:
        response = httpx2.post(url + "/runs", json=team())
        assert problem_of(response) == (503, "tmux-missing")
        assert "apt install tmux" in response.json()["detail"]
    assert [path.name for path in (world.root / "sessions").iterdir() if not path.name.startswith(".")] == []
