"""The commands of `sandbox session` that take and bring back what a session remembers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from sandbox.invocation import AsJson  # noqa: TC001 - typer reads annotations when it runs
from sandbox.printing import print_json, print_table
from sandbox.session_cli import DEFAULT_ROOT, Root, SessionId, require_session

if TYPE_CHECKING:
    from pathlib import Path

    from sandbox import Checkpoint, SessionSandbox

__all__ = ["state_app"]

state_app = typer.Typer()

CheckpointName = Annotated[str, typer.Argument(metavar="NAME", help="The checkpoint.")]
NoFiles = Annotated[bool, typer.Option("--no-files", help="The interpreter alone; files stay as they are.")]


@state_app.command()
def fork(
    session_id: SessionId,
    *,
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, help="How many.")] = 1,
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
) -> None:
    """Make new sessions with copies of the files and variables, and print their ids."""
    from sandbox import fork_session

    require_session(session_id, root)
    made = fork_session(session_id, count, root)
    if as_json:
        print_json(made)
        return
    for one in made:
        typer.echo(one)


@state_app.command()
def checkpoint(
    session_id: SessionId,
    name: CheckpointName,
    *,
    no_files: NoFiles = False,
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
) -> None:
    """Keep a session as it is under a name; one of that name is replaced."""
    with _open(session_id, root) as sandbox:
        kept = sandbox.checkpoint(name, files=not no_files)
    if as_json:
        print_json(dataclasses.asdict(kept))
    else:
        typer.echo(f"{kept.name}: {_held(kept)}")


@state_app.command()
def checkpoints(session_id: SessionId, *, root: Root = DEFAULT_ROOT, as_json: AsJson = False) -> None:
    """List what a session can go back to, the oldest first."""
    with _open(session_id, root) as sandbox:
        found = sandbox.list_checkpoints()
    if as_json:
        print_json([dataclasses.asdict(one) for one in found])
        return
    rows = [[one.name, one.created_at, _held(one)] for one in found]
    print_table(["checkpoint", "taken", "holds"], rows)


@state_app.command()
def rollback(
    session_id: SessionId,
    name: CheckpointName,
    *,
    no_files: NoFiles = False,
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
) -> None:
    """Go back to a checkpoint; what was done since is lost."""
    with _open(session_id, root) as sandbox:
        sandbox.restore(name, files=not no_files)
    if as_json:
        print_json({"session_id": session_id, "checkpoint": name})
    else:
        typer.echo(f"{session_id} is as it was at {name}")


def _open(session_id: str, root: Path) -> SessionSandbox:
    from sandbox import get_session_sandbox

    require_session(session_id, root)
    return get_session_sandbox(session_id, workspace_root=root)


def _held(kept: Checkpoint) -> str:
    held = ["interpreter"] * kept.has_interpreter + ["files"] * kept.has_files
    return " and ".join(held) or "nothing"
