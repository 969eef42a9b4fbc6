"""Tells a person at a terminal what a long step does."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress, Task
    from rich.progress_bar import ProgressBar

    from sandbox.events import SandboxLogger

__all__ = ["progress"]

# An estimate must not look finished while the work goes on.
MOST_SHOWN = 0.97


@contextmanager
def progress(logger: SandboxLogger, what: str, *, expected_seconds: float) -> Iterator[None]:
    """Show `what` on stderr while the block runs; without a terminal there, log it once instead."""
    if not _at_terminal():
        logger.info("progress", what=what, expected_seconds=expected_seconds)
        yield
        return
    with _display() as display:
        about = f"{what} (about {expected_seconds:.0f} s, once per machine)"
        task = display.add_task(about, total=expected_seconds)
        yield
        display.update(task, completed=expected_seconds)


def _at_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # a host may have closed its stderr, or have none
        return False


def _display() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    class TimeBar(BarColumn):
        """A bar that follows the clock, because the work itself reports no steps."""

        def render(self, task: Task) -> ProgressBar:
            bar = super().render(task)
            if not task.finished and task.total:
                bar.completed = min(task.elapsed or 0.0, task.total * MOST_SHOWN)
            return bar

    return Progress(
        SpinnerColumn("line", finished_text="[green]*[/]"),
        TextColumn("{task.description}", markup=False),
        TimeBar(bar_width=24),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
