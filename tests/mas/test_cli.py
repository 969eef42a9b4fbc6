import http.server
import json
import os
import pty
import select
import socketserver
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ID = "550e8400-e29b-41d4-a716-446655440000"
OTHER = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
ISOLATED = {"MAS_SESSION_MODE": "isolated"}


def start(world, **env):
    return json.loads(world.mas("start", "--mode", "isolated", "--json", **env).stdout)


def failure(result):
    """Exit code and the one sentence on stderr."""
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.returncode, result.stderr.strip()


@pytest.mark.parametrize(
    "command",
    [
        "init",
        "start",
        "list",
        "show",
        "send",
        "logs",
        "attach",
        "stop",
        "restore",
        "delete",
        "restart",
        "exec",
        "serve",
    ],
)
def test_every_command_has_a_help_text(world, command):
    result = world.mas(command, "--help")
    assert result.stdout.startswith(f"Usage: mas {command} ")


@pytest.mark.parametrize(
    "words",
    [["nothing"], ["send", "10"], ["restore"], ["delete"], ["list", "--status", "gone"],
     ["serve", "--port", "99999"], ["start", "--mode", "shared"], ["logs", "10", "--tail", "-1"]],
)  # fmt: skip
def test_wrong_usage_is_exit_code_2(world, words):
    result = world.mas(*words, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [("MAS_SESSION_MODE", "shared"), ("MAS_TMUX_SOCKET", "a/b"), ("MAS_AGENT_COMMAND", "'")],
)
def test_a_wrong_setting_is_named(world, name, value):
    code, sentence = failure(world.mas("list", check=False, **{name: value}))
    assert code == 2
    assert sentence.startswith(f"mas: {name}: ")


def test_init_puts_the_templates_there_once(world):
    first = world.mas("init").stdout
    assert first == f"made {world.root}/unit\nmade {world.root}/workflows\n"
    role = world.root / "unit" / "10" / "ROLE.md"
    role.write_text("mine")
    assert world.mas("init").stdout == f"{world.root} has unit and workflows already; nothing was changed\n"
    assert role.read_text() == "mine"
    made = start(world)
    assert Path(made["unitDir"], "10", "ROLE.md").read_text() == "mine"


def test_start_without_a_configuration_starts_the_default_team(world):
    shown = json.loads(world.mas("show", start(world)["sessionId"], "--json").stdout)
    assert shown["windows"] == ["meta", "design", "development", "business"]
    assert [agent["agentId"] for agent in shown["agents"]] == (
        ["00", "10", "11", "12", "13", "20", "21", "22", "23", "30", "31", "32", "33"]
    )


def test_the_default_team_is_alive_without_any_account(world):
    world.env.pop("MAS_AGENT_COMMAND")
    made = start(world)
    logs = sorted(Path(made["workingDir"], "logs").glob("agent-*.log"))
    assert len(logs) == 13
    for log in logs:
        told = f"You are agent {log.stem[-2:]}, "
        world.wait_until(lambda log=log, told=told: told in log.read_text(), told)
    world.mas("send", "21", "sum(range(10))")
    world.wait_until(lambda: "\n45\n[ok, " in world.mas("logs", "21").stdout.replace("\r", ""), "its answer")
    # An agent that runs a shell reaches the others from inside, without naming the session.
    world.mas("send", "30", "from 21, done: 45", MAS_SESSION_ID=made["sessionId"])
    world.wait_until(
        lambda: "[30: message received, 17 characters]" in world.mas("logs", "30").stdout, "the word"
    )


def test_start_reads_a_team_from_standard_input(world):
    unit = {
        "unitId": 2,
        "manager": {"id": "20", "prompt": "Lead."},
        "workers": [{"id": "21", "prompt": "Work."}],
    }
    made = world.mas(
        "start", "--config", "-", stdin=json.dumps({"agents": {"units": [unit]}}), **ISOLATED
    ).stdout
    assert made.startswith("started session ")
    shown = json.loads(world.mas("show", "--json").stdout)
    assert [agent["agentId"] for agent in shown["agents"]] == ["20", "21"]


