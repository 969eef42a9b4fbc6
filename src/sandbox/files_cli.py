"""The commands of `sandbox session` for the files of one."""

from __future__ import annotations

import dataclasses
import errno
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sandbox.bars import bytes_bar
from sandbox.invocation import AsJson  # noqa: TC001 - typer reads annotations when it runs
from sandbox.printing import print_json
from sandbox.session_cli import DEFAULT_ROOT, DryRun, Root, SessionId

__all__ = ["files_app"]

files_app = typer.Typer()

FilePath = Annotated[str, typer.Argument(metavar="PATH", help="A path inside the session.")]


@files_app.command()
def files(
    session_id: SessionId,
    pattern: Annotated[str | None, typer.Argument(metavar="PATTERN", help="Such as '*.csv'.")] = None,
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


@files_app.command()
def get(
    session_id: SessionId,
    path: FilePath,
    destination: Annotated[
        Path | None, typer.Argument(metavar="DEST", help="A file or folder; - is stdout.")
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


@files_app.command()
def put(
    session_id: SessionId,
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A file or folder; - is stdin.")],
    path: Annotated[str | None, typer.Argument(metavar="PATH", help="Its path in the session.")] = None,
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


@files_app.command()
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
        try:
            delete_session_path(session_id, path, root, recursive=recursive)
        except IsADirectoryError:
            what = "it is a folder; -r removes it with what is in it"
            raise IsADirectoryError(errno.EISDIR, what, path) from None
        return
    with locating(session_id, path, root) as (parent_fd, name):
        if not exists(name, parent_fd):
            raise FileNotFoundError(errno.ENOENT, "the session has no such file", path)
    below = [one for one in list_session_files(session_id, root) if one.startswith(f"{path.rstrip('/')}/")]
    for one in below or [path]:
        typer.echo(f"would remove {one}")


def _target(destination: Path | None, path: str) -> Path:
    """Where a copy goes: into a folder that is there, else to that very name."""
    name = Path(path).name
    if destination is None:
        destination = Path()
    return destination / name if destination.is_dir() and name else destination


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
