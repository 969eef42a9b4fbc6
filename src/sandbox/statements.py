"""Python statements, as a person types them or a pipe brings them."""

from __future__ import annotations

import codeop
import sys
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Lines", "open_lines", "statements"]

PROMPT, MORE = ">>> ", "... "
MOST_HISTORY_LINES = 10_000


class Lines:
    """Lines from a person at a terminal, or from a pipe."""

    def __init__(self, *, interactive: bool) -> None:
        self._interactive = interactive

    def read(self, prompt: str) -> str | None:
        """The next line without its end; None at the end, KeyboardInterrupt where a person starts over."""
        if self._interactive:
            try:
                return input(prompt)
            except EOFError:
                sys.stdout.write("\n")
                return None
        line = sys.stdin.readline()
        return line.rstrip("\n") if line else None


@contextmanager
def open_lines(*, interactive: bool) -> Iterator[Lines]:
    """The lines of standard input; at a terminal, with the history of earlier prompts."""
    if not interactive:
        yield Lines(interactive=False)
        return
    with _history():
        yield Lines(interactive=True)


@contextmanager
def _history() -> Iterator[None]:
    """What was typed before, at hand with the arrow keys; kept from one prompt to the next."""
    import readline

    from platformdirs import user_state_path

    kept = user_state_path("session-sandbox") / "repl_history"
    with suppress(OSError):
        readline.read_history_file(kept)
    readline.set_history_length(MOST_HISTORY_LINES)
    try:
        yield
    finally:
        with suppress(OSError):
            kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            readline.write_history_file(kept)
            kept.chmod(0o600)


def statements(lines: Lines) -> Iterator[str]:
    """Whole statements, each as soon as it is complete.

    A block ends with an empty line, as at Python's own prompt, or with a line that cannot belong to it.
    """
    gathered: list[str] = []
    while True:
        try:
            line = lines.read(MORE if gathered else PROMPT)
        except KeyboardInterrupt:
            sys.stdout.write("\nKeyboardInterrupt\n")
            gathered = []
            continue
        if line is None:
            break
        if gathered and line.strip() and _ends_before(gathered, line):
            yield "\n".join(gathered)
            gathered = []
        if not gathered and not line.strip():
            continue
        gathered.append(line)
        if not _needs_more("\n".join(gathered)):
            yield "\n".join(gathered)
            gathered = []
    if gathered:
        yield "\n".join(gathered)


def _ends_before(gathered: list[str], line: str) -> bool:
    """Whether a block is complete as it is, and the next line begins something else."""
    if line[0].isspace() or _needs_more("\n".join([*gathered, ""])):
        return False
    return _compiles("\n".join([*gathered, ""])) and not _may_go_on("\n".join([*gathered, line]))


def _needs_more(source: str) -> bool:
    try:
        return _compile(source) is None
    except (SyntaxError, ValueError, OverflowError):
        return False  # the guest's own Python says what is wrong, or knows the syntax


def _compiles(source: str) -> bool:
    try:
        return _compile(source) is not None
    except (SyntaxError, ValueError, OverflowError):
        return False


def _may_go_on(source: str) -> bool:
    return _needs_more(source) or _compiles(source)


def _compile(source: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the guest warns of its own code
        return codeop.compile_command(source, "<stdin>", "single")
