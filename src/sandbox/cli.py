"""The `sandbox` command: prints results and errors, decides nothing."""

from __future__ import annotations

import json as jsonlib
import os
import re
import signal
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandbox.amounts import read_bytes, read_count, read_seconds
from sandbox.errors import PolicyValidationError, SandboxError
from sandbox.interrupts import in_worker, interrupts

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from sandbox.policy import ExecutionPolicy
    from sandbox.result import SandboxResult

__all__ = ["main", "run_app"]

FAILED, USAGE = 1, 2
EXIT_CODES = {"timeout": 124, "fuel": 137, "memory": 137, "trap": 137, "cancelled": 130}
ENCODING = re.compile(r"^([ \t\f]*#.*?coding[:=][ \t]*)[-\w.]+")
CODES_HELP = """
Exit codes: the guest's own; 124 stopped by the timeout; 137 stopped by fuel, memory or a trap;
130 interrupted; 1 the sandbox itself failed; 2 wrong usage.
"""

app = typer.Typer(
    name="sandbox",
    help="Run untrusted Python in WebAssembly.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
policy_app = typer.Typer(help="Show limits and grants.", rich_markup_mode=None)
app.add_typer(policy_app, name="policy")


def main() -> None:
    """Run the command and leave with its exit code."""
    sys.exit(run_app(app, "sandbox"))


def run_app(command: typer.Typer, name: str) -> int:
    """Run a command line; whatever goes wrong becomes one sentence on stderr and an exit code."""
    try:
        return int(command(prog_name=name, standalone_mode=False) or 0)
    except typer.TyperException as error:
        return _fail(name, _usage(error.format_message(), name), error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return _fail(name, "interrupted", 128 + signal.SIGINT)
    except BrokenPipeError:
        _drop_output()
        return FAILED
    except (SandboxError, OSError, ValueError) as error:
        return _fail(name, str(error), FAILED)
    except Exception as error:
        if os.environ.get("SANDBOX_DEBUG"):
            raise
        what = f"{type(error).__name__}: {error}"
        return _fail(name, f"unexpected failure ({what}); set SANDBOX_DEBUG=1 to see where", FAILED)


def _fail(name: str, sentence: str, code: int) -> int:
    typer.echo(f"{name}: {' '.join(sentence.split())}", err=True)
    return code


def _usage(message: str, name: str) -> str:
    sentence = message.removeprefix("Invalid value: ").removesuffix(".")
    return f"{sentence}; see `{name} --help`"


def _drop_output() -> None:
    """Let the interpreter's last flush go nowhere, because nobody reads it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


UNSET: Any = "unset"
PolicyFile = Annotated[
    Path | None, typer.Option("--policy", metavar="FILE", help="TOML file with limits and grants.")
]
Preload = Annotated[
    list[str] | None,
    typer.Option("--preload", metavar="MODULES", help="Imported before the code starts; a comma list."),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE|- [-- ARGS...]", help="The code's file, or - for stdin."),
]
Workspace = Annotated[Path, typer.Option(metavar="DIR", help="The folder that the code sees as /app.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]


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
    _require_command(context)


@policy_app.callback(invoke_without_command=True)
def _start_policy(context: typer.Context) -> None:
    _require_command(context)


def _require_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(USAGE)


@app.command(epilog=CODES_HELP)
def run(
    *,
    words: Words = None,
    code: Annotated[str | None, typer.Option("-c", metavar="CODE", help="The code itself.")] = None,
    workspace: Workspace = Path("workspace"),
    policy_file: PolicyFile = None,
    preload: Preload = None,
    timeout: Annotated[str | None, typer.Option(metavar="SECONDS", help="Wall clock, or none.")] = None,
    fuel: Annotated[str | None, typer.Option(metavar="N", help="WebAssembly instructions, or none.")] = None,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory, such as 256M or 1G.")] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="A folder to read at /data.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run code in a fresh interpreter, its output passed on as it comes."""
    source, args = _read_code(words or [], code)
    limits = {
        "timeout_seconds": _limit(read_seconds, timeout),
        "fuel_budget": _limit(read_count, fuel),
        "memory_bytes": _limit(read_bytes, memory),
        "mount_data_dir": _limit(_existing_folder, data),
    }
    policy = _policy(policy_file, preload, limits)
    stdin = None if words and words[0] == "-" and code is None else _stdin()
    with interrupts() as (cancel, received):
        options = {"stdin": stdin, "args": args, "cancel": cancel}
        if not as_json:
            options["on_output"] = _relay(cancel)
        result = in_worker(lambda: _execute(source, workspace, policy, options))
    if as_json:
        typer.echo(result.model_dump_json(indent=2))
    _note_limits(result, policy)
    raise typer.Exit(128 + received[0] if received else _exit_code(result))


def _read_code(words: list[str], code: str | None) -> tuple[str, list[str]]:
    """The code to run, and the arguments that are left for it."""
    if code is not None:
        return code, words
    if not words:
        raise typer.BadParameter("name a FILE, or give the code with -c CODE, or - to read it from stdin")
    name, *args = words
    try:
        content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return _decode(content), args
    except OSError as error:
        raise typer.BadParameter(f"cannot read {name}: {error.strerror}") from None
    except (SyntaxError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read {name} as Python source: {error}") from None


def _decode(content: bytes) -> str:
    """Source text as Python itself reads it; the sandbox keeps it as UTF-8, so it must declare no other."""
    from importlib.util import decode_source

    lines = decode_source(content).split("\n", 2)
    return "\n".join([*(ENCODING.sub(r"\1utf-8", line) for line in lines[:2]), *lines[2:]])


def _limit(read: Callable[[Any], Any], given: object) -> Any:
    if given is None:
        return UNSET
    try:
        return read(given)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _existing_folder(path: Path) -> Path:
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder")
    return path.resolve()


def _stdin() -> Any:
    return sys.stdin.buffer if sys.stdin is not None else None


def _policy(path: Path | None, preload: list[str] | None, limits: dict[str, Any]) -> ExecutionPolicy:
    from sandbox.policy import ExecutionPolicy, load_policy

    if path is not None and not path.is_file():
        raise typer.BadParameter(f"there is no policy file {path}")
    changes = {name: value for name, value in limits.items() if value is not UNSET}
    if preload:
        changes["preload"] = tuple(name for part in preload for name in part.split(",") if name)
    try:
        policy = load_policy(path) if path is not None else ExecutionPolicy()
        return ExecutionPolicy(**{**policy.model_dump(), **changes})
    except PolicyValidationError as error:
        raise typer.BadParameter(str(error)) from None


def _execute(source: str, workspace: Path, policy: ExecutionPolicy, options: dict[str, Any]) -> SandboxResult:
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


def _relay(cancel: threading.Event) -> Callable[[str, bytes], None]:
    """Passes output on; a reader that went away stops the guest."""

    def relay(stream: str, data: bytes) -> None:
        out = sys.stderr.buffer if stream == "stderr" else sys.stdout.buffer
        try:
            out.write(data)
            out.flush()
        except OSError:
            cancel.set()

    return relay


def _exit_code(result: SandboxResult) -> int:
    return EXIT_CODES[result.stopped_by] if result.stopped_by else result.exit_code & 0xFF


def _note_limits(result: SandboxResult, policy: ExecutionPolicy) -> None:
    stops = {
        "timeout": f"stopped after {policy.timeout_seconds} s; allow more with --timeout",
        "fuel": f"stopped after {policy.fuel_budget} instructions; allow more with --fuel",
        "memory": f"stopped at {policy.memory_bytes} bytes of memory; allow more with --memory",
        "trap": "stopped by a trap inside the interpreter, such as a stack that is too deep",
        "cancelled": "stopped on request",
    }
    if result.stopped_by:
        typer.echo(f"sandbox: {stops[result.stopped_by]}", err=True)
    for stream, cut in (("stdout", result.stdout_truncated), ("stderr", result.stderr_truncated)):
        if cut:
            kept = getattr(policy, f"{stream}_max_bytes")
            typer.echo(f"sandbox: {stream} past {kept} bytes was dropped", err=True)


@app.command()
def warmup(
    *,
    preload: Preload = None,
    unmetered: Annotated[bool, typer.Option(help="Also prepare runs with --fuel none.")] = False,
) -> None:
    """Do now what the first run would do: fetch the guest, compile it, build the image."""
    for fuel in (UNSET, None) if unmetered else (UNSET,):
        policy = _policy(None, preload, {"fuel_budget": fuel, "timeout_seconds": None})
        with interrupts():
            result = in_worker(partial(_execute_nothing, policy))
        typer.echo(f"{_described(policy)}: ready, starts in {result.duration_ms:.1f} ms")


def _execute_nothing(policy: ExecutionPolicy) -> SandboxResult:
    with TemporaryDirectory() as folder:
        return _execute("", Path(folder), policy, {})


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
    policy = _policy(policy_file, None, {})
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
