"""The commands of `sandbox session` that decide how long sessions are kept."""

from __future__ import annotations

import dataclasses
from pathlib import Path  # noqa: TC003 - typer reads annotations when it runs
from typing import TYPE_CHECKING, Annotated

import typer

from sandbox.amounts import read_bytes
from sandbox.bars import steps_bar, waiting_bar
from sandbox.invocation import FAILED, AsJson
from sandbox.printing import print_json, print_table
from sandbox.session_cli import DEFAULT_ROOT, DryRun, Root, require_session

if TYPE_CHECKING:
    from sandbox import PruneResult, RetentionPolicy

__all__ = ["retention_app"]

retention_app = typer.Typer()


@retention_app.command()
def prune(
    *,
    older_than: Annotated[
        float | None, typer.Option("--older-than", metavar="HOURS", help="Not used for so long; default 24.")
    ] = None,
    max_sessions: Annotated[int | None, typer.Option(metavar="N", help="Keep so many.")] = None,
    max_total: Annotated[str | None, typer.Option(metavar="SIZE", help="Keep so much, such as 10G.")] = None,
    min_free: Annotated[str | None, typer.Option(metavar="SIZE", help="Have so much disk free.")] = None,
    max_deletions: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Delete no more than this.")
    ] = None,
    workers: Annotated[int, typer.Option(metavar="N", min=1, help="Threads that remove files.")] = 1,
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


@retention_app.command()
def archive(
    destination: Annotated[Path, typer.Argument(metavar="DIR", help="The folder for the archives.")],
    session_ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="The sessions.")] = None,
    *,
    older_than: Annotated[
        float | None,
        typer.Option("--older-than", metavar="HOURS", help="All that were not used for so long."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the sessions where they are, too.")] = False,
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
        _print_archives(result.archives, dry_run=dry_run)
    _fail_on(result.errors)


@retention_app.command()
def restore(
    archives: Annotated[list[Path], typer.Argument(metavar="FILE", help="Archives of sessions.")],
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


def _retention(
    older_than: float | None, max_sessions: int | None, max_total: str | None, min_free: str | None
) -> RetentionPolicy:
    from sandbox import RetentionPolicy
    from sandbox.sessions.prune import DEFAULT_HOURS

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
    else:
        _print_archives(archives, dry_run=dry_run)


def _print_archives(archives: dict[str, Path], *, dry_run: bool) -> None:
    for session_id, path in archives.items():
        typer.echo(f"{'would archive ' if dry_run else ''}{session_id} {path}")


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
