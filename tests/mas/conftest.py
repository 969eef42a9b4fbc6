"""Runs under a root of their own, on a tmux server of their own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from mas.config import Agent, Agents, RunConfig, Unit
from mas.runs import Runs
from mas.settings import Settings

DEADLINE_SECONDS = 30.0
PROGRAMS = Path(__file__).parent / "programs"


class Site:
    """One root with its runs, and ways to look at it from outside."""

    def __init__(self, root):
        self.root = root
        self.sessions = root / "sessions"
        self.socket = f"mas-test-{uuid.uuid4().hex[:12]}"
        self.settings = self.configured()
        self.runs = Runs(self.settings)

    def configured(self, **changes):
        options = {
            "root": self.root,
            "session_mode": "isolated",
            "tmux_socket": self.socket,
            "agent_command": "cat",
        }
        return Settings(**(options | changes))

    def tmux(self, *words):
        done = subprocess.run(["tmux", "-L", self.socket, *words], capture_output=True, text=True)
        return done.stdout.splitlines()

    def tmux_sessions(self):
        return self.tmux("list-sessions", "-F", "#{session_name}")

    def folders(self):
        return sorted(path.name for path in self.sessions.iterdir() if not path.name.startswith("."))

    def state_folders(self):
        return sorted(path.name for path in (self.sessions / ".mas").glob("*-*-*-*-*"))

    def processes(self):
        """Every process that works for this root, wherever it is: by its words or its environment."""
        return [
            int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and self._is_mine(path)
        ]

    def _is_mine(self, path):
        try:
            words = (path / "cmdline").read_bytes()
            variables = (path / "environ").read_bytes().split(b"\0")
        except OSError:
            return False
        told = f"MAS_ROOT={self.root}".encode() in variables and b"MAS_AGENT_ID" in b"".join(variables)
        return told or (b"supervisor.py" in words and os.fsencode(self.root) in words)

    def close(self):
        self.tmux("kill-server")
        eventually(lambda: not self.processes(), "the end of every process of this root")
        folder = Path(os.environ.get("TMUX_TMPDIR", "/tmp")) / f"tmux-{os.getuid()}"
        (folder / self.socket).unlink(missing_ok=True)  # tmux leaves it behind


def eventually(condition, what="the condition"):
    """The first true value of `condition`, polled until a deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come about within {DEADLINE_SECONDS:.0f} s")


def team(command=None, *, workers=1, meta=False, prompt="You are {id}.", mode=None):
    """A small team whose agents all run the same command."""

    def agent(agent_id):
        return Agent(id=agent_id, prompt=prompt.replace("{id}", agent_id), command=command)

    members = tuple(agent(f"1{number}") for number in range(1, workers + 1))
    unit = Unit(unit_id=1, manager=agent("10"), workers=members)
    agents = Agents(meta_manager=agent("00") if meta else None, units=(unit,))
    return RunConfig(agents=agents, **({"session_mode": mode} if mode else {}))


def program(name, *words):
    """The command line of a test program."""
    return shlex.join([sys.executable, str(PROGRAMS / f"{name}.py"), *map(str, words)])


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


@pytest.fixture
def make_site(tmp_path):
    """Roots by name, each with a tmux server of its own."""
    made = []

    def make(name="root"):
        (tmp_path / name).mkdir()
        made.append(Site(tmp_path / name))
        return made[-1]

    yield make
    for place in made:
        place.close()


@pytest.fixture
def site(make_site):
    return make_site()


class Reader:
    """A run whose agent 11 keeps every byte it is sent in a file."""

    def __init__(self, site, note):
        self.site, self.note = site, note.with_name(f"{note.name}-11")
        self.run = site.runs.create(team(program("reader", note), prompt="{id}"))
        eventually(lambda: self.received().endswith(b"\r"), "the prompt")

    def received(self):
        return self.note.read_bytes() if self.note.exists() else b""

    def send(self, text, **options):
        self.site.runs.send(self.run.session_id, "11", text, **options)

    def scroll(self):
        pane = self.site.runs.show(self.run.session_id).agents[1].pane
        self.site.tmux("copy-mode", "-t", pane)


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """One such run for all tests of a module."""
    folder = tmp_path_factory.mktemp("reader")
    place = Site(folder)
    yield Reader(place, folder / "received")
    place.close()


@pytest.fixture(name="eventually")
def eventually_fixture():
    return eventually


@pytest.fixture(name="team")
def team_fixture():
    return team


@pytest.fixture(name="program")
def program_fixture():
    return program


@pytest.fixture(name="is_running")
def is_running_fixture():
    return is_running
