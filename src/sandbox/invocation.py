"""What a command line asks to run, and how its outcome is shown."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from sandbox.amounts import read_bytes, read_count, read_seconds
from sandbox.errors import PolicyValidationError
from sandbox.interrupts import in_worker, interrupts

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from sandbox.policy import ExecutionPolicy
    from sandbox.result import SandboxResult

FAILED, USAGE = 1, 2
EXIT_CODES = {"timeout": 124, "fuel": 137, "memory": 137, "trap": 137, "cancelled": 130}
ENCODING = re.compile(r"^([ \t\f]*#.*?coding[:=][ \t]*)[-\w.]+")
CODES_HELP = """
Exit codes: the guest's own; 124 stopped by the timeout; 137 stopped by fuel, memory or a trap;
130 interrupted; 1 the sandbox itself failed; 2 wrong usage.
"""

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
Code = Annotated[str | None, typer.Option("-c", metavar="CODE", help="The code itself.")]
Timeout = Annotated[str | None, typer.Option(metavar="SECONDS", help="Wall clock, or none.")]
Fuel = Annotated[str | None, typer.Option(metavar="N", help="WebAssembly instructions, or none.")]
Memory = Annotated[str | None, typer.Option(metavar="SIZE", help="Memory, such as 256M or 1G.")]
Data = Annotated[Path | None, typer.Option(metavar="DIR", help="A folder to read at /data.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]


def require_command(context: typer.Context) -> None:
    """Show the help where no command is named."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(USAGE)


def run_code(
    words: list[str],
    code: str | None,
    policy: ExecutionPolicy,
    execute: Callable[[str, dict[str, Any]], SandboxResult],
    *,
    as_json: bool,
) -> NoReturn:
    """Run what the command line says, pass its output on, and leave with the guest's exit code."""
    source, args = _read_code(words, code)
    stdin = None if words and words[0] == "-" and code is None else standard_input()
    with interrupts() as (cancel, received):
        options: dict[str, Any] = {"stdin": stdin, "args": args, "cancel": cancel}
        lost: list[OSError] = []
        if not as_json:
            options["on_output"] = relay_output(cancel, lost)
        result = in_worker(lambda: execute(source, options))
    if lost and not isinstance(lost[0], BrokenPipeError):
        raise lost[0]
    if as_json:
        typer.echo(result.model_dump_json(indent=2))
    note_limits(result, policy)
    raise typer.Exit(128 + received[0] if received else _exit_code(result))


def read_limits(
    timeout: str | None, fuel: str | None, memory: str | None, data: Path | None
) -> dict[str, Any]:
    """The limits that the command line gives, as fields of a policy."""
    return {
        "timeout_seconds": _limit(read_seconds, timeout),
        "fuel_budget": _limit(read_count, fuel),
        "memory_bytes": _limit(read_bytes, memory),
        "mount_data_dir": _limit(_existing_folder, data),
    }


def _read_code(words: list[str], code: str | None) -> tuple[str, list[str]]:
    """The code to run, and the arguments that are left for it."""
    if code is not None:
        return as_utf8(code), words
    if not words:
        raise typer.BadParameter("name a FILE, or give the code with -c CODE, or - to read it from stdin")
    name, *args = words
    try:
        content = _stdin_bytes() if name == "-" else Path(name).read_bytes()
        return _decode(content), args
    except OSError as error:
        raise typer.BadParameter(f"cannot read {name}: {error.strerror}") from None
    except (SyntaxError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read {name} as Python source: {error}") from None


def _stdin_bytes() -> bytes:
    if sys.stdin is None:
        raise typer.BadParameter("cannot read -: stdin is closed")
    return sys.stdin.buffer.read()


def as_utf8(text: str) -> str:
    """Text as UTF-8 where the locale, such as C, could make nothing of its bytes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


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


def standard_input() -> Any:
    """What the guest reads; None where the caller closed it."""
    return sys.stdin.buffer if sys.stdin is not None else None


def read_policy(path: Path | None, preload: list[str] | None, limits: dict[str, Any]) -> ExecutionPolicy:
    """The policy of a file, with what the command line changes of it."""
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


def relay_output(cancel: threading.Event, lost: list[OSError] | None = None) -> Callable[[str, bytes], None]:
    """Passes output on; where it cannot be written the guest is stopped, and `lost` hears why."""

    def relay(stream: str, data: bytes) -> None:
        out = sys.stderr if stream == "stderr" else sys.stdout
        if out is None:  # the caller closed it
            return
        try:
            out.buffer.write(data)
            out.buffer.flush()
        except OSError as error:
            if lost is not None:
                lost.append(error)
            cancel.set()

    return relay


def _exit_code(result: SandboxResult) -> int:
    return EXIT_CODES[result.stopped_by] if result.stopped_by else result.exit_code & 0xFF


def note_limits(result: SandboxResult, policy: ExecutionPolicy) -> None:
    """Say on stderr what a limit stopped or cut."""
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
