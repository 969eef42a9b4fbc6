"""Live output as server-sent events."""

from __future__ import annotations

import codecs
import json
from typing import TYPE_CHECKING

import anyio.to_thread
from fastapi.responses import StreamingResponse

if TYPE_CHECKING:
    import threading
    from collections.abc import AsyncIterator, Iterator

__all__ = ["EventStream", "stream_output"]

KEEP_ALIVE = b": nothing new\n\n"


class EventStream(StreamingResponse):
    """A response of server-sent events."""

    media_type = "text/event-stream"


def stream_output(chunks: Iterator[bytes], closing: threading.Event) -> EventStream:
    """An `output` event for each chunk, then `end`; stops when the client leaves or the server closes."""
    return EventStream(_events(chunks, closing))


async def _events(chunks: Iterator[bytes], closing: threading.Event) -> AsyncIterator[bytes]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    limiter = anyio.CapacityLimiter(1)  # a thread of its own: readers that wait take none from requests
    try:
        yield KEEP_ALIVE  # the headers leave at once, so that the client knows it is connected
        while (chunk := await anyio.to_thread.run_sync(next, chunks, None, limiter=limiter)) is not None:
            text = decoder.decode(chunk)
            yield _event("output", {"text": text}) if text else KEEP_ALIVE
            if closing.is_set():
                return
        yield _event("end", {})
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()


def _event(name: str, data: dict[str, str]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
