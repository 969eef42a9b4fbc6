"""The tmux server that holds the agents: the only module that starts tmux."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
import uuid
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from mas.errors import TmuxFailed, TmuxMissing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Pane", "PaneStart", "Session", "SessionExists", "Tmux"]

PROGRAM = "tmux"
OLDEST_VERSION = (3, 2)
SANITIZING_VERSION = (3, 7)  # from here on paste-buffer rewrites what it pastes unless told -S
CONFIGURATION = Path(__file__).with_name("tmux.conf")
TIMEOUT_SECONDS = 15.0
WIDTH, HEIGHT = "220", "60"  # room for six panes in a window that nobody has attached to yet
MESSAGE_MAX_BYTES = 12_000  # tmux takes at most 16 kB of arguments in one call
VARIABLES_MAX_BYTES = 4_000
ATTEMPTS, RETRY_SECONDS = 20, 0.05

RUN_OPTION = "@mas_run"  # whose session it is: names alone can be reused
WHOLE_OPTION = "@mas_whole"  # set last, so that a half-made session can be told
AGENT_OPTION = "@mas_agent"

# The server leaves when its last session ends, and a client that comes just then is turned away.
LEAVING = ("server exited", "lost server")
ABSENT = ("no server running", "error connecting", "no sessions", *LEAVING)
GONE = ("can't find", "no current", "session not found", *ABSENT)
DUPLICATE = "duplicate session"

PLAIN_VARIABLES = ("HOME", "LANG", "LC_ALL", "PATH", "TMUX_TMPDIR", "USER")

Command = list[str]


@dataclass(frozen=True)
class Session:
    """A session of the server; `handle` is its number there, never used twice while the server lives."""

    handle: str
    name: str
    run: str
    whole: bool


@dataclass(frozen=True)
class Pane:
    """A pane of a session; `agent_id` is empty for one that a user opened."""

    pane_id: str
    agent_id: str
    dead: bool
    pid: int
    window: str


@dataclass(frozen=True)
class PaneStart:
    """A pane to be made: the words of its program, executed without a shell."""

    agent_id: str
    folder: Path
    argv: Sequence[str]


class SessionExists(TmuxFailed):
    """The name of the session is taken."""


class Tmux:
    """The server on one socket; it is started by the first session and ends with the last."""

    def __init__(self, socket: str) -> None:
        self.socket = socket

    def check(self) -> None:
        """TmuxMissing unless there is a tmux that is new enough."""
        self._version()

    def sessions(self) -> list[Session]:
        """Every session of the server, in one call; none when there is no server."""
        fields = f"#{{session_id}}|#{{{RUN_OPTION}}}|#{{{WHOLE_OPTION}}}|#{{session_name}}"
        lines = self._ask(["list-sessions", "-F", fields])
        parts = [line.split("|", 3) for line in lines]
        return [Session(handle, name, run, whole == "1") for handle, run, whole, name in parts]

    def panes(self, session: Session) -> list[Pane]:
        """The panes of a session, by window; none when it is gone."""
        fields = f"#{{pane_id}}|#{{{AGENT_OPTION}}}|#{{pane_dead}}|#{{pane_pid}}|#{{window_name}}"
        lines = self._ask(["list-panes", "-s", "-t", session.handle, "-F", fields])
        parts = [line.split("|", 4) for line in lines]
        return [Pane(pane, agent, dead == "1", int(pid), window) for pane, agent, dead, pid, window in parts]

    def start(
        self,
        name: str,
        run: str,
        windows: Iterable[tuple[str, Sequence[PaneStart]]],
        environment: Mapping[str, str],
    ) -> None:
        """Make a session with all its windows and panes; SessionExists when the name is taken."""
        commands = _server_options()
        for number, (window, starts) in enumerate(windows):
            target = f"={name}:{number}"
            first, *others = starts
            opening = (
                ["new-window", "-d", "-t", target]
                if number
                else ["new-session", "-d", "-s", name, "-x", WIDTH, "-y", HEIGHT, *_environment(environment)]
            )
            commands += [[*opening, "-n", window, *_program(first)]]
            if not number:
                commands += [["set-option", "-t", f"={name}:", RUN_OPTION, run]]
            commands += [*_window_options(target), _label(target, first)]
            for start in others:
                commands += [["split-window", "-t", target, *_program(start)], _label(target, start)]
                commands += [["select-layout", "-t", target, "tiled"]]
            commands += [["select-pane", "-t", f"{target}.0"]]
        commands += [["set-option", "-t", f"={name}:", WHOLE_OPTION, "1"]]
        for batch in _batches(commands):
            self._run(batch, what="new-session")

    def respawn(self, pane: Pane, start: PaneStart) -> None:
        """Run a program in a pane that exists, in place of what is there."""
        self._run([["respawn-pane", "-k", "-t", pane.pane_id, *_program(start)]])

    def kill(self, session: Session) -> None:
        """End a session; nothing when it is gone already."""
        self._ask(["kill-session", "-t", session.handle])

    def paste(self, pane: Pane, text: bytes, *, submit: bool) -> None:
        """Type `text` into a pane as it is, bracketed where its program asked for that, then Enter.

        Enter is pasted too: sent as a key it would go to the copy mode of a user who scrolls. A dead pane
        takes nothing; older servers crash when asked to.
        """
        buffer = f"mas-{uuid.uuid4().hex}"
        plain = "-S " if self._version() >= SANITIZING_VERSION else ""
        paste = f"paste-buffer -p -r -d {plain}-b {buffer} -t {pane.pane_id}"
        commands: list[Command] = [["load-buffer", "-b", buffer, "-"], _unless_dead(pane, paste)]
        if submit:
            enter = f"paste-buffer -d {plain}-b {buffer} -t {pane.pane_id}"
            commands += [["set-buffer", "-b", buffer, "\r"], _unless_dead(pane, enter)]
        self._run(commands, what="paste-buffer", stdin=text)

    def run_outside(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        """Run a program from the server itself, in no pane and no agent's tree.

        The server gives it the variables of some session, so it begins with those of the machine alone. It
        is put in the background, because a server that leaves ends what it waits for.
        """
        kept = {name: value for name, value in _clean_environment().items() if name in PLAIN_VARIABLES}
        assigned = [f"{name}={value}" for name, value in {**kept, **environment}.items()]
        line = f"{shlex.join(['env', '-i', *assigned, *argv])} </dev/null >/dev/null 2>&1 &"
        self._run([["run-shell", "-b", _unformatted(line)]])

    def attach_command(self, name: str) -> str:
        """The command line with which a person attaches to a session."""
        return shlex.join(["tmux", "-L", self.socket, "attach-session", "-t", f"={name}"])

    def _ask(self, command: Command) -> list[str]:
        try:
            return self._run([command]).splitlines()
        except TmuxFailed as error:
            if error.reason.startswith(GONE):
                return []
            raise

    def _version(self) -> tuple[int, int]:
        output = self._call(["-V"], "-V").stdout.decode(errors="replace").strip()
        found = re.search(r"(\d+)\.(\d+)", output)
        if found is None:
            return SANITIZING_VERSION if output == "tmux master" else _too_old(output)
        version = int(found[1]), int(found[2])
        return version if version >= OLDEST_VERSION else _too_old(output)

    def _run(self, commands: list[Command], *, what: str | None = None, stdin: bytes = b"") -> str:
        """Run commands in one call; the first that fails ends it. Retried only where nothing was done."""
        words = [word for command in commands for word in [*map(_unseparated, command), ";"]][:-1]
        name = what or commands[0][0]
        for _ in range(ATTEMPTS):
            done = self._call(["-u", "-L", self.socket, "-f", str(CONFIGURATION), *words], name, stdin)
            reason = done.stderr.decode(errors="replace").strip()
            if done.returncode == 0:
                return done.stdout.decode(errors="replace")
            if not reason.startswith(LEAVING):
                break
            time.sleep(RETRY_SECONDS)
        kind = SessionExists if reason.startswith(DUPLICATE) else TmuxFailed
        raise kind(name, reason or f"exit code {done.returncode}", self.socket)

    def _call(self, words: list[str], name: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(  # noqa: S603 - words, never a shell; user text goes by stdin
                [PROGRAM, *words],
                input=stdin,
                capture_output=True,
                timeout=TIMEOUT_SECONDS,
                env=_clean_environment(),
                check=False,
            )
        except FileNotFoundError:
            raise TmuxMissing("tmux is not installed") from None
        except OSError as error:
            raise TmuxMissing(f"tmux cannot be run ({error.strerror})") from None
        except subprocess.TimeoutExpired:
            reason = f"no answer within {TIMEOUT_SECONDS:.0f} seconds"
            raise TmuxFailed(name, reason, self.socket) from None


def _clean_environment() -> dict[str, str]:
    """The server keeps the environment of whoever starts it: no run's variables and no token belong there."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("MAS_", "TMUX"))} | {
        name: os.environ[name] for name in ("TMUX_TMPDIR",) if name in os.environ
    }