@pytest.mark.parametrize("text", ["{", "[]", '{"agents": {"units": []}}', ""])
def test_a_wrong_configuration_is_refused_in_a_sentence(world, text):
    (world.root / "team.json").write_text(text)
    assert failure(world.mas("start", "--config", "team.json", check=False))[0] == 2
    assert not (world.root / "sessions").exists() or world.index()["sessions"] == []


def test_a_configuration_that_is_not_there_is_a_failure(world):
    result = failure(world.mas("start", "--config", "gone.json", check=False))
    assert result == (1, "mas: gone.json: No such file or directory")


def test_a_session_passes_through_its_whole_life(world):
    assert world.mas("list").stdout == "SESSION  STATUS  MODE  TMUX  CREATED\n"
    made = start(world, MAS_SESSION_ID=ID)
    assert made["sessionId"] == ID
    assert f"{ID}  active  isolated  mas-550e8400  {made['createdAt']}" in world.mas("list").stdout
    assert failure(world.mas("delete", ID, check=False)) == (1, f"mas: session {ID} is active; stop it first")
    assert world.mas("stop", ID).stdout == f"stopped session {ID}\n"
    assert world.mas("stop", ID).stdout == f"stopped session {ID}\n"
    assert world.mas("restore", ID).stdout.startswith(f"started session {ID} (isolated) as mas-550e8400\n")
    world.mas("stop", "--session", ID)
    assert world.mas("delete", ID).stdout == f"deleted session {ID}\n"
    assert json.loads(world.mas("list", "--json").stdout)["sessions"] == []
    assert failure(world.mas("show", ID, check=False))[0] == 1


def test_mas_session_id_names_the_session_to_make_or_to_start_again(world):
    start(world, MAS_SESSION_ID=ID)
    again = world.mas("start", MAS_SESSION_ID=ID, **ISOLATED).stdout
    assert again == f"mas-550e8400 is already running (session {ID}); attach to it: mas attach\n"
    world.mas("stop", ID)
    assert start(world, MAS_SESSION_ID=ID)["status"] == "active"
    assert failure(world.mas("start", check=False, MAS_SESSION_ID="550e8400", **ISOLATED))[0] == 1
    same_prefix = "550e8400-e29b-41d4-a716-446655440001"
    assert failure(world.mas("start", check=False, MAS_SESSION_ID=same_prefix, **ISOLATED))[0] == 1


def test_without_a_name_the_only_active_session_is_meant(world):
    assert failure(world.mas("show", check=False)) == (
        1,
        "mas: no session is active; mas start starts one, mas list shows those that stopped",
    )
    start(world, MAS_SESSION_ID=ID)
    assert json.loads(world.mas("show", "--json").stdout)["sessionId"] == ID
    start(world, MAS_SESSION_ID=OTHER)
    code, sentence = failure(world.mas("show", check=False))
    assert (code, sentence.splitlines()[0]) == (1, "mas: 2 sessions are active; name one with --session:")
    assert json.loads(world.mas("show", "--json", MAS_SESSION_ID=OTHER).stdout)["sessionId"] == OTHER
    assert (
        json.loads(world.mas("show", "--json", "--session", ID, MAS_SESSION_ID=OTHER).stdout)["sessionId"]
        == ID
    )
    assert json.loads(world.mas("show", "--json", "--tmux", "mas-6ba7b810").stdout)["sessionId"] == OTHER
    assert failure(world.mas("show", "--session", ID[:8], check=False))[0] == 1


def test_a_message_reaches_its_agent_as_it_was_written(world):
    made = start(world)
    log = Path(made["workingDir"], "logs", "agent-21.log")
    for text in ("-n; $(id) `id` Enter", "- item", "\u00e4\U0001f600"):
        world.mas("send", "21", text)
        world.wait_until(lambda text=text: text.encode() in log.read_bytes(), text)
    world.mas("send", "21", "-", stdin="from\nstdin")
    world.wait_until(lambda: b"from\r\nstdin" in log.read_bytes(), "standard input")
    assert failure(world.mas("send", "99", "x", check=False))[0] == 1
    assert failure(world.mas("send", "21", "\x1b", check=False))[0] == 1


def test_input_that_is_no_text_is_refused_in_a_sentence(world):
    start(world)
    for words in (["send", "21", "-"], ["exec", "-"], ["start", "--config", "-"]):
        result = subprocess.run(
            [sys.executable, "-m", "mas", *words],
            cwd=world.root,
            env=world.env,
            input=b"\xff",
            capture_output=True,
            check=False,
        )
        assert result.returncode in (1, 2)
        assert b"Traceback" not in result.stderr


