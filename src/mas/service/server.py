"""The API as a process: where it listens, and the note by which others on this machine find it."""

from __future__ import annotations

import json
import logging
import os
import socket
from typing import TYPE_CHECKING

import uvicorn

from mas.errors import InvalidConfiguration
from mas.service.app import create_app
from mas.service.guard import is_loopback

if TYPE_CHECKING:
    from pathlib import Path

    from fastapi import FastAPI

    from mas.runs import Runs

__all__ = ["serve"]

SHUTDOWN_SECONDS = 3
BACKLOG = 1_024


def serve(runs: Runs, *, host: str, port: int) -> None:
    """Answer requests until this process is told to end; port 0 takes a free one.

    Off loopback a token is needed: InvalidConfiguration without one. OSError when the address is taken.
    """
    local = is_loopback(host)
    if not local and runs.settings.api_token is None:
        raise InvalidConfiguration(
            "MAS_API_TOKEN", f"a server on {host} needs a token; set one, or use 127.0.0.1"
        )
    listener = _listen(host, port)
    app = create_app(runs, local=local)
    config = uvicorn.Config(
        app,
        log_level="info",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        ws="none",
    )
    with listener:
        _Server(config, app, runs, listener).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Leaves a note of its address while it answers, and lets go of who waits when it is told to end."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, runs: Runs, listener: socket.socket) -> None:
        super().__init__(config)
        self._app = app
        self._note = runs.settings.address_file
        self._facts = {
            "url": _url(listener),
            "pid": os.getpid(),
            "tmuxSocket": runs.settings.tmux_socket,
        }

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            _write_note(self._note, self._facts)
            logging.getLogger("uvicorn.error").info("Serving %s", self._facts["url"])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        _remove_note(self._note, self._facts)
        self._app.state.clients.close()
        await super().shutdown(sockets)


def _listen(host: str, port: int) -> socket.socket:
    # Named TCP, because asyncio sends small answers at once only on sockets that say so: 40 ms a request.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        reason = f"cannot listen on {host}:{port}: {error.strerror}; choose another --host or --port"
        raise OSError(reason) from error
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104 - read, not bound
    return f"http://{name}:{port}"


def _write_note(path: Path, facts: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(facts, file)
    fresh.replace(path)


def _remove_note(path: Path, facts: dict[str, object]) -> None:
    try:
        if json.loads(path.read_text(encoding="utf-8")) == facts:
            path.unlink()
    except (OSError, ValueError):
        pass  # another server wrote its own, or somebody removed it
