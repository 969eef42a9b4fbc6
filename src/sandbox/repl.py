"""The `sandbox repl` command: a Python prompt in a session that remembers."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandbox.interrupts import ENDING_SIGNALS, ending, in_worker
from sandbox.invocation import (
    AsJson,
    Data,
    Fuel,
    Memory,
    PolicyFile,
    Preload,
    Timeout,
    as_utf8,
    note_limits,
    read_limits,
    read_policy,
    relay_output,
    standard_input,
)
from sandbox.session_cli import DEFAULT_ROOT, Root, require_session
from sandbox.statements import open_lines, statements

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import FrameType

    from sandbox import ExecutionPolicy, SandboxResult, SessionSandbox

LEAVING = {"exit", "quit", "exit()", "quit()"}

Session = Annotated[
    str | None, typer.Option("--session", metavar="ID", help="Go on in this session; default: a new one.")
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
    if sys.stdin is None:
        raise typer.BadParameter("stdin is closed, so there are no statements to read")
    policy = read_policy(policy_file, preload, read_limits(timeout, fuel, memory, data))
    with ending() as ignore_endings, _open(session, root, policy, fresh=fresh) as sandbox:
        if not as_json:
            typer.echo(f"session {sandbox.session_id}", err=True)
        with open_lines(interactive=sys.stdin.isatty()) as lines:
            for source in statements(lines):
                if source.strip() in LEAVING:
                    break
                _take_turn(sandbox, as_utf8(source), as_json=as_json)
        ignore_endings()


def _open(session: str | None, root: Path, policy: ExecutionPolicy, *, fresh: bool) -> SessionSandbox:
    from sandbox import create_session_sandbox, get_session_sandbox

    if session is None:
        return create_session_sandbox(policy=policy, workspace_root=root, stateful=True)[1]
    require_session(session, root)
    return get_session_sandbox(
        session, policy=policy, workspace_root=root, stateful=True, fresh_interpreter=fresh
    )


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
    """Ctrl-C stops the guest, and nothing else, until the block ends; a request to leave stops it, too."""
    cancel, asked = threading.Event(), list[int]()

    def stop(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if len(asked) == 1:  # set() within set() would wait for itself
            cancel.set()
        if number in ENDING_SIGNALS and callable(leave := before[signal.Signals(number)]):
            leave(number, frame)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, *ENDING_SIGNALS)}
    try:
        yield cancel
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
