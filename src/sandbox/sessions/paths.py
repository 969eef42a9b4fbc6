"""Paths inside a session, as callers write them."""

from __future__ import annotations

import fnmatch
import os
import re
from typing import TYPE_CHECKING

from sandbox.errors import InvalidSessionPath
from sandbox.wasm.names import HostOnlyNames

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    _NameTest = Callable[[str], re.Match[str] | None]

SessionPath = str | os.PathLike[str]

# Backslashes count for "..": a path may be handed on to a system where they separate.
_SEPARATORS = re.compile(r"[/\\]")


_ALWAYS_HIDDEN = HostOnlyNames()


def split_path(path: SessionPath, hidden: HostOnlyNames = _ALWAYS_HIDDEN) -> tuple[str, ...]:
    """The components of a path that a file of a session may have."""
    text = _text(path)
    parts = tuple(part for part in text.split("/") if part not in {"", "."})
    if not parts:
        raise InvalidSessionPath(path, "it names no file")
    if any(map(hidden.hides_name, parts)):
        raise InvalidSessionPath(path, "that name is kept for the host")
    return parts


def compile_pattern(pattern: str) -> Callable[[Sequence[str]], bool]:
    """A test of a path's components: `*.csv` at any depth, `data/**/*.csv` below any `data`."""
    segments = [part for part in _text(pattern).split("/") if part not in {"", "."}]
    if not segments:
        raise InvalidSessionPath(pattern, "the pattern is empty")
    if segments[-1] == "**":
        segments.append("*")
    tests = [None, *(None if part == "**" else _name_test(part) for part in segments)]
    return lambda parts: _matches(parts, tests)


def _text(path: SessionPath) -> str:
    text = os.fspath(path)
    if not isinstance(text, str):
        raise InvalidSessionPath(path, "it is not text")
    if "\0" in text:
        raise InvalidSessionPath(path, "it contains NUL")
    if text.startswith("/"):
        raise InvalidSessionPath(path, "it is absolute; use one relative to the session's folder")
    if ".." in _SEPARATORS.split(text):
        raise InvalidSessionPath(path, "it contains '..'")
    return text


def _name_test(segment: str) -> _NameTest:
    return re.compile(fnmatch.translate(segment)).match


def _matches(parts: Sequence[str], tests: Sequence[_NameTest | None]) -> bool:
    """Whether each component passes its test; None stands for any number of folders.

    Takes the tests in turn with every place in the path that they may have reached, so that no
    pattern costs more than its length times that of the path.
    """
    reached = {0}
    for test in tests:
        if not reached:
            return False
        if test is None:
            reached = set(range(min(reached), len(parts) + 1))
        else:
            reached = {place + 1 for place in reached if place < len(parts) and test(parts[place])}
    return len(parts) in reached
