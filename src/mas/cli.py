"""The `mas` command: prints results and errors, decides nothing."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from mas.errors import InvalidConfiguration, MasError, RunNotActive
from mas.printing import print_details, print_json, print_page, print_result, print_run, write_bytes
from mas.selection import (
    choose,
    create,
    find_runs,
    is_running_already,
    known_session,
    local_runs,
    read_team,
    read_text,
)
from mas.selection import execute as execute_code
from mas.settings import read_settings
from sandbox.errors import SandboxError

__all__ = ["app", "main"]

FAILED, USAGE, INTERRUPTED = 1, 2, 130
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8765

app = typer.Typer(
    name="mas",
    help="Teams of agents in tmux, each session with a workspace and a sandbox of its own.",
    epilog="Where no session is named: the one of MAS_SESSION_ID (set inside a session), else the only "
    "active one. Exit codes: 0 done, 1 failed, 2 used wrongly.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
files_app = typer.Typer(help="Files of a session's sandbox.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(files_app, name="files")

Session = Annotated[
    str | None, typer.Option("--session", metavar="ID", help="The session that is meant, by its whole id.")
]
Tmux = Annotated[
    str | None, typer.Option("--tmux", metavar="NAME", help="The session that is meant, by its tmux name.")
]
WholeId = typer.Argument(metavar="ID", help="The session, by its whole id.")
Id = Annotated[str, WholeId]
OptionalId = Annotated[str | None, WholeId]
FilePath = Annotated[str, typer.Argument(metavar="PATH", help="Relative to the session's folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AgentArgument = Annotated[str, typer.Argument(metavar="AGENT", help="Two digits, like 10.")]


def main() -> None:
    """Run the command; whatever goes wrong becomes a sentence on stderr and an exit code."""
    try:
        app(prog_name="mas")
    except InvalidConfiguration as error:
        _leave(error, USAGE)
    except (MasError, SandboxError, ValueError) as error:
        _leave(error, FAILED)
    except OSError as error:
        _leave(_without_number(error), FAILED)
    except KeyboardInterrupt:
        _leave("interrupted", INTERRUPTED)


def _without_number(error: OSError) -> object:
    return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else error


def _leave(reason: object, code: int) -> None:
    typer.echo(f"mas: {reason}", err=True)
    sys.exit(code)


@app.command()
def init() -> None:
    """Put the templates of units and workflows into MAS_ROOT, where it has none."""
    settings = read_settings()
    made = local_runs(settings).init()
    for folder in made:
        typer.echo(f"made {folder}")
    if not made:
        typer.echo(f"{settings.root} has unit and workflows already; nothing was changed")


@app.command()
def start(
    config: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The team as JSON, - for standard input; else the default team."),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="isolated or legacy; else the file's, MAS_SESSION_MODE, legacy."),
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Start a team of agents.

    MAS_SESSION_ID names the session to make, or one that stopped to start again.
    """
    team, settings = read_team(config, mode), read_settings()
    known = known_session(settings)
    if known is not None and known.status == "active":
        typer.echo(
            f"{known.tmux_session} is already running (session {known.session_id}); attach to it: mas attach"
        )
        return
    try:
        run = local_runs(settings).restore(known.session_id) if known else create(team, settings)
    except MasError as error:
        if not is_running_already(error):
            raise
        typer.echo(str(error))
    else:
        print_run(run, as_json=as_json)


@app.command("list")
def list_sessions(
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="Only active, stopped or error.")
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """List the sessions, each as it is now."""
    if status not in (None, "active", "stopped", "error"):
        raise typer.BadParameter("use active, stopped or error", param_hint="--status")
    page = find_runs().list(status=status)  # type: ignore[arg-type]  # checked above
    if as_json:
        print_json(page)
    else:
        print_page(page)


@app.command()
def show(
    session_id: OptionalId = None, session: Session = None, tmux: Tmux = None, *, as_json: Json = False
) -> None:
    """Show a session with its agents."""
    runs = find_runs()
    details = runs.show(choose(runs, session_id or session, tmux))
    if as_json:
        print_json(details)
    else:
        print_details(details)


@app.command(context_settings={"ignore_unknown_options": True})  # a text may begin with a dash
def send(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The agent, two digits.")],
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="What to type into its pane; - for standard input.")
    ],
    session: Session = None,
    tmux: Tmux = None,
    *,
    submit: Annotated[bool, typer.Option(help="Press Enter after the text.")] = True,
) -> None:
    """Type a text into an agent's pane, exactly as it is."""
    runs = find_runs()
    runs.send(choose(runs, session, tmux), target, read_text(text), submit=submit)


