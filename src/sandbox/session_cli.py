"""The `sandbox session` command: sessions on the command line."""

from __future__ import annotations

import dataclasses
import json as jsonlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandbox.bars import waiting_bar
from sandbox.invocation import (
    CODES_HELP,
    AsJson,
    Code,
    Data,
    Fuel,
    Memory,
    PolicyFile,
    Preload,
    Timeout,
    Words,
    read_limits,
    read_policy,
    require_command,
    run_code,
)
from sandbox.printing import print_json, print_table

if TYPE_CHECKING:
    from sandbox import ExecutionPolicy, SandboxResult, SessionInfo

__all__ = ["DEFAULT_ROOT", "DryRun", "Root", "SessionId", "require_session", "session_app"]

session_app = typer.Typer(
    help="Keep files from run to run: make, use and delete sessions.", rich_markup_mode=None
)

Root = Annotated[
    Path,
    typer.Option("--root", "--workspace-root", metavar="DIR", help="The folder that holds the sessions."),
]
SessionId = Annotated[str, typer.Argument(metavar="ID", help="The session.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, and delete nothing.")]
DEFAULT_ROOT = Path("workspace")


@session_app.callback(invoke_without_command=True)
def _start_session(context: typer.Context) -> None:
    require_command(context)


@session_app.command()
def create(
    *,
    stateful: Annotated[bool, typer.Option("--stateful", help="Variables persist, too.")] = False,
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
) -> None:
    """Make a session and print its id."""
    from sandbox.sessions.layout import new_session_id
    from sandbox.sessions.lifecycle import make_session

    folder = make_session(new_session_id(), root, fields={"stateful": stateful})
    shown = {"session_id": folder.name, "workspace": str(folder)}
    typer.echo(jsonlib.dumps(shown) if as_json else folder.name)


@session_app.command("list")
def list_all(
    *,
    root: Root = DEFAULT_ROOT,
    sizes: Annotated[bool, typer.Option("--sizes", help="Measure each session; takes longer.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the sessions, the last used first."""
    from sandbox import list_sessions

    with waiting_bar("Reading sessions"):
        sessions = list_sessions(root, sizes=sizes) if root.exists() else []
    if as_json:
        print_json([dataclasses.asdict(session) for session in sessions])
        return
    head = ["session", "state", "keeps", "last used", *(["size"] if sizes else [])]
    print_table(head, [_row(session) for session in sessions])


@session_app.command()
def show(session_id: SessionId, *, root: Root = DEFAULT_ROOT, as_json: AsJson = False) -> None:
    """Show what is known of a session."""
    from sandbox import read_session_metadata, session_usage

    usage = session_usage(session_id, root)
    try:
        metadata = read_session_metadata(session_id, root)
        known = {"stateful": False, **metadata.as_json()} if metadata else {"metadata": "none"}
    except ValueError as error:
        known = {"metadata": f"corrupted: {error}"}
    facts = {"session_id": session_id, **known, "workspace": str(root / session_id)}
    facts |= dataclasses.asdict(usage)
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        typer.echo(f"{name:12} {value}")


@session_app.command("exec", epilog=CODES_HELP)
def execute(
    session_id: SessionId,
    *,
    words: Words = None,
    code: Code = None,
    root: Root = DEFAULT_ROOT,
    policy_file: PolicyFile = None,
    preload: Preload = None,
    timeout: Timeout = None,
    fuel: Fuel = None,
    memory: Memory = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Run code in a session, its output passed on as it comes; the session must exist."""
    require_session(session_id, root)
    policy = read_policy(policy_file, preload, read_limits(timeout, fuel, memory, data))
    run = partial(_execute, session_id, root, policy)
    run_code(words or [], code, policy, run, as_json=as_json)


@session_app.command()
def delete(
    session_ids: Annotated[list[str], typer.Argument(metavar="ID", help="The sessions.")],
    *,
    root: Root = DEFAULT_ROOT,
    dry_run: DryRun = False,
) -> None:
    """Delete sessions with all their files; one that is not there counts as deleted."""
    from sandbox import delete_session_workspace
    from sandbox.sessions.layout import check_session_id

    for session_id in session_ids:
        check_session_id(session_id)
    for session_id in session_ids:
        if not dry_run:
            with waiting_bar(f"Deleting {session_id}"):
                delete_session_workspace(session_id, root)
        elif (root / session_id).is_dir():
            typer.echo(f"would delete {session_id}")


@session_app.command()
def repair(session_id: SessionId, *, root: Root = DEFAULT_ROOT, as_json: AsJson = False) -> None:
    """Give a session without usable metadata new ones, dated by its files."""
    from sandbox import repair_session_metadata

    repaired = repair_session_metadata(session_id, root)
    if as_json:
        print_json(repaired.as_json())
    else:
        typer.echo(f"{session_id} created {repaired.created_at}, last used {repaired.updated_at}")


def require_session(session_id: str, root: Path) -> None:
    """A mistyped id must not make a session."""
    from sandbox.sessions.files import open_session

    with open_session(session_id, root):
        pass


def _execute(
    session_id: str, root: Path, policy: ExecutionPolicy, source: str, options: dict[str, Any]
) -> SandboxResult:
    from sandbox import get_session_sandbox

    with get_session_sandbox(session_id, policy=policy, workspace_root=root) as sandbox:
        return sandbox.execute(source, **options)


def _row(session: SessionInfo) -> list[str]:
    from sandbox.sessions.prune import format_bytes

    keeps = "files, variables" if session.stateful else "files"
    age = "unknown" if session.age_hours is None else _age(session.age_hours)
    size = [] if session.size_bytes is None else [format_bytes(session.size_bytes)]
    return [session.session_id, session.state, keeps, age, *size]


def _age(hours: float) -> str:
    seconds = hours * 3600
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
