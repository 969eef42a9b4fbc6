"""Ctrl-C and SIGTERM as a request to stop a guest."""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

__all__ = ["in_worker", "interrupts"]

# A guest stops at once when asked; only a compilation takes longer, and is abandoned.
GRACE_SECONDS = 3.0
# The kernel may hand a signal to another thread, and then nothing wakes a main thread that waits for ever.
SIGNAL_POLL_SECONDS = 0.1

T = TypeVar("T")


@contextmanager
def interrupts() -> Iterator[tuple[threading.Event, list[int]]]:
    """Gives the event that a signal sets, and the list of signals that came.

    What has not stopped a few seconds after the first signal, or at the second, is abandoned: the
    process ends.
    """
    cancel, received = threading.Event(), list[int]()
    abandon = threading.Timer(GRACE_SECONDS, lambda: _abandon(received[0]))
    abandon.daemon = True

    def stop(number: int, _frame: FrameType | None) -> None:
        if received:
            _abandon(number)
        received.append(number)
        cancel.set()
        abandon.start()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield cancel, received
    finally:
        abandon.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def _abandon(number: int) -> None:
    if sys.stderr.isatty():
        os.write(2, b"\x1b[?25h\n")  # a progress display may have hidden the cursor
    os._exit(128 + number)


def in_worker(job: Callable[[], T]) -> T:
    """Run `job` in a thread, so that the main thread can take signals meanwhile."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(job)
        while not future.done():
            wait([future], timeout=SIGNAL_POLL_SECONDS)
        return future.result()