def test_a_reader_that_leaves_early_is_no_traceback(world):
    command = f"{sys.executable} -m mas list | true; exit ${{PIPESTATUS[0]}}"
    result = world.run("bash", "-c", command, check=False)
    assert result.returncode in (0, 1)
    assert "Traceback" not in result.stderr


def test_logs_are_printed_and_followed(world):
    made = start(world)
    world.wait_until(lambda: "agent 30" in world.mas("logs", "30").stdout, "the prompt")
    assert world.mas("logs", "30", "--tail", "0").stdout == ""
    follower = subprocess.Popen(
        [sys.executable, "-m", "mas", "logs", "30", "--follow"],
        cwd=world.root,
        env=world.env,
        stdout=subprocess.PIPE,
    )
    os.set_blocking(follower.stdout.fileno(), False)
    seen = bytearray()

    def has(text):
        seen.extend(follower.stdout.read() or b"")
        return text in seen

    world.wait_until(lambda: has(b"agent 30"), "what was printed before")
    world.mas("send", "30", "printed later")
    world.wait_until(lambda: has(b"printed later"), "what was printed later")
    world.mas("stop", made["sessionId"])
    assert follower.wait(30) == 0
    follower.stdout.close()


def test_an_agent_can_be_restarted_alone(world):
    start(world)
    assert world.mas("restart", "12").stdout.startswith("agent 12 is ")
    assert failure(world.mas("restart", "99", check=False))[0] == 1


def test_attach_shows_the_panes_in_this_terminal(world):
    made = start(world)
    controller, terminal = pty.openpty()
    env = world.env | {"TERM": "xterm", "TMUX": "/tmp/another,1,0"}
    attached = subprocess.Popen(
        [sys.executable, "-m", "mas", "attach"], env=env, stdin=terminal, stdout=terminal, stderr=terminal,
        start_new_session=True,
    )  # fmt: skip
    clients = ("list-clients", "-F", "#{client_session}")

    def is_attached():
        while select.select([controller], [], [], 0)[0]:
            os.read(controller, 65_536)
        return world.tmux(*clients).stdout.split() == [made["tmuxSession"]]

    world.wait_until(is_attached, "the client")
    world.tmux("detach-client", "-s", f"={made['tmuxSession']}")
    assert attached.wait(30) == 0
    os.close(controller)
    os.close(terminal)


def test_a_stopped_session_cannot_be_attached_to(world):
    made = start(world)
    world.mas("stop")
    result = failure(world.mas("attach", "--session", made["sessionId"], check=False))
    assert result == (1, f"mas: session {made['sessionId']} is not active; restore it first")


def test_a_server_that_is_another_program_is_told(world, tmp_path):
    with socketserver.TCPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{other.server_address[1]}"
        result = failure(world.mas("stop", ID, check=False, MAS_API_URL=url))
        other.shutdown()
    assert result[0] == 1
    assert result[1].startswith("mas: the server answered 501 ")
    assert result[1].endswith("; see its log, or whether MAS_API_URL is the address of mas serve")


def test_files_are_listed_written_read_and_deleted(world):
    start(world)
    world.mas("files", "write", "work/a.txt", "-", stdin="content")
    assert world.mas("files", "list", "work/*").stdout == "work/a.txt\n"
    assert json.loads(world.mas("files", "list", "work/*", "--json").stdout) == ["work/a.txt"]
    assert world.mas("files", "read", "work/a.txt").stdout == "content"
    world.mas("files", "delete", "work", "--recursive")
    assert failure(world.mas("files", "read", "work/a.txt", check=False))[0] == 1
    assert failure(world.mas("files", "read", "../x", check=False))[0] == 1


def test_code_runs_in_the_sandbox(world):
    start(world)
    assert world.mas("exec", "print(6 * 7)").stdout == "42\n"
    result = json.loads(world.mas("exec", "-", "--json", stdin="open('made', 'w').write('x')").stdout)
    assert (result["success"], result["files_created"]) == (True, ["made"])
    failed = world.mas("exec", "1/0", check=False)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "ZeroDivisionError" in failed.stderr


