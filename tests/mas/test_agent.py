import json
import os
import pty
import signal
import subprocess
import sys
import tty
from pathlib import Path

import pytest

from mas.agent import _quote

PROMPT = "10> "


class Pane:
    """The built-in agent at a terminal, without tmux."""

    def __init__(self, world, env, folder):
        self.world = world
        self.controller, terminal = pty.openpty()
        tty.setraw(self.controller)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "mas.agent"],
            cwd=folder,
            env=world.env | env,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        )
        os.close(terminal)
        os.set_blocking(self.controller, False)
        self.shown = ""

    def type(self, text):
        data = text.encode()
        while data:
            try:
                data = data[os.write(self.controller, data) :]
            except BlockingIOError:
                self.read()

    def paste(self, text):
        self.type(f"\x1b[200~{text}\x1b[201~\r")

    def read(self):
        try:
            self.shown += os.read(self.controller, 65_536).decode(errors="replace").replace("\r\n", "\n")
        except (BlockingIOError, OSError):
            pass
        return self.shown

    def wait_for(self, text):
        """What is shown up to and including `text`, which is then forgotten."""
        self.world.wait_until(lambda: text in self.read(), f"{text!r} in {self.shown!r}")
        before, _, self.shown = self.shown.partition(text)
        return before + text

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.controller)


@pytest.fixture(scope="module")
def shared(make_world):
    """A session whose sandbox the agents of this module run code in."""
    world = make_world()
    run = json.loads(world.mas("start", "--mode", "isolated", "--json").stdout)
    return world, run


@pytest.fixture
def pane(shared):
    world, run = shared
    folder = Path(run["unitDir"], "10")
    opened = Pane(world, {"MAS_AGENT_ID": "10", "MAS_SESSION_ID": run["sessionId"]}, folder)
    opened.wait_for(PROMPT)
    yield opened
    opened.close()


def test_plain_language_is_shown_and_acknowledged(pane):
    pane.paste("Review the design; it's $(not) `code`.\n\tThen tell 20 \u00e4\U0001f600")
    assert pane.wait_for(PROMPT) == (
        "[55 characters pasted]\n"
        "| Review the design; it's $(not) `code`.\n"
        "| \tThen tell 20 \u00e4\U0001f600\n"
        "[10: message received, 55 characters]\n"
        "10> "
    )


def test_a_typed_line_is_echoed_once_and_answered(pane):
    pane.type("helo\x7flo there\r")
    assert pane.wait_for(PROMPT) == "helo\b \blo there\n[10: message received, 11 characters]\n10> "


def test_python_runs_in_the_sandbox_of_the_session(pane, shared):
    pane.type("print('to a file', file=open('/app/from-agent.txt', 'w')); 6 * 7\r")
    shown = pane.wait_for(PROMPT)
    assert "\n42\n[ok, " in shown
    assert ", wrote from-agent.txt]\n" in shown
    assert Path(shared[1]["workingDir"], "from-agent.txt").read_text() == "to a file\n"


def test_a_block_in_a_message_runs_and_its_error_is_shown(pane):
    pane.paste("Please:\n```python\nprint('before')\n1/0\n```\nthanks")
    shown = pane.wait_for(PROMPT)
    assert "\nbefore\n" in shown
    assert "ZeroDivisionError: division by zero\n[exit code 1, " in shown


def test_output_cannot_steer_the_terminal(pane):
    pane.type(r"print('a\x1b]0;title\x07b\x9bc')" + "\r")
    assert "\na^[]0;title^Gb\\x9bc\n" in pane.wait_for(PROMPT)


def test_a_line_of_100_kilobytes_arrives_whole(pane):
    pane.paste("x" * 100_000)
    assert pane.wait_for(PROMPT) == (
        f"[100,000 characters pasted]\n| {'x' * 4_000}\n| [and 96,000 characters more]\n"
        "[10: message received, 100,000 characters]\n10> "
    )


