"""The `sandbox session` command: sessions on the command line."""

from __future__ import annotations

import dataclasses
import json as jsonlib
import sys
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandbox.amounts import read_bytes
from sandbox.bars import bytes_bar, steps_bar, waiting_bar
from sandbox.invocation import (
    CODES_HELP,
    FAILED,
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

if TYPE_CHECKING:
    from sandbox import ExecutionPolicy, PruneResult, RetentionPolicy, SandboxResult, SessionInfo

__all__ = ["session_app"]

DEFAULT_HOURS = 24.0

session_app = typer.Typer(
    help="Keep files from run to run: make, use and delete sessions.", rich_markup_mode=None
)

Root = Annotated[Path, typer.Option("--root", metavar="DIR", help="The folder that holds the sessions.")]
SessionId = Annotated[str, typer.Argument(metavar="ID", help="The session.")]
FilePath = Annotated[str, typer.Argument(metavar="PATH", help="A path inside the session.")]
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
    print_table(["session", "state", "last used", "size"], [_row(session) for session in sessions])


@session_app.command()
def show(session_id: SessionId, *, root: Root = DEFAULT_ROOT, as_json: AsJson = False) -> None:
    """Show what is known of a session."""
    from sandbox import read_session_metadata, session_usage

    usage = session_usage(session_id, root)
    try:
        metadata = read_session_metadata(session_id, root)
        known = metadata.as_json() if metadata else {"metadata": "none"}
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
def files(
    session_id: SessionId,
    pattern: Annotated[str | None, typer.Argument(metavar="[PATTERN]", help="Such as '*.csv'.")] = None,
    *,
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
) -> None:
    """List the files of a session."""
    from sandbox import list_session_files

    paths = list_session_files(session_id, root, pattern)
    if as_json:
        print_json(paths)
        return
    for path in paths:
        typer.echo(path)


@session_app.command()
def get(
    session_id: SessionId,
    path: FilePath,
    destination: Annotated[
        Path | None, typer.Argument(metavar="[DEST]", help="A file or folder; - is stdout.")
    ] = None,
    *,
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
) -> None:
    """Copy a file or folder out of a session; without DEST, into the current folder."""
    from sandbox import copy_out_of_session, read_session_file

    if destination == Path("-"):
        sys.stdout.buffer.write(read_session_file(session_id, path, root))
        return
    target = _target(destination, path)
    with bytes_bar(f"Copying {path}") as progress:
        copied = copy_out_of_session(
            session_id, None if path == "." else path, target, root, progress=progress
        )
    _report_copy(dataclasses.asdict(copied), str(target), as_json=as_json)


@session_app.command()
def put(
    session_id: SessionId,
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A file or folder; - is stdin.")],
    path: Annotated[str | None, typer.Argument(metavar="[PATH]", help="Its path in the session.")] = None,
    *,
    root: Root = DEFAULT_ROOT,
    no_overwrite: Annotated[bool, typer.Option("--no-overwrite", help="Keep what is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Copy a file or folder into a session; without PATH, under its own name."""
    from sandbox import copy_into_session, write_session_file

    if source == Path("-"):
        if path is None:
            raise typer.BadParameter("name the PATH that stdin is written to")
        content = sys.stdin.buffer.read()
        write_session_file(session_id, path, content, root, overwrite=not no_overwrite)
        _report_copy({"files": [path], "bytes": len(content), "left_out": []}, path, as_json=as_json)
        return
    with bytes_bar(f"Copying {source}") as progress:
        copied = copy_into_session(
            session_id, source, path, root, overwrite=not no_overwrite, progress=progress
        )
    _report_copy(dataclasses.asdict(copied), path or source.name, as_json=as_json)


@session_app.command()
def rm(
    session_id: SessionId,
    path: FilePath,
    *,
    root: Root = DEFAULT_ROOT,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Folders with what is in them.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Remove a file or folder from a session."""
    from sandbox import delete_session_path, list_session_files
    from sandbox.sessions.files import locating
    from sandbox.tree import exists

    if not dry_run:
        delete_session_path(session_id, path, root, recursive=recursive)
        return
    with locating(session_id, path, root) as (parent_fd, name):
        if not exists(name, parent_fd):
            raise FileNotFoundError(f"the session has no such file: {path}")
    below = [one for one in list_session_files(session_id, root) if one.startswith(f"{path.rstrip('/')}/")]
    for one in below or [path]:
        typer.echo(f"would remove {one}")


@session_app.command()
def delete(
    session_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The sessions.")],
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
def prune(
    *,
    older_than: Annotated[
        float | None, typer.Option("--older-than", metavar="HOURS", help="Not used for so long; default 24.")
    ] = None,
    max_sessions: Annotated[int | None, typer.Option(metavar="N", help="Keep so many.")] = None,
    max_total: Annotated[str | None, typer.Option(metavar="SIZE", help="Keep so much, such as 10G.")] = None,
    min_free: Annotated[str | None, typer.Option(metavar="SIZE", help="Have so much disk free.")] = None,
    max_deletions: Annotated[int | None, typer.Option(metavar="N", help="Delete no more than this.")] = None,
    workers: Annotated[int, typer.Option(metavar="N", help="Threads that remove files.")] = 1,
    root: Root = DEFAULT_ROOT,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Delete sessions that are not kept any longer, the oldest first."""
    from sandbox import prune_sessions

    policy = _retention(older_than, max_sessions, max_total, min_free)
    with steps_bar("Pruning sessions") as progress:
        result = prune_sessions(
            workspace_root=root,
            dry_run=dry_run,
            policy=policy,
            max_deletions=max_deletions,
            workers=workers,
            progress=progress,
        )
    _report_prune(result, as_json=as_json)


@session_app.command()
def archive(
    destination: Annotated[Path, typer.Argument(metavar="DIR", help="The folder for the archives.")],
    session_ids: Annotated[list[str] | None, typer.Argument(metavar="[ID...]", help="The sessions.")] = None,
    *,
    older_than: Annotated[
        float | None,
        typer.Option("--older-than", metavar="HOURS", help="All that were not used for so long."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the sessions IDs where they are.")] = False,
    root: Root = DEFAULT_ROOT,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Put sessions away, each in a file of its own: those named, or all of an age."""
    if (older_than is None) == (not session_ids) or (keep and older_than is not None):
        raise typer.BadParameter(
            "name sessions (with --keep if they are to stay), or give --older-than HOURS"
        )
    if older_than is None:
        _archive_named(session_ids or [], destination, root, keep=keep, dry_run=dry_run, as_json=as_json)
        return
    from sandbox import archive_sessions

    with steps_bar("Archiving sessions") as progress:
        result = archive_sessions(older_than, destination, root, dry_run, progress=progress)
    if as_json:
        print_json(dataclasses.asdict(result))
    else:
        for session_id, path in result.archives.items():
            typer.echo(f"{'would archive ' if dry_run else ''}{session_id} {path}")
    _fail_on(result.errors)


@session_app.command()
def restore(
    archives: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Archives of sessions.")],
    *,
    max_size: Annotated[str | None, typer.Option(metavar="SIZE", help="Refuse what is larger.")] = None,
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
) -> None:
    """Bring archived sessions back and print their ids."""
    from sandbox import restore_session
    from sandbox.sessions.archive import DEFAULT_LIMITS

    most = DEFAULT_LIMITS.max_bytes if max_size is None else _size(max_size)
    ids = []
    for path in archives:
        with waiting_bar(f"Restoring {path.name}"):
            ids.append(restore_session(path, root, max_bytes=most))
    if as_json:
        print_json(ids)
        return
    for session_id in ids:
        typer.echo(session_id)


@session_app.command()
def repair(session_id: SessionId, *, root: Root = DEFAULT_ROOT, as_json: AsJson = False) -> None:
    """Give a session without usable metadata new ones, dated by its files."""
    from sandbox import repair_session_metadata

    repaired = repair_session_metadata(session_id, root)
    if as_json:
        print_json(repaired.as_json())
    else:
        typer.echo(f"{session_id} created {repaired.created_at}, last used {repaired.updated_at}")


def _execute(
    session_id: str, root: Path, policy: ExecutionPolicy, source: str, options: dict[str, Any]
) -> SandboxResult:
    from sandbox import get_session_sandbox

    with get_session_sandbox(session_id, policy=policy, workspace_root=root) as sandbox:
        return sandbox.execute(source, **options)


def require_session(session_id: str, root: Path) -> None:
    """A mistyped id must not make a session."""
    from sandbox.sessions.files import open_session

    with open_session(session_id, root):
        pass


def _row(session: SessionInfo) -> list[str]:
    from sandbox.sessions.prune import format_bytes

    age = "unknown" if session.age_hours is None else _age(session.age_hours)
    size = "" if session.size_bytes is None else format_bytes(session.size_bytes)
    return [session.session_id, session.state, age, size]


def _age(hours: float) -> str:
    seconds = hours * 3600
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _target(destination: Path | None, path: str) -> Path:
    """Where a copy goes: into a folder that is there, else to that very name."""
    name = Path(path).name
    if destination is None:
        destination = Path()
    return destination / name if destination.is_dir() and name else destination


def _retention(
    older_than: float | None, max_sessions: int | None, max_total: str | None, min_free: str | None
) -> RetentionPolicy:
    from sandbox import RetentionPolicy

    if (older_than, max_sessions, max_total, min_free) == (None, None, None, None):
        older_than = DEFAULT_HOURS
    try:
        return RetentionPolicy(
            max_age_hours=older_than,
            max_sessions=max_sessions,
            max_total_bytes=None if max_total is None else _size(max_total),
            min_free_bytes=None if min_free is None else _size(min_free),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _size(text: str) -> int:
    try:
        return read_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _archive_named(
    session_ids: list[str], destination: Path, root: Path, *, keep: bool, dry_run: bool, as_json: bool
) -> None:
    from sandbox import archive_session

    archives = {}
    for session_id in session_ids:
        require_session(session_id, root)
        archives[session_id] = destination / f"{session_id}.tar.zst"
    for session_id in [] if dry_run else session_ids:
        with waiting_bar(f"Archiving {session_id}"):
            archives[session_id] = archive_session(session_id, destination, root, keep=keep)
    if as_json:
        print_json(archives)
        return
    for session_id, path in archives.items():
        typer.echo(f"{'would archive ' if dry_run else ''}{session_id} {path}")


def _report_copy(copied: dict[str, Any], target: str, *, as_json: bool) -> None:
    if as_json:
        print_json({**copied, "target": target})
        return
    from sandbox.sessions.prune import format_bytes

    count = len(copied["files"])
    typer.echo(
        f"{count} file{'' if count == 1 else 's'}, {format_bytes(copied['bytes'])}: {target}", err=True
    )
    for path in copied["left_out"]:
        typer.echo(f"sandbox: left out {path}", err=True)


def _report_prune(result: PruneResult, *, as_json: bool) -> None:
    if as_json:
        print_json(dataclasses.asdict(result))
    else:
        rows = [[session_id, result.reasons[session_id]] for session_id in result.deleted_sessions]
        rows += [
            [session_id, f"skipped: {result.reasons[session_id]}"] for session_id in result.skipped_sessions
        ]
        if rows:
            print_table(["session", "why"], rows)
        typer.echo(str(result))
    _fail_on(result.errors)


def _fail_on(errors: dict[str, str]) -> None:
    for session_id, error in errors.items():
        typer.echo(f"sandbox: session {session_id}: {error}", err=True)
    if errors:
        raise typer.Exit(FAILED)


def print_json(value: Any) -> None:
    """Print a value for programs."""
    typer.echo(jsonlib.dumps(value, indent=2, default=_as_text))


def _as_text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def print_table(head: list[str], rows: list[list[str]]) -> None:
    """Print rows for people."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*head, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))
    # Ids are for copying: they are not cut where the terminal is narrow or the output is a pipe.
    console = Console()
    console.print(table, soft_wrap=True, width=None if console.is_terminal else 200)
