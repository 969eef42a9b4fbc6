"""Values as tables for people, or as JSON for programs."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import typer

__all__ = ["print_json", "print_table"]


def print_json(value: Any) -> None:
    """Print a value for programs."""
    typer.echo(json.dumps(value, indent=2, default=_as_text))


def _as_text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def print_table(head: list[str], rows: list[list[str]]) -> None:
    """Print rows for people."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*head, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))
    # Ids are for copying: they are not cut where the terminal is narrow or the output is a pipe.
    console = Console()
    console.print(table, soft_wrap=True, width=None if console.is_terminal else 200)
