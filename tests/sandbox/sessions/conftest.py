"""Stateful sessions in a root of the test's own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sandbox.events import SandboxLogger
from sandbox.sessions import create_session_sandbox, get_session_sandbox
from sandbox.sessions.residents import live_sessions

PROCESS = """
import sys
from sandbox import *
root, session_id = sys.argv[1:3]
"""


class Stateful:
    """Makes and finds stateful sessions of one test, and closes its sandboxes after it."""

    def __init__(self, root, events, wait_until):
        self.wait_until = wait_until
        self.root, self.events, self._logger = root, events, SandboxLogger(events)
        self._made = []

    def new(self, **options):
        options = {"stateful": True, "logger": self._logger, **options}
        _, box = create_session_sandbox(workspace_root=self.root, **options)
        self._made.append(box)
        return box

    def get(self, session_id, **options):
        options = {"logger": self._logger, **options}
        box = get_session_sandbox(session_id, workspace_root=self.root, **options)
        self._made.append(box)
        return box

    def live(self, box):
        return live_sessions.get(self.root, box.session_id)

    def lose_memory(self, box):
        """What a kill does to this process's memory of a session."""
        live_sessions.forget(self.root, box.session_id)

    def state_file(self, box):
        return self.root / ".state" / box.session_id / "interpreter.state"

    def process(self, session_id, code):
        """Another process with the session's id and root, its output to be read."""
        return subprocess.Popen(
            [sys.executable, "-c", PROCESS + code, str(self.root), session_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def process_ahead(self, session_id, code, *, save_within=0.5, then=""):
        """Another process, which has just taken a turn that is in its memory alone and waits for stdin."""
        process = self.process(
            session_id,
            f"box = get_session_sandbox(session_id, workspace_root=root, save_within_seconds={save_within})\n"
            f"print(box.execute({code!r}).state, flush=True)\nsys.stdin.readline()\n{then}",
        )
        assert process.stdout.readline() == "live\n"
        return process

    def run(self, session_id, code):
        output, _ = (process := self.process(session_id, code)).communicate(timeout=120)
        assert process.returncode == 0
        return output

    def close(self):
        for box in self._made:
            self.lose_memory(box)
            box.close()


@pytest.fixture
def stateful(tmp_path, events, wait_until):
    sessions = Stateful(tmp_path, events, wait_until)
    yield sessions
    sessions.close()


@pytest.fixture
def bounds():
    """The bounds of live sessions, as they were again after the test."""
    before = live_sessions.most, live_sessions.most_bytes
    yield live_sessions
    live_sessions.most, live_sessions.most_bytes = before
