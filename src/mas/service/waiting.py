"""Work that lasts only as long as its client waits."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import anyio.to_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.requests import Request

__all__ = ["Clients", "run_for_client"]

EXECUTIONS_AT_ONCE = 16
"""More wait. Executions last, so they have threads of their own and take none from other requests."""

Answer = TypeVar("Answer")


class Clients:
    """Who waits for something that lasts, so that a server that ends can let all of them go."""

    def __init__(self) -> None:
        self.threads = anyio.CapacityLimiter(EXECUTIONS_AT_ONCE)
        self.closing = threading.Event()
        self._waiting: set[threading.Event] = set()

    @contextmanager
    def one(self) -> Iterator[threading.Event]:
        """An event that is set when this client's answer is not wanted any more."""
        gone = threading.Event()
        self._waiting.add(gone)
        try:
            yield gone
        finally:
            gone.set()
            self._waiting.discard(gone)

    def close(self) -> None:
        """End every wait."""
        self.closing.set()
        for gone in self._waiting:
            gone.set()


async def run_for_client(request: Request, work: Callable[[threading.Event], Answer]) -> Answer:
    """The answer of `work`, which runs in a thread; its event is set when the client leaves."""
    clients: Clients = request.app.state.clients
    with clients.one() as gone:
        watcher = asyncio.create_task(_watch(request, gone))
        try:
            return await anyio.to_thread.run_sync(work, gone, limiter=clients.threads)
        finally:
            watcher.cancel()


async def _watch(request: Request, gone: threading.Event) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gone.set()