@app.command()
def logs(
    agent: AgentArgument,
    session: Session = None,
    tmux: Tmux = None,
    tail: Annotated[int | None, typer.Option(metavar="LINES", min=0, help="Only the last lines.")] = None,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is printed from now on.")
    ] = False,
) -> None:
    """Print what an agent's pane printed; kept after the session has stopped."""
    runs = find_runs()
    session_id = choose(runs, session, tmux)
    later = runs.follow(session_id, agent) if follow else iter(())
    write_bytes(runs.log(session_id, agent, tail=tail))
    for chunk in later:
        write_bytes(chunk)


@app.command()
def attach(session: Session = None, tmux: Tmux = None) -> None:
    """Show a session's panes in this terminal; leave them with Ctrl-b d."""
    runs = find_runs()
    details = runs.show(choose(runs, session, tmux))
    if details.status != "active":
        raise RunNotActive(details.session_id)
    words = shlex.split(details.attach_command)
    os.environ.pop("TMUX", None)  # the agents have a server of their own: this is no session in itself
    os.execvp(words[0], words)  # noqa: S606 - no shell is wanted; the words are tmux and our own names


@app.command()
def stop(
    session_id: OptionalId = None, session: Session = None, tmux: Tmux = None, *, as_json: Json = False
) -> None:
    """End a session's agents with everything that they started; its workspace stays."""
    runs = find_runs()
    stopped = runs.stop(choose(runs, session_id or session, tmux))
    if as_json:
        print_json(stopped)
    else:
        typer.echo(f"stopped session {stopped.session_id}")


@app.command()
def restore(session_id: Id, *, as_json: Json = False) -> None:
    """Start the agents of a stopped session again, in the workspace that was kept."""
    print_run(find_runs().restore(session_id), as_json=as_json)


@app.command()
def delete(session_id: Id) -> None:
    """Remove a stopped session with everything in its workspace."""
    find_runs().delete(session_id)
    typer.echo(f"deleted session {session_id}")


@app.command()
def restart(agent: AgentArgument, session: Session = None, tmux: Tmux = None) -> None:
    """End one agent with its processes, and start it again in its pane."""
    runs = find_runs()
    again = runs.restart_agent(choose(runs, session, tmux), agent)
    typer.echo(f"agent {again.agent_id} is {again.state}")


@app.command("exec")
def execute(
    code: Annotated[str, typer.Argument(metavar="CODE", help="Python to run; - for standard input.")],
    session: Session = None,
    tmux: Tmux = None,
    *,
    as_json: Json = False,
) -> None:
    """Run Python in a session's sandbox; 1 is the exit code when it fails there."""
    runs = find_runs()
    result = execute_code(runs, choose(runs, session, tmux), read_text(code))
    if as_json:
        typer.echo(result.model_dump_json(indent=2))
    else:
        print_result(result)
    raise typer.Exit(0 if result.success else FAILED)


@files_app.command("list")
def list_files(
    pattern: Annotated[str | None, typer.Argument(metavar="PATTERN", help="Like *.csv")] = None,
    session: Session = None,
    *,
    as_json: Json = False,
) -> None:
    """List the files that code in the session's sandbox sees."""
    runs = find_runs()
    found = runs.list_files(choose(runs, session, None), pattern=pattern)
    typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(found))


@files_app.command("read")
def read_file(path: FilePath, session: Session = None) -> None:
    """Write a file's bytes to standard output."""
    runs = find_runs()
    write_bytes(runs.read_file(choose(runs, session, None), path))


@files_app.command("write")
def write_file(
    path: FilePath,
    source: Annotated[
        str, typer.Argument(metavar="FILE", help="Where the content is; - for standard input.")
    ],
    session: Session = None,
) -> None:
    """Write a file of the session's sandbox, with its folders."""
    runs = find_runs()
    data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    runs.write_file(choose(runs, session, None), path, data)


@files_app.command("delete")
def delete_file(
    path: FilePath,
    session: Session = None,
    *,
    recursive: Annotated[bool, typer.Option("--recursive", help="A folder, with everything in it.")] = False,
) -> None:
    """Remove a file of the session's sandbox."""
    runs = find_runs()
    runs.delete_file(choose(runs, session, None), path, recursive=recursive)


@app.command()
def serve(
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Anything but loopback needs MAS_API_TOKEN.")
    ] = DEFAULT_HOST,
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="0 takes a free one.")
    ] = DEFAULT_PORT,
) -> None:
    """Serve the HTTP API; its description is at /openapi.json."""
    from mas.service.server import serve as serve_api

    serve_api(local_runs(read_settings()), host=host, port=port)
