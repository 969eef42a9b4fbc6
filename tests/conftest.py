"""A place of its own for every test: a root, a tmux socket, a server, a logger that remembers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mas.runs import Runs
from mas.settings import Settings
from sandbox.events import SandboxLogger
from sandbox.sessions import make_session

# A shell starts what it runs in the background with Ctrl-C ignored, and every child would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

PROJECT = Path(__file__).resolve().parent.parent
DEADLINE_SECONDS = 60.0


def wait_until(condition, what="the condition"):
    """The first true value of `condition`, polled until a deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come true within {DEADLINE_SECONDS:.0f} s")


@pytest.fixture(name="wait_until")
def _wait_until():
    return wait_until


class World:
    """One MAS_ROOT with a tmux server of its own; nothing in it is seen by another test."""

    wait_until = staticmethod(wait_until)

    def __init__(self, root):
        self.root = root
        self.socket = f"mas-test-{uuid.uuid4().hex[:12]}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAS_", "TMUX"))}
        self.env = {
            **kept,
            "MAS_ROOT": str(root),
            "MAS_TMUX_SOCKET": self.socket,
            "MAS_AGENT_COMMAND": "cat",
            "LC_ALL": "C.UTF-8",
        }

    def run(self, *words, check=True, stdin="", **env):
        result = subprocess.run(
            [str(word) for word in words],
            cwd=self.root,
            env=self.env | {name: str(value) for name, value in env.items()},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert not check or result.returncode == 0, f"{words} ended with {result.returncode}: {result.stderr}"
        return result

    def mas(self, *words, **options):
        return self.run(sys.executable, "-m", "mas", *words, **options)

    def script(self, *words, **options):
        return self.run(PROJECT / "mas_refactored.sh", *words, **options)

    def tmux(self, *words):
        return self.run("tmux", "-L", self.socket, *words, check=False)

    def tmux_sessions(self):
        return self.tmux("list-sessions", "-F", "#{session_name}").stdout.split()

    def index(self):
        return json.loads((self.root / "sessions" / ".sessions.index").read_text())

    @contextmanager
    def server(self, *options, **env):
        """A real server on a free port of loopback, and its address."""
        log = (self.root / f"server-{uuid.uuid4().hex[:6]}.log").open("w+b")
        process = subprocess.Popen(
            [sys.executable, "-m", "mas", "serve", "--port", "0", *options],
            cwd=self.root,
            env=self.env | env,
            stdout=log,
            stderr=log,
        )
        note = self.root / "sessions" / ".api.json"
        try:
            wait_until(lambda: process.poll() is not None or _is_of(note, process.pid), "the server's start")
            assert process.poll() is None, Path(log.name).read_text()
            yield json.loads(note.read_text())["url"]
        finally:
            process.terminate()
            process.wait(30)
            log.close()

    def runs(self):
        """The runs of this world, without a door."""
        return Runs(Settings(root=self.root, tmux_socket=self.socket, agent_command="cat"))

    def close(self):
        for entry in self.runs().list(status="active").sessions:
            self.runs().stop(entry.session_id)
        self.tmux("kill-server")
        Path(f"/tmp/tmux-{os.getuid()}", self.socket).unlink(missing_ok=True)  # tmux leaves it behind


def _is_of(note, pid):
    try:
        return json.loads(note.read_text())["pid"] == pid
    except (OSError, ValueError):
        return False


@pytest.fixture(scope="module")
def make_world(tmp_path_factory):
    """Worlds that the tests of a module share."""
    made = []

    def make():
        made.append(World(tmp_path_factory.mktemp("world")))
        return made[-1]

    yield make
    for place in made:
        place.close()


@pytest.fixture
def world(tmp_path):
    place = World(tmp_path)
    yield place
    place.close()


class Events(list):
    """A logger that keeps what it is told, as (level, event, fields)."""

    def debug(self, event, **fields):
        self.append(("debug", event, fields))

    def info(self, event, **fields):
        self.append(("info", event, fields))

    def warning(self, event, **fields):
        self.append(("warning", event, fields))

    def error(self, event, **fields):
        self.append(("error", event, fields))

    def names(self):
        return [event for _, event, _ in self]

    def fields(self, name):
        """The fields of every event of that name."""
        return [fields for _, event, fields in self if event == name]

    def at(self, *levels):
        return [(event, fields) for level, event, fields in self if level in levels]


@pytest.fixture
def events():
    return Events()


@pytest.fixture
def logger(events):
    return SandboxLogger(events)


@pytest.fixture
def aged_session(tmp_path):
    """Makes a session that was last used so many hours ago, and returns its id."""

    def make(hours=48.0, root=tmp_path, session_id=None, **files):
        def fill(folder):
            for name, content in files.items():
                (folder / name).write_text(content)

        session_id = session_id or str(uuid.uuid4())
        folder = make_session(session_id, root, fill=fill)
        then = (datetime.now(UTC) - timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        note = folder / ".metadata.json"
        note.write_text(json.dumps(json.loads(note.read_text()) | {"created_at": then, "updated_at": then}))
        return session_id

    return make


@pytest.fixture(scope="session")
def killed_at():
    """Runs code in another process that is killed where it first calls a certain function of `os`."""

    def run(function, code, *words):
        deadly = f"import os, sys\nos.{function} = lambda *_, **__: os.kill(os.getpid(), 9)\n"
        done = subprocess.run([sys.executable, "-c", deadly + code, *map(str, words)], timeout=60)
        assert done.returncode == -signal.SIGKILL

    return run


@pytest.fixture
def make_box(tmp_path):
    """Sandboxes on the test's own workspace; all of them start from the one image of the process."""
    from sandbox import ExecutionPolicy, create_sandbox

    made = []

    def make(workspace="workspace", **fields):
        box = create_sandbox(policy=ExecutionPolicy(**fields), workspace=tmp_path / workspace)
        made.append(box)
        return box

    yield make
    for box in made:
        box.close()


@pytest.fixture
def box(make_box):
    return make_box()
