"""Runs and results as text for people, or as JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mas.answers import Run, RunDetails, RunPage
    from mas.config import Value
    from sandbox.result import SandboxResult

__all__ = ["print_details", "print_json", "print_page", "print_result", "print_run", "write_bytes"]


def write_bytes(data: bytes) -> None:
    """Bytes to standard output, at once."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def print_page(page: RunPage) -> None:
    """The sessions of a page, one a line."""
    rows = [(e.session_id, e.status, e.mode, e.tmux_session, e.created_at) for e in page.sessions]
    _print_table(("SESSION", "STATUS", "MODE", "TMUX", "CREATED"), rows)


def print_json(value: Value) -> None:
    """A value as indented JSON."""
    typer.echo(value.model_dump_json(indent=2))


def print_run(run: Run, *, as_json: bool) -> None:
    """A session that was just started."""
    if as_json:
        print_json(run)
        return
    typer.echo(f"started session {run.session_id} ({run.session_mode}) as {run.tmux_session}")
    typer.echo(f"  units      {run.unit_dir}\n  workflows  {run.workflows_dir}")
    typer.echo(f"  see it     mas attach --session {run.session_id}")


def print_details(details: RunDetails) -> None:
    """One session with its agents."""
    typer.echo(f"session {details.session_id}: {details.status}, {details.mode}, since {details.created_at}")
    typer.echo(f"  folder  {details.working_dir}\n  attach  {details.attach_command}\n")
    rows = [
        (
            agent.agent_id,
            agent.window or "-",
            agent.state if agent.exit_code is None else f"{agent.state} {agent.exit_code}",
            agent.last_output_at or "-",
            agent.command,
        )
        for agent in details.agents
    ]
    _print_table(("AGENT", "WINDOW", "STATE", "LAST OUTPUT", "COMMAND"), rows)


def print_result(result: SandboxResult) -> None:
    """What a program printed, each stream where it belongs."""
    sys.stdout.write(result.stdout)
    sys.stdout.flush()
    sys.stderr.write(result.stderr)
    if result.stopped_by:
        typer.echo(f"mas: the execution was stopped by {result.stopped_by}", err=True)


def _print_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = [titles, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(titles))]
    for row in table:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
