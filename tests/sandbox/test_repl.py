"""The prompt, at a real terminal and without one."""

from __future__ import annotations

import ctypes
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import pytest

from sandbox.sessions import create_session_sandbox, get_session_sandbox, list_sessions
from sandbox.statements import Lines, statements

COMMAND = [sys.executable, "-c", "from sandbox.cli import main; main()", "repl"]
DEADLINE_SECONDS = 60
ESCAPES = re.compile(rb"\x1b\[[?0-9;]*[a-zA-Z]|\r|\x07")


def run(words, stdin, cwd):
    return subprocess.run(
        [*COMMAND, *words], input=stdin, capture_output=True, text=True, cwd=cwd, timeout=120
    )


class Terminal:
    """A prompt on a terminal of its own."""

    def __init__(self, cwd, *words):
        self._seen = b""
        environment = {
            **os.environ,
            "TERM": "dumb",
            "XDG_STATE_HOME": str(cwd / "state"),
            "INPUTRC": os.devnull,
        }
        self._fd, other = pty.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, *words], stdin=other, stdout=other, stderr=other, cwd=cwd, env=environment,
            start_new_session=True, preexec_fn=_own_terminal,
        )  # fmt: skip
        os.close(other)

    def type(self, text):
        os.write(self._fd, text.encode())

    def interrupt_until(self, text):
        """Press Ctrl-C, again after a while: one in the instant before readline waits is lost to it."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            self.type("\x03")
            try:
                return self.expect(text, seconds=2)
            except AssertionError:
                if time.monotonic() > deadline:
                    raise

    def expect(self, text, seconds=DEADLINE_SECONDS):
        """What was shown up to `text`, which is taken away with it."""
        wanted, deadline = text.encode(), time.monotonic() + seconds
        while wanted not in self._seen:
            assert time.monotonic() < deadline, f"{text!r} is not in {self._seen!r}"
            if select.select([self._fd], [], [], 0.1)[0]:
                self._seen = ESCAPES.sub(b"", self._seen + self._read())
        before, _, self._seen = self._seen.partition(wanted)
        return before.decode()

    def _read(self):
        try:
            return os.read(self._fd, 65536)
        except OSError:  # nobody is at the other end any more
            raise AssertionError(f"the prompt has ended: {self._seen!r}") from None

    def say(self, line):
        """Type a line at the prompt; what came before the next prompt, without the echo."""
        self.type(line + "\n")
        return self.expect(">>> ").split("\n", 1)[1]

    def end(self):
        self.type("\x04")
        return self.process.wait(DEADLINE_SECONDS)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._fd)


def _own_terminal():
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal(tmp_path):
    opened = []

    def open_terminal(*words):
        opened.append(Terminal(tmp_path, *words))
        opened[-1].expect(">>> ")
        return opened[-1]

    yield open_terminal
    for one in opened:
        one.close()


def send_to_thread(pid, thread, number):
    """What `kill` cannot: a signal for one thread of another process."""
    assert ctypes.CDLL(None).tgkill(pid, thread, number) == 0


def only_session(root):
    (found,) = list_sessions(root / "workspace")
    return found.session_id


def test_results_are_echoed_and_variables_stay(terminal):
    prompt = terminal()
    assert prompt.say("x = 20") == ""
    assert prompt.say("x + 1") == "21\n"
    assert prompt.say("print('said'); x") == "said\n20\n"
    assert prompt.say("None") == ""
    assert prompt.end() == 0


def test_a_block_is_typed_over_several_lines(terminal):
    prompt = terminal()
    prompt.type("def double(n):\n")
    prompt.expect("... ")
    prompt.type("    return n * 2\n")
    prompt.expect("... ")
    prompt.say("")
    assert prompt.say("double(21)") == "42\n"


def test_an_error_is_shown_and_the_prompt_goes_on(terminal):
    prompt = terminal()
    assert prompt.say("1 / 0").splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert "SyntaxError" in prompt.say("a b")
    assert prompt.say("1") == "1\n"


def test_ctrl_c_stops_the_guest_and_undoes_its_turn(terminal):
    prompt = terminal()
    prompt.say("x = 1")
    prompt.type("exec(\"x = 2; print('runs', flush=True)\\nwhile True: pass\")\n")
    prompt.expect("runs\n")
    prompt.type("\x03")
    shown = prompt.expect(">>> ")
    assert "sandbox: stopped on request" in shown
    assert "sandbox: variables are as they were before; files stay as they are now" in shown
    assert prompt.say("x") == "1\n"


def test_ctrl_c_at_the_prompt_drops_what_was_typed(terminal):
    prompt = terminal()
    prompt.type("def unfinished():\n")
    prompt.expect("... ")
    assert "KeyboardInterrupt" in prompt.interrupt_until(">>> ")
    assert prompt.say("1 + 1") == "2\n"


def test_lines_come_back_with_the_arrow_keys_also_next_time(terminal, tmp_path):
    prompt = terminal()
    prompt.say("'remembered'")
    prompt.type("\x1b[A\n")
    prompt.expect("'remembered'\n'remembered'\n")
    prompt.expect(">>> ")
    assert prompt.end() == 0
    again = terminal("--session", only_session(tmp_path))
    again.type("\x1b[A\n")
    again.expect("'remembered'\n'remembered'\n")
    history = tmp_path / "state" / "session-sandbox" / "repl_history"
    assert history.stat().st_mode & 0o777 == 0o600


def test_the_code_reads_what_is_typed(terminal):
    prompt = terminal()
    prompt.type("name = input('who? ')\n")
    prompt.expect("who? ")
    prompt.type("me\n")
    prompt.expect(">>> ")
    assert prompt.say("name") == "'me'\n"


def test_a_session_goes_on_at_another_prompt(terminal, tmp_path):
    first = terminal()
    first.say("x = 'kept'")
    assert first.end() == 0
    second = terminal("--session", only_session(tmp_path))
    assert second.say("x") == "'kept'\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_prompt_that_is_told_to_end_saves_its_last_turn(terminal, tmp_path, number):
    prompt = terminal()
    prompt.say("x = 'last'")
    prompt.process.send_signal(number)
    assert prompt.process.wait(DEADLINE_SECONDS) == 128 + number
    with get_session_sandbox(only_session(tmp_path), workspace_root=tmp_path / "workspace") as box:
        assert box.execute("x").value == "'last'"


def test_a_request_to_end_that_another_thread_takes_is_heard(terminal, tmp_path):
    prompt = terminal()
    prompt.say("x = 'last'")
    others = set(map(int, os.listdir(f"/proc/{prompt.process.pid}/task"))) - {prompt.process.pid}
    send_to_thread(prompt.process.pid, others.pop(), signal.SIGTERM)
    assert prompt.process.wait(DEADLINE_SECONDS) == 128 + signal.SIGTERM
    with get_session_sandbox(only_session(tmp_path), workspace_root=tmp_path / "workspace") as box:
        assert box.execute("x").value == "'last'"


def test_a_second_request_to_end_does_not_disturb_the_save(terminal, tmp_path):
    prompt = terminal()
    prompt.say("x = bytearray(64 * 1024 * 1024)")
    while prompt.process.poll() is None:
        prompt.process.send_signal(signal.SIGHUP)
        time.sleep(0.001)
    with get_session_sandbox(only_session(tmp_path), workspace_root=tmp_path / "workspace") as box:
        assert box.execute("len(x)").value == str(64 * 1024 * 1024)


def test_a_request_to_end_stops_the_code_that_runs(terminal, tmp_path):
    prompt = terminal("--timeout", "none", "--fuel", "none")
    prompt.say("x = 1")
    prompt.type("exec(\"x = 2; print('runs', flush=True)\\nwhile True: pass\")\n")
    prompt.expect("runs\n")
    prompt.process.send_signal(signal.SIGTERM)
    assert prompt.process.wait(DEADLINE_SECONDS) == 128 + signal.SIGTERM
    with get_session_sandbox(only_session(tmp_path), workspace_root=tmp_path / "workspace") as box:
        assert box.execute("x").value == "1"


@pytest.mark.parametrize("word", ["exit", "quit()"])
def test_leaving_by_word_works_too(terminal, word):
    prompt = terminal()
    prompt.type(f"{word}\n")
    assert prompt.process.wait(DEADLINE_SECONDS) == 0


def test_statements_from_a_pipe_run_one_by_one(tmp_path):
    code = "x = 20\ndef f(n):\n    return n + 1\nf(x)\nif x:\n    y = 5\nelse:\n    y = 6\ny\n1 / 0\n'last'"
    done = run([], code, tmp_path)
    assert (done.returncode, done.stdout) == (0, "21\n5\n'last'\n")
    session_line, *trace = done.stderr.splitlines()
    assert session_line == f"session {only_session(tmp_path)}"
    assert trace[-1] == "ZeroDivisionError: division by zero"


def test_json_is_one_result_a_line(tmp_path):
    done = run(["--json"], "x = 1\nx + 1\n", tmp_path)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(result["value"], result["state"]) for result in results] == [(None, "live"), ("2", "live")]
    assert done.stderr == ""


def test_a_prompt_opens_no_session_by_mistake(tmp_path):
    done = run(["--session", "missing"], "1\n", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "sandbox: there is no such session: 'workspace/missing'\n"
    assert not (tmp_path / "workspace" / "missing").exists()


def test_limits_and_modules_are_given_as_for_run(tmp_path):
    done = run(["--timeout", "0.3", "--preload", "numpy"], "x = 1\nwhile True: pass\n\nx\n", tmp_path)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "sandbox: stopped after 0.3 s; allow more with --timeout" in done.stderr


def test_a_fresh_prompt_goes_on_where_the_state_is_damaged(tmp_path):
    root = tmp_path / "workspace"
    session_id, box = create_session_sandbox(workspace_root=root, stateful=True)
    box.execute("x = 1")
    box.close()
    (root / ".state" / session_id / "interpreter.state").write_bytes(b"damaged")
    refused = run(["--session", session_id], "x\n", tmp_path)
    assert refused.returncode == 1
    assert "cannot be resumed: it is no saved interpreter of this version" in refused.stderr
    fresh = run(["--session", session_id, "--fresh"], "'x' in globals()\n", tmp_path)
    assert (fresh.returncode, fresh.stdout) == (0, "False\n")


class Typed(Lines):
    def __init__(self, text):
        self._left = text.split("\n")

    def read(self, prompt):
        return self._left.pop(0) if self._left else None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1\n2", ["1", "2"]),
        ("\n\n1\n\n", ["1"]),
        ("(1,\n\n2)", ["(1,\n\n2)"]),
        ("'''a\n\nb'''", ["'''a\n\nb'''"]),
        ("if a:\n  b\n\nc", ["if a:\n  b\n", "c"]),
        ("if a:\n  b\nc", ["if a:\n  b", "c"]),
        ("if a:\n  b\nelif c:\n  d\nelse:\n  e\nf", ["if a:\n  b\nelif c:\n  d\nelse:\n  e", "f"]),
        ("try:\n  a\nexcept E:\n  b\nfinally:\n  c\n\n", ["try:\n  a\nexcept E:\n  b\nfinally:\n  c\n"]),
        ("@d\ndef f():\n  pass\nf()", ["@d\ndef f():\n  pass", "f()"]),
        ("a b\nc", ["a b", "c"]),
        ("def f():", ["def f():"]),
        ("x = 1 + \\\n2", ["x = 1 + \\\n2"]),
        ("def f():\n  if a:\n    b\n  c\n\n", ["def f():\n  if a:\n    b\n  c\n"]),
    ],
)
def test_input_is_cut_into_statements(text, expected):
    assert list(statements(Typed(text))) == expected
