"""Progress bars for work on a command line that takes more than a moment."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["bytes_bar", "steps_bar", "waiting_bar"]

# Shorter work shows no bar: it would only flicker.
DELAY_SECONDS = 1.0


@contextmanager
def waiting_bar(what: str) -> Iterator[None]:
    """A bar that only moves, for work that does not tell how far it is."""
    with _bar(what, []):
        yield


@contextmanager
def steps_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar that is told (done, total)."""
    from rich.progress import MofNCompleteColumn

    with _bar(what, [MofNCompleteColumn()]) as move:
        yield move


@contextmanager
def bytes_bar(what: str) -> Iterator[Callable[[int], None]]:
    """A bar that is told of bytes as they are copied."""
    from rich.progress import DownloadColumn, TransferSpeedColumn

    done = 0
    with _bar(what, [DownloadColumn(), TransferSpeedColumn()]) as move:

        def add(count: int) -> None:
            nonlocal done
            done += count
            move(done, None)

        yield add


@contextmanager
def _bar(what: str, columns: list[Any]) -> Iterator[Callable[[float, float | None], None]]:
    """Moves a bar to (done, total); it appears on stderr after a while, at a terminal only."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.description}", markup=False)
    display = Progress(text, BarColumn(), *columns, TimeElapsedColumn(), console=Console(stderr=True))
    task = display.add_task(what, total=None)
    appear = threading.Timer(DELAY_SECONDS, display.start)
    appear.daemon = True
    if display.console.is_terminal:
        appear.start()
    try:
        yield lambda done, total: display.update(task, completed=done, total=total)
    finally:
        appear.cancel()
        if appear.is_alive():
            appear.join()  # it may be starting the display at this moment
        if display.live.is_started:
            display.stop()