def test_a_program_of_100_kilobytes_runs(pane):
    pane.paste("total = 0\n" + "total += 1\n" * 10_000 + "print(total)\n")
    assert "\n10000\n[ok, " in pane.wait_for(PROMPT)


def test_ctrl_c_stops_a_program_and_drops_a_line(pane):
    pane.type("half a li\x03")
    assert pane.wait_for(PROMPT) == "half a li^C\n10> "
    pane.type("print('running'); exec('while True: pass')\r")
    pane.wait_for("\nrunning\n")
    pane.type("\x03")
    assert pane.wait_for(PROMPT).startswith("[cancelled, ")
    pane.type("print('running'); exec('while True: pass')\r")
    pane.wait_for("\nrunning\n")
    pane.process.send_signal(signal.SIGINT)
    assert pane.wait_for(PROMPT).startswith("[cancelled, ")


def test_what_arrives_while_a_program_runs_is_answered_after_it(pane):
    pane.type("import time; print('begun'); time.sleep(0.5)\r")
    pane.wait_for("\nbegun\n")
    pane.paste("a message")
    pane.paste("print('second')")
    assert "[ok, " in pane.wait_for("| a message\n[10: message received, 9 characters]\n")
    assert "| print('second')\nsecond\n[ok, " in pane.wait_for(PROMPT) + pane.wait_for(PROMPT)


@pytest.mark.parametrize("keys", ["\x04", "exit\r", "quit\r"])
def test_the_agent_ends_when_it_is_told_to(pane, keys):
    pane.type(keys)
    assert pane.process.wait(30) == 0


def test_help_and_role_explain_the_agent(pane):
    pane.type("help\r")
    assert "Python runs in the session's sandbox" in pane.wait_for(PROMPT)
    pane.type("role\r")
    assert pane.wait_for(PROMPT).startswith("role\n# 10 design manager\n")


def test_the_agent_says_who_it_is(shared):
    world, run = shared
    env = {"MAS_AGENT_ID": "32", "MAS_SESSION_ID": run["sessionId"]}
    for folder, who in (("32", "32, numbers,"), ("31", "32")):
        opened = Pane(world, env, Path(run["unitDir"], folder))
        assert opened.wait_for("32> ").endswith(f"agent {who} is ready; type help for what it does\n32> ")
        opened.close()


def test_a_role_that_is_a_link_is_not_followed(pane, shared, tmp_path):
    (tmp_path / "secret").write_text("secret")
    role = Path(shared[1]["unitDir"], "10", "ROLE.md")
    kept = role.read_text()
    role.unlink()
    role.symlink_to(tmp_path / "secret")
    try:
        pane.type("role\r")
        assert pane.wait_for(PROMPT) == "role\nthere is no ROLE.md in this agent's folder\n10> "
    finally:
        role.unlink()
        role.write_text(kept)


def test_a_session_that_is_gone_is_said_and_survived(shared):
    world, run = shared
    opened = Pane(
        world,
        {"MAS_AGENT_ID": "10", "MAS_SESSION_ID": "550e8400-e29b-41d4-a716-446655440000"},
        run["unitDir"],
    )
    opened.wait_for(PROMPT)
    opened.type("print(1)\r")
    assert "[not run: no session 550e8400-" in opened.wait_for(PROMPT)
    opened.type("\x04")
    assert opened.process.wait(30) == 0
    opened.close()


def test_the_agent_reads_a_pipe_to_its_end(world):
    result = world.run(sys.executable, "-m", "mas.agent", stdin="hello\nlast words", MAS_AGENT_ID="10")
    assert result.stdout.count("[10: message received, ") == 2


def test_a_long_message_is_cut_where_it_is_shown():
    assert _quote("a\nb") == "| a\n| b"
    assert _quote("\n" * 100) == "| \n" * 40 + "| [and 61 characters more]"
