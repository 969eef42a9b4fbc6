"""Work that lasts only as long as its client waits."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, TypeVar

import anyio.to_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

__all__ = ["run_for_client"]

Answer = TypeVar("Answer")


async def run_for_client(request: Request, work: Callable[[threading.Event], Answer]) -> Answer:
    """The answer of `work`, which runs in a thread and is given an event that is set when the client leaves.

    The threads are those of `app.state.executions`: long work takes none from other requests.
    """
    gone = threading.Event()
    watcher = asyncio.create_task(_watch(request, gone))
    try:
        return await anyio.to_thread.run_sync(work, gone, limiter=request.app.state.executions)
    finally:
        gone.set()
        watcher.cancel()


async def _watch(request: Request, gone: threading.Event) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gone.set()
