"""Ctrl-C, SIGTERM and a closed terminal as requests to stop a guest or to leave."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

__all__ = ["ENDING_SIGNALS", "ending", "in_worker", "interrupts"]

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)

# A guest stops at once when asked; only a compilation takes longer, and is abandoned.
GRACE_SECONDS = 3.0
# The kernel may hand a signal to another thread, and then nothing wakes a main thread that waits for ever.
SIGNAL_POLL_SECONDS = 0.1
KNOCK_SECONDS = 0.05

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


@contextmanager
def ending() -> Iterator[Callable[[], None]]:
    """SIGTERM and a closed terminal raise SystemExit, once; the rest of the block is left in peace to save.

    Gives what to call where the block leaves of itself: from then on they are ignored.
    """
    heard: list[int] = []

    def leave(number: int, _frame: FrameType | None) -> None:
        heard.append(number)
        if len(heard) == 1:
            raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in ENDING_SIGNALS}
    try:
        with _knocking(heard):
            yield lambda: heard.append(0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _knocking(heard: list[int]) -> Iterator[None]:
    """Interrupts the main thread again until a signal is in `heard`.

    Handlers run between two steps of Python. A signal that comes just before readline waits is
    only noted, and readline goes on waiting: nothing but another signal wakes it.
    """
    hearing, telling = os.pipe()
    os.set_blocking(telling, False)
    before = signal.set_wakeup_fd(telling, warn_on_full_buffer=False)
    thread = threading.Thread(target=_knock, args=(hearing, heard), name="sandbox-knock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        heard.append(0)
        signal.set_wakeup_fd(before)
        os.close(telling)
        thread.join()
        os.close(hearing)


def _knock(hearing: int, heard: list[int]) -> None:
    main = threading.main_thread().ident
    while number := os.read(hearing, 1):
        while number[0] in ENDING_SIGNALS and main is not None and not heard:
            time.sleep(KNOCK_SECONDS)
            signal.pthread_kill(main, number[0])


def in_worker(job: Callable[[], T]) -> T:
    """Run `job` in a thread, so that the main thread can take signals meanwhile."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(job)
        while not future.done():
            wait([future], timeout=SIGNAL_POLL_SECONDS)
        return future.result()
