"""The `sandbox` command: prints results and errors, decides nothing."""

from __future__ import annotations

import json as jsonlib
import os
import signal
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandbox.errors import SandboxError
from sandbox.files_cli import files_app
from sandbox.interrupts import in_worker, interrupts
from sandbox.invocation import (
    CODES_HELP,
    FAILED,
    UNSET,
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
from sandbox.repl import repl
from sandbox.retention_cli import retention_app
from sandbox.session_cli import session_app
from sandbox.state_cli import state_app

if TYPE_CHECKING:
    from sandbox.policy import ExecutionPolicy
    from sandbox.result import SandboxResult

__all__ = ["main", "run_app"]

app = typer.Typer(
    name="sandbox",
    help="Run untrusted Python in WebAssembly.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
policy_app = typer.Typer(help="Show limits and grants.", rich_markup_mode=None)
app.add_typer(policy_app, name="policy")
app.add_typer(session_app, name="session")
for commands in (files_app, retention_app, state_app):
    session_app.add_typer(commands)
app.command()(repl)


def main() -> None:
    """Run the command and leave with its exit code."""
    sys.exit(run_app(app, "sandbox"))


def run_app(command: typer.Typer, name: str) -> int:
    """Run a command line; whatever goes wrong becomes one sentence on stderr and an exit code."""
    try:
        return int(command(prog_name=name, standalone_mode=False) or 0)
    except typer.TyperException as error:
        return _fail(name, _usage(error.format_message(), _named(command, name)), error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return _fail(name, "interrupted", 128 + signal.SIGINT)
    except BrokenPipeError:
        _drop_output()
        return FAILED
    except OSError as error:
        return _fail(name, _in_words(error), FAILED)
    except (SandboxError, ValueError) as error:
        return _fail(name, str(error), FAILED)
    except Exception as error:
        if os.environ.get("SANDBOX_DEBUG"):
            raise
        what = f"{type(error).__name__}: {error}"
        return _fail(name, f"unexpected failure ({what}); set SANDBOX_DEBUG=1 to see where", FAILED)


def _fail(name: str, sentence: str, code: int) -> int:
    typer.echo(f"{name}: {' '.join(sentence.split())}", err=True)
    return code


def _usage(message: str, command: str) -> str:
    sentence = message.removeprefix("Invalid value: ").removesuffix(".")
    return f"{sentence}{'' if sentence.endswith('?') else ';'} see `{command} --help`"


def _named(app: typer.Typer, name: str) -> str:
    """The command that the words on the command line name, such as `sandbox session list`."""
    found: Any = typer.main.get_command(app)
    for word in sys.argv[1:]:
        found = getattr(found, "commands", {}).get(word)
        if found is None:
            break
        name = f"{name} {word}"
    return name


def _in_words(error: OSError) -> str:
    """What the system says, without its number."""
    if error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.strerror}: {error.filename!r}"


def _drop_output() -> None:
    """Let the interpreter's last flush go nowhere, because nobody reads it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


Workspace = Annotated[Path, typer.Option(metavar="DIR", help="The folder that the code sees as /app.")]


@app.callback(invoke_without_command=True)
def _start(
    context: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"sandbox {version_of('session-sandbox')}")
        raise typer.Exit
    require_command(context)


@policy_app.callback(invoke_without_command=True)
def _start_policy(context: typer.Context) -> None:
    require_command(context)


@app.command(epilog=CODES_HELP)
def run(
    *,
    words: Words = None,
    code: Code = None,
    workspace: Workspace = Path("workspace"),
    policy_file: PolicyFile = None,
    preload: Preload = None,
    timeout: Timeout = None,
    fuel: Fuel = None,
    memory: Memory = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Run code in a fresh interpreter, its output passed on as it comes."""
    limits = read_limits(timeout, fuel, memory, data)
    policy = read_policy(policy_file, preload, limits)
    run_code(words or [], code, policy, partial(_execute, workspace, policy), as_json=as_json)


def _execute(workspace: Path, policy: ExecutionPolicy, source: str, options: dict[str, Any]) -> SandboxResult:
    from sandbox import SandboxLogger, create_sandbox

    logger = SandboxLogger(_Notes())
    with create_sandbox(policy=policy, workspace=workspace, logger=logger) as sandbox:
        return sandbox.execute(source, **options)


class _Notes:
    """Shows the warnings that explain a slow start; what the guest did is shown as its result."""

    def debug(self, event: str, **fields: Any) -> None:
        """Not for a person at a prompt."""

    info = error = debug

    def warning(self, event: str, **fields: Any) -> None:
        if event.startswith("cache."):
            why = fields.get("error") or fields.get("reason")
            typer.echo(f"sandbox: {event} {fields.get('path')}: {why}", err=True)


@app.command()
def warmup(
    *,
    preload: Preload = None,
    unmetered: Annotated[bool, typer.Option(help="Also prepare runs with --fuel none.")] = False,
) -> None:
    """Do now what the first run would do: fetch the guest, compile it, build the image."""
    for fuel in (UNSET, None) if unmetered else (UNSET,):
        policy = read_policy(None, preload, {"fuel_budget": fuel, "timeout_seconds": None})
        with interrupts():
            result = in_worker(partial(_execute_nothing, policy))
        typer.echo(f"{_described(policy)}: ready, starts in {result.duration_ms:.1f} ms")


def _execute_nothing(policy: ExecutionPolicy) -> SandboxResult:
    with TemporaryDirectory() as folder:
        return _execute(Path(folder), policy, "", {})


def _described(policy: ExecutionPolicy) -> str:
    metering = "metered" if policy.fuel_budget else "unmetered"
    return f"{metering}, with {', '.join(policy.preload)}" if policy.preload else metering


@app.command()
def doctor(*, as_json: AsJson = False) -> None:
    """Show what this machine offers, and what is missing."""
    from sandbox.doctor import examine

    findings = examine()
    if as_json:
        typer.echo(jsonlib.dumps({finding.name: finding.details for finding in findings}, indent=2))
    else:
        _print_table(findings)
    raise typer.Exit(0 if all(finding.ok for finding in findings) else FAILED)


def _print_table(findings: list[Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "what", "found")
    for finding in findings:
        table.add_row("ok" if finding.ok else "!!", finding.name, Text(finding.shown))
    Console().print(table)


@policy_app.command("show")
def policy_show(*, policy_file: PolicyFile = None, as_json: AsJson = False) -> None:
    """Print every limit and grant, as TOML that --policy reads."""
    policy = read_policy(policy_file, None, {})
    if as_json:
        typer.echo(policy.model_dump_json(indent=2))
        return
    values = policy.model_dump(mode="json")
    env = values.pop("env")
    for name, value in values.items():
        typer.echo(f"# {name} is not set" if value is None else f"{name} = {jsonlib.dumps(value)}")
    typer.echo("\n[env]")
    for name, value in env.items():
        typer.echo(f"{jsonlib.dumps(name)} = {jsonlib.dumps(value)}")