def _own_variables() -> str:
    """The names of this process's variables: a session has those, not the ones the server started with."""
    names = [name for name in _clean_environment() if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)]
    kept = list(accumulate(names, lambda text, name: f"{text} {name}"))
    return next((text for text in reversed(kept) if len(text) < VARIABLES_MAX_BYTES), "")


def _too_old(output: str) -> tuple[int, int]:
    raise TmuxMissing(f"this tmux cannot be used ({output or 'it does not tell its version'})")


def _environment(environment: Mapping[str, str]) -> Command:
    return [word for name, value in environment.items() for word in ("-e", f"{name}={value}")]


def _program(start: PaneStart) -> Command:
    return ["-c", _unformatted(str(start.folder)), "--", *start.argv]


def _server_options() -> list[Command]:
    """What the commands below rely on, whoever started the server and with what configuration."""
    options = {"base-index": "0", "update-environment": _own_variables()}
    settings = [["set-option", "-g", name, value] for name, value in options.items()]
    return [*settings, ["set-option", "-gw", "pane-base-index", "0"]]


def _window_options(target: str) -> list[Command]:
    """What the configuration says as well, for a server that somebody else started."""
    options = {"remain-on-exit": "on", "automatic-rename": "off", "allow-rename": "off"}
    return [["set-option", "-w", "-t", target, name, value] for name, value in options.items()]


def _label(target: str, start: PaneStart) -> Command:
    """Name the pane that was made last: it is the window's active one."""
    return ["set-option", "-p", "-t", target, AGENT_OPTION, start.agent_id]


def _unless_dead(pane: Pane, command: str) -> Command:
    return ["if-shell", "-F", "-t", pane.pane_id, "#{pane_dead}", "", command]


def _unformatted(text: str) -> str:
    """tmux expands #{...} and runs #(...) in some arguments; a doubled # is a plain one."""
    return text.replace("#", "##")


def _unseparated(word: str) -> str:
    """A semicolon at the end of a word would end the command."""
    return f"{word[:-1]}\\;" if word.endswith(";") else word


def _batches(commands: Iterable[Command]) -> list[list[Command]]:
    """The commands in order, in as few calls as their size allows."""
    batches: list[list[Command]] = [[]]
    size = 0
    for command in commands:
        weight = sum(len(os.fsencode(word)) + 1 for word in command)
        if batches[-1] and size + weight > MESSAGE_MAX_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(command)
        size += weight
    return batches
