"""The `sandbox repl` command: a Python prompt in a session that remembers."""

from __future__ import annotations

import codeop
import signal
import sys
import threading
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandbox.interrupts import in_worker
from sandbox.invocation import (
    AsJson,
    Data,
    Fuel,
    Memory,
    PolicyFile,
    Preload,
    Timeout,
    note_limits,
    read_limits,
    read_policy,
    relay_output,
    standard_input,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from sandbox import ExecutionPolicy, SandboxResult, SessionSandbox

PROMPT, MORE = ">>> ", "... "
LEAVING = {"exit", "quit", "exit()", "quit()"}
MOST_HISTORY_LINES = 10_000

DEFAULT_ROOT = Path("workspace")
Session = Annotated[
    str | None, typer.Option("--session", metavar="ID", help="Go on in this session; default: a new one.")
]
Root = Annotated[
    Path,
    typer.Option("--root", "--workspace-root", metavar="DIR", help="The folder that holds the sessions."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Keep the session's files and forget its variables.")]


def repl(
    *,
    session: Session = None,
    root: Root = DEFAULT_ROOT,
    policy_file: PolicyFile = None,
    preload: Preload = None,
    timeout: Timeout = None,
    fuel: Fuel = None,
    memory: Memory = None,
    data: Data = None,
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Open a Python prompt whose variables and files are there again next time.

    Ctrl-C stops the code that runs and undoes its changes to variables; Ctrl-D leaves. Without a
    terminal, statements are read from stdin; --json prints one result a line.
    """
    policy = read_policy(policy_file, preload, read_limits(timeout, fuel, memory, data))
    with _open(session, root, policy, fresh=fresh) as sandbox, _ending():
        if not as_json:
            typer.echo(f"session {sandbox.session_id}", err=True)
        with _lines(interactive=sys.stdin.isatty()) as lines:
            for source in statements(lines):
                if source.strip() in LEAVING:
                    break
                _take_turn(sandbox, source, as_json=as_json)


def _open(session: str | None, root: Path, policy: ExecutionPolicy, *, fresh: bool) -> SessionSandbox:
    from sandbox import create_session_sandbox, get_session_sandbox
    from sandbox.sessions.files import open_session

    if session is None:
        return create_session_sandbox(policy=policy, workspace_root=root, stateful=True)[1]
    with open_session(session, root):
        pass  # a mistyped id must not make a session
    return get_session_sandbox(
        session, policy=policy, workspace_root=root, stateful=True, fresh_interpreter=fresh
    )


# ---- reading


class Lines:
    """Lines from a person at a terminal, or from a pipe."""

    def __init__(self, *, interactive: bool) -> None:
        self._interactive = interactive

    def read(self, prompt: str) -> str | None:
        """The next line without its end; None at the end, KeyboardInterrupt where a person starts over."""
        if self._interactive:
            try:
                return input(prompt)
            except EOFError:
                sys.stdout.write("\n")
                return None
        line = sys.stdin.readline()
        return line.rstrip("\n") if line else None


@contextmanager
def _lines(*, interactive: bool) -> Iterator[Lines]:
    if not interactive:
        yield Lines(interactive=False)
        return
    with _history():
        yield Lines(interactive=True)


@contextmanager
def _history() -> Iterator[None]:
    """What was typed before, at hand with the arrow keys; kept from one prompt to the next."""
    import readline

    from platformdirs import user_state_path

    kept = user_state_path("session-sandbox") / "repl_history"
    with suppress(OSError):
        readline.read_history_file(kept)
    readline.set_history_length(MOST_HISTORY_LINES)
    try:
        yield
    finally:
        with suppress(OSError):
            kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            readline.write_history_file(kept)
            kept.chmod(0o600)


def statements(lines: Lines) -> Iterator[str]:
    """Whole statements, each as soon as it is complete.

    A block ends with an empty line, as at Python's own prompt, or with a line that cannot belong to it.
    """
    gathered: list[str] = []
    while True:
        try:
            line = lines.read(MORE if gathered else PROMPT)
        except KeyboardInterrupt:
            sys.stdout.write("\nKeyboardInterrupt\n")
            gathered = []
            continue
        if line is None:
            break
        if gathered and line.strip() and _ends_before(gathered, line):
            yield "\n".join(gathered)
            gathered = []
        if not gathered and not line.strip():
            continue
        gathered.append(line)
        if not _needs_more("\n".join(gathered)):
            yield "\n".join(gathered)
            gathered = []
    if gathered:
        yield "\n".join(gathered)


def _ends_before(gathered: list[str], line: str) -> bool:
    """Whether a block is complete as it is, and the next line begins something else."""
    if line[0].isspace() or _needs_more("\n".join([*gathered, ""])):
        return False
    return _compiles("\n".join([*gathered, ""])) and not _may_go_on("\n".join([*gathered, line]))


def _needs_more(source: str) -> bool:
    try:
        return _compile(source) is None
    except (SyntaxError, ValueError, OverflowError):
        return False  # the guest's own Python says what is wrong, or knows the syntax


def _compiles(source: str) -> bool:
    try:
        return _compile(source) is not None
    except (SyntaxError, ValueError, OverflowError):
        return False


def _may_go_on(source: str) -> bool:
    return _needs_more(source) or _compiles(source)


def _compile(source: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the guest warns of its own code
        return codeop.compile_command(source, "<stdin>", "single")


# ---- running


def _take_turn(sandbox: SessionSandbox, source: str, *, as_json: bool) -> None:
    with _cancelling() as cancel:
        options: dict[str, Any] = {"cancel": cancel}
        if sys.stdin.isatty():
            options["stdin"] = standard_input()
        if not as_json:
            options["on_output"] = relay_output(cancel)
        result = in_worker(lambda: sandbox.execute(source, **options))
    if as_json:
        typer.echo(result.model_dump_json())
    else:
        _show(result, sandbox.policy)


def _show(result: SandboxResult, policy: ExecutionPolicy) -> None:
    if result.value is not None:
        typer.echo(result.value)
    note_limits(result, policy)
    if result.state == "rolled_back":
        typer.echo("sandbox: variables are as they were before; files stay as they are now", err=True)


@contextmanager
def _cancelling() -> Iterator[threading.Event]:
    """Ctrl-C stops the guest, and nothing else, until the block ends."""
    cancel = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: cancel.set())
    try:
        yield cancel
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _ending() -> Iterator[None]:
    """SIGTERM and a closed terminal leave as Ctrl-D does, so that the last turn is saved."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
