"""A long step is shown to a person, and logged to a program."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

from structlog.testing import CapturingLogger

from sandbox.events import SandboxLogger
from sandbox.progress import progress

STEP = """
import time
from structlog.testing import CapturingLogger
from sandbox.events import SandboxLogger
from sandbox.progress import progress

events = CapturingLogger()
try:
    with progress(SandboxLogger(events), "compiling [the] guest", expected_seconds=95):
        time.sleep(0.3)
        {body}
except KeyError:
    pass
print(len(events.calls))
"""


def run_on_a_terminal(code):
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "PYTHONWARNINGS": "error"}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=follower, env=environment
    ) as process:
        os.close(follower)
        shown = b""
        try:
            while chunk := os.read(leader, 65536):
                shown += chunk
        except OSError:  # Linux reports the end of a terminal as EIO
            pass
        os.close(leader)
        return process.stdout.read().decode(), shown.decode()


def test_a_terminal_sees_what_happens_how_long_and_that_it_is_once():
    printed, shown = run_on_a_terminal(STEP.format(body="pass"))
    assert "compiling [the] guest (about 95 s, once per machine)" in shown
    assert "0:00:00" in shown
    assert printed == "0\n"


def test_of_steps_inside_steps_the_innermost_is_shown():
    inner = "with progress(SandboxLogger(events), 'inner', expected_seconds=5): time.sleep(0.3)"
    _, shown = run_on_a_terminal(STEP.format(body=f"{inner}\n        time.sleep(0.3)"))
    frames = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).splitlines()
    assert any("inner (about 5 s" in frame for frame in frames)
    while_inside = [frame for frame in frames if re.match(r"[-\\|/] inner", frame)]
    assert while_inside
    after = frames[frames.index(while_inside[-1]) + 1 :]
    assert any(re.match(r"[-\\|/] compiling", frame) for frame in after)
    assert [frame.split(" (")[0] for frame in frames[-2:]] == ["* compiling [the] guest", "* inner"]


def test_a_step_that_fails_leaves_the_terminal_usable():
    _, shown = run_on_a_terminal(STEP.format(body="raise KeyError"))
    assert "Traceback" not in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_without_a_terminal_there_is_one_log_line_and_nothing_printed(capfd):
    events = CapturingLogger()
    with progress(SandboxLogger(events), "compiling the guest", expected_seconds=95):
        pass
    assert [(call.method_name, call.args, call.kwargs) for call in events.calls] == [
        ("info", ("progress",), {"what": "compiling the guest", "expected_seconds": 95})
    ]
    assert capfd.readouterr() == ("", "")
