"""Work that lasts: it has threads of its own, and takes none from other requests."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

import anyio.to_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.requests import Request

__all__ = ["Clients", "run_for_client", "run_in_line"]

EXECUTIONS_AT_ONCE = 16
"""More wait."""

AGENTS_AT_ONCE = 64
"""Agents to which messages are on their way; an agent that is just starting lets them wait."""

Answer = TypeVar("Answer")


class Clients:
    """Who waits for something that lasts, so that a server that ends can let all of them go."""

    def __init__(self) -> None:
        self.threads = anyio.CapacityLimiter(EXECUTIONS_AT_ONCE)
        self.senders = anyio.CapacityLimiter(AGENTS_AT_ONCE)
        self.lines: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
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


async def run_in_line(request: Request, agent: tuple[str, str], work: Callable[[], Answer]) -> Answer:
    """The answer of `work`, which runs in a thread after all that came before it for the same agent.

    Only the first of a line has a thread, so that many messages to one agent keep nobody else waiting.
    """
    clients: Clients = request.app.state.clients
    line = clients.lines.setdefault(agent, asyncio.Lock())  # gone with the last request that stands in it
    async with line:
        return await anyio.to_thread.run_sync(work, limiter=clients.senders)


async def _watch(request: Request, gone: threading.Event) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gone.set()
