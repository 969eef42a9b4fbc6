"""Threads with stacks that are deep enough for a guest."""

from __future__ import annotations

import contextvars
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

STACK_BYTES = 64 << 20  # address space only; a guest may use 8 MiB, wasmtime and Python the rest
MOST_IDLE = 32
SIGNAL_POLL_SECONDS = 0.25  # how late a caller notices Ctrl-C at most

Result = TypeVar("Result")

_idle: list[_Worker] = []
_guard = threading.Lock()


class Task(Generic[Result]):
    """One function on its way through a worker."""

    def __init__(self, function: Callable[[], Result]) -> None:
        self._function = function
        self._context = contextvars.copy_context()
        self._claim = threading.Lock()  # whoever has it decides whether the function runs
        self._finished = False
        self._done = threading.Lock()
        self._done.acquire()
        self._results: list[Result] = []
        self._error: BaseException | None = None

    def run(self) -> bool:
        """Run the function, on the worker; False where it was abandoned."""
        if not self._claim.acquire(blocking=False):
            return False
        try:
            self._results.append(self._context.run(self._function))
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            self._error = error
        finally:
            self._finish()
        return True

    def abandon(self) -> None:
        """Have it not run, where it has not begun."""
        if self._claim.acquire(blocking=False):
            self._finish()

    def _finish(self) -> None:
        self._finished = True
        self._done.release()

    def wait(self) -> None:
        """Wait for its end; may be interrupted, and called again."""
        # A signal that another thread takes, or that comes just before the wait, does not end it.
        while not self._finished and not self._done.acquire(timeout=SIGNAL_POLL_SECONDS):
            pass

    def result(self) -> Result:
        """What it returned, or raised."""
        if self._error is not None:
            error, self._error = self._error, None  # its traceback would keep this task alive
            raise error
        return self._results[0]


class _Worker:
    def __init__(self) -> None:
        self._tasks: SimpleQueue[tuple[Task[Any], Callable[[], None]]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sandbox-guest", daemon=True)
        _start_deep(self._thread)

    def give(self, task: Task[Any], afterwards: Callable[[], None]) -> None:
        self._tasks.put((task, afterwards))

    def _run(self) -> None:
        while True:
            task, afterwards = self._tasks.get()
            if task.run():
                afterwards()
            del task, afterwards  # an idle worker keeps nothing alive
            with _guard:
                if len(_idle) >= MOST_IDLE:
                    return
                _idle.append(self)


def run(
    function: Callable[[], Result],
    *,
    interrupt: Callable[[], None] = lambda: None,
    afterwards: Callable[[], None] = lambda: None,
) -> Result:
    """Run `function` on a deep stack and wait for it.

    `interrupt` asks it to end when the wait itself is interrupted, by Ctrl-C for one. `afterwards`
    follows on the same thread, while the caller goes on with the result; a function that was
    interrupted before it began has no afterwards.
    """
    task = Task(function)
    try:
        with _guard:
            worker = _idle.pop() if _idle else None
        (worker or _Worker()).give(task, afterwards)
        task.wait()
    except BaseException:
        task.abandon()
        interrupt()
        task.wait()
        raise
    return task.result()


def _start_deep(thread: threading.Thread) -> None:
    # The size is a setting of the whole process, so it is changed for as short as possible.
    with _guard:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