def requests(world):
    """The lines that servers of this world wrote for each request."""
    lines = [line for log in world.root.glob("server-*.log") for line in log.read_text().splitlines()]
    return [line.split('"')[1] for line in lines if '"' in line and "/health" not in line]


def test_a_running_server_is_used_and_its_answers_are_the_same(world):
    direct = start(world)
    with world.server(MAS_SESSION_MODE="isolated", MAS_AGENT_COMMAND="false"):
        by_server = start(world, MAS_AGENT_COMMAND="cat")
        assert "POST /runs HTTP/1.1" in requests(world)
        assert direct.keys() == by_server.keys()
        shown = json.loads(world.mas("show", by_server["sessionId"], "--json").stdout)
        assert {agent["command"] for agent in shown["agents"]} == {"cat"}
        world.mas("send", "10", "through the server", "--session", by_server["sessionId"])
        log = ("logs", "10", "--session", by_server["sessionId"])
        world.wait_until(lambda: "through the server" in world.mas(*log).stdout, "the message")
        world.mas("files", "write", "a b/c.txt", "-", "--session", by_server["sessionId"], stdin="x")
        assert (
            world.mas("files", "list", "a b/*", "--session", by_server["sessionId"]).stdout == "a b/c.txt\n"
        )
        assert failure(world.mas("show", OTHER, check=False))[0] == 1
        assert world.mas("stop", by_server["sessionId"]).returncode == 0
        assert len(json.loads(world.mas("list", "--json").stdout)["sessions"]) == 2
    assert len(json.loads(world.mas("list", "--json").stdout)["sessions"]) == 2


def test_a_second_legacy_start_through_a_server_says_so_and_exits_0(world):
    with world.server():
        first = json.loads(world.mas("start", "--json").stdout)
        second = world.mas("start")
    assert second.stdout.startswith(f"mas-tmux is already running (session {first['sessionId']})")
    assert second.returncode == 0


def test_a_server_with_a_token_is_used_with_the_token_and_not_without(world):
    with world.server(MAS_API_TOKEN="secret"):
        world.mas("list", MAS_API_TOKEN="secret")
        assert "GET /sessions?offset=0 HTTP/1.1" in requests(world)
        before = len(requests(world))
        assert world.mas("list").returncode == 0
        assert "GET /sessions?offset=0 HTTP/1.1" not in requests(world)[before:]


def test_a_note_that_a_killed_server_left_is_passed_over(world):
    (world.root / "sessions").mkdir()
    note = {"url": "http://127.0.0.1:1", "pid": 1, "tmuxSocket": world.socket}
    (world.root / "sessions" / ".api.json").write_text(json.dumps(note))
    assert world.mas("list").returncode == 0
    for text in ("", "[]", "{", '{"url": 5, "tmuxSocket": "x"}'):
        (world.root / "sessions" / ".api.json").write_text(text)
        assert world.mas("list").returncode == 0


def test_a_server_that_is_named_and_does_not_answer_is_a_failure(world):
    code, sentence = failure(world.mas("list", check=False, MAS_API_URL="http://127.0.0.1:1"))
    assert code == 1
    assert sentence == (
        "mas: the server at http://127.0.0.1:1 does not answer: Connection refused; start it with mas serve"
    )
    assert failure(world.mas("list", check=False, MAS_API_URL="nonsense"))[0] == 2


def test_a_port_that_is_taken_is_a_failure_in_a_sentence(world):
    with world.server() as url:
        port = url.rpartition(":")[2]
        code, sentence = failure(world.mas("serve", "--port", port, check=False))
        assert code == 1
        assert "Address already in use" in sentence


def test_without_the_service_extra_the_command_says_what_to_install(world):
    code = "import sys; sys.modules['pydantic_settings'] = None; from mas.__main__ import main; main()"
    result = world.run(sys.executable, "-c", code, check=False)
    sentence = "mas: the package pydantic_settings is missing; pip install 'session-sandbox[service]'\n"
    assert (result.returncode, result.stdout, result.stderr) == (1, "", sentence)


def test_without_tmux_a_start_names_the_package(world, tmp_path):
    code, sentence = failure(world.mas("start", check=False, PATH=str(tmp_path)))
    assert code == 1
    assert "apt install tmux" in sentence
