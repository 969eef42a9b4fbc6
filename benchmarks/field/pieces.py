"""The work that every contestant is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from field.contestants import UNMETERED

PROGRAMS = Path(__file__).resolve().parent.parent / "programs"
PANDAS = ["numpy", "pandas"]


@dataclass(frozen=True)
class Piece:
    """One piece of work; those of one family are the same work at growing sizes."""

    key: str
    title: str
    verb: str
    arguments: dict[str, Any]
    unit: str  # ms, MB, or "per second", where more is better
    family: str = ""
    size: int | None = None
    size_name: str = ""
    most_rounds: int = 10
    by: tuple[str, ...] = ()  # contestants beside the usual ones
    heavy: bool = False  # left out of a quick run
    slow_too: bool = True  # whether those that take seconds are asked

    @property
    def more_is_better(self) -> bool:
        """Whether the larger figure wins."""
        return self.unit == "per second"


def program(name: str, count: int | None = None) -> str:
    """The source of a program, with its size."""
    text = (PROGRAMS / f"{name}.py").read_text()
    return text if count is None else text.replace("COUNT = 1_000", f"COUNT = {count}")


def fresh(key: str, title: str, name: str, *, preload: list[str] | None = None, **more: Any) -> Piece:
    arguments: dict[str, Any] = {"code": program(name)}
    if preload:
        arguments["preload"] = preload
    return Piece(key, title, "fresh", arguments, "ms", **more)


def pieces() -> list[Piece]:
    """Everything that is measured, in the order of the page."""
    return [
        fresh("fresh print", "`print(1 + 1)` in a fresh interpreter", "print", most_rounds=20),
        fresh("fresh pandas", "a data frame in a fresh interpreter", "frame", preload=PANDAS),
        Piece("turn", "a turn in a live session", "turn", {"code": program("turn")}, "ms", most_rounds=20),
        Piece(
            "survive",
            "a turn saved by one process, the next one in another",
            "survive",
            {"code": program("remember"), "then": program("recall")},
            "ms",
        ),
        Piece(
            "fork",
            "copy a session with its variables, and a turn in the copy",
            "fork",
            {"code": program("remember"), "then": program("recall")},
            "ms",
        ),
        *cpu_pieces(),
        *file_pieces(),
        *workspace_pieces(),
        Piece("sessions created", "sessions created", "create", {"count": 50}, "per second"),
        *prune_pieces(),
        *rate_pieces(),
        *memory_pieces(),
    ]


def cpu_pieces() -> list[Piece]:
    work = {
        "nbody": "float arithmetic (n-body)",
        "json_trips": "JSON written and read",
        "regex": "regular expressions",
        "sort_objects": "sorting objects",
        "dicts": "dictionaries",
    }
    found = [fresh(f"cpu {name}", title, name, by=(UNMETERED,)) for name, title in work.items()]
    arrays = fresh("numpy", "numpy: product, sort, roots", "arrays", preload=["numpy"], by=(UNMETERED,))
    return [*found, arrays]


def file_pieces() -> list[Piece]:
    return [
        Piece(
            f"files/{count}",
            f"{count:,} files written, read and removed",
            "fresh",
            {"code": program("files", count), "files": 0},
            "ms",
            family="files",
            size=count,
            size_name="files",
            heavy=count != 100,
        )
        for count in (10, 100, 1_000)
    ]


def workspace_pieces() -> list[Piece]:
    return [
        Piece(
            f"workspace/{count}",
            f"`print(1 + 1)` in a workspace of {count:,} files",
            "fresh",
            {"code": program("print"), "files": count},
            "ms",
            family="workspace",
            size=count,
            size_name="files in the workspace",
            heavy=count > 1_000,
            slow_too=count in (0, 10_000),
        )
        for count in (0, 1_000, 10_000, 100_000)
    ]


def prune_pieces() -> list[Piece]:
    by_number = [prune_piece("prune number", sessions, 10, size=sessions) for sessions in (10, 100, 1_000)]
    by_size = [prune_piece("prune size", 100, files, size=files) for files in (1, 10, 100)]
    return [*by_number, *by_size]


def prune_piece(family: str, sessions: int, files: int, *, size: int) -> Piece:
    return Piece(
        f"{family}/{size}",
        f"prune {sessions:,} sessions of {files:,} files",
        "prune",
        {"sessions": sessions, "files": files},
        "ms",
        family=family,
        size=size,
        size_name="sessions" if family == "prune number" else "files in each session",
        most_rounds=3,
        heavy=size != 100 or family == "prune size",
    )


def rate_pieces() -> list[Piece]:
    return [
        Piece(
            f"rate/{callers}",
            f"fresh prints with {callers} caller{'s' if callers > 1 else ''}",
            "rate",
            {"code": program("print"), "callers": callers, "seconds": 1.0},
            "per second",
            family="rate",
            size=callers,
            size_name="callers at once",
            most_rounds=3,
            heavy=callers in (4, 8),
        )
        for callers in (1, 2, 4, 8)
    ]


def memory_pieces() -> list[Piece]:
    hold: dict[str, Any] = {"code": program("turn"), "count": 8}
    return [
        Piece("memory", "memory of a live session", "hold", hold, "MB", most_rounds=3),
        Piece(
            "memory pandas",
            "memory of a live session with pandas",
            "hold",
            {**hold, "preload": PANDAS},
            "MB",
            most_rounds=2,
            heavy=True,
        ),
    ]
