"""Tells a person at a terminal what a long step does."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress, Task, TaskID
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
    with _screen.step(f"{what} (about {expected_seconds:.0f} s, once per machine)", expected_seconds):
        yield


class _Screen:
    """The one display of this process; of steps inside steps it shows the innermost."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._display: Progress | None = None
        self._steps: list[TaskID] = []

    @contextmanager
    def step(self, what: str, expected_seconds: float) -> Iterator[None]:
        step = self._begin(what, expected_seconds)
        try:
            yield
        except BaseException:
            self._end(step, completed=0.0)
            raise
        self._end(step, completed=expected_seconds)

    def _begin(self, what: str, expected_seconds: float) -> TaskID:
        with self._guard:
            if self._display is None:
                self._display = _new_display()
                self._display.start()
            for outer in self._steps:
                self._display.update(outer, visible=False)
            self._steps.append(self._display.add_task(what, total=expected_seconds))
            return self._steps[-1]

    def _end(self, step: TaskID, *, completed: float) -> None:
        with self._guard:
            if self._display is None:
                return
            self._display.update(step, completed=completed)
            self._steps.remove(step)
            if self._steps:
                self._display.reset(self._steps[-1], visible=True)
            else:
                self._display.stop()
                self._display = None


_screen = _Screen()


def _at_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # a host may have closed its stderr, or have none
        return False


def _new_display() -> Progress:
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
