"""Who may call, and how much a call may send: checked before any route runs."""

from __future__ import annotations

import hmac
import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException

from mas.service.problems import problem

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["BODY_MAX_BYTES", "UPLOAD_MAX_BYTES", "Guard", "is_loopback"]

BODY_MAX_BYTES = 10 * 1024 * 1024
UPLOAD_MAX_BYTES = 100 * 1024 * 1024
UPLOAD_PATH = re.compile(r"/sessions/[^/]+/files/")
OPEN_PATH = "/health"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
SAFE_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Guard:
    """ASGI middleware: headers first, then the body as it streams in.

    `local` refuses Host names that are not this machine's, so that a web page cannot reach the API
    by pointing a name of its own at 127.0.0.1. `token` is asked for everywhere but on /health.
    """

    app: ASGIApp
    token: str | None = None
    local: bool = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._refuse(scope, Headers(scope=scope))
        app = refusal or self.app
        await app(scope, _limited(receive, _limit(scope)), _with_safe_headers(send))

    def _refuse(self, scope: Scope, headers: Headers) -> Response | None:
        if self.local and _host_name(headers.get("host", "")) not in LOOPBACK_NAMES:
            return problem(
                403, "this server answers only to localhost, 127.0.0.1 and [::1]", code="host-refused"
            )
        if not _same_origin(headers):
            return problem(403, "requests of other web pages are not answered", code="origin-refused")
        if self.token is not None and scope["path"] != OPEN_PATH and not self._knows_token(headers):
            challenge = {"WWW-Authenticate": 'Bearer realm="mas"'}
            return problem(401, "send the token of MAS_API_TOKEN as Authorization: Bearer", headers=challenge)
        if _declares_more(headers.get("content-length", "0"), _limit(scope)):
            return problem(413, _too_large(_limit(scope)))
        return None

    def _knows_token(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        expected = (self.token or "").encode()
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), expected)


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _same_origin(headers: Headers) -> bool:
    """Whether no page sent this, or one of this very server.

    Host tells no scheme, and a proxy may add TLS; but a page of another kind than http and https, like
    that of a browser's extension, is another program's.
    """
    origin = headers.get("origin")
    if origin is None:
        return True
    scheme, _, authority = origin.lower().partition("://")
    return scheme in ("http", "https") and authority == headers.get("host", "").lower() != ""


def _declares_more(length: str, limit: int) -> bool:
    # A length that is no number says nothing true; one of thousands of digits must not even be read as one.
    known = length.isascii() and length.isdigit() and len(length) <= len(str(limit))
    return not known or int(length) > limit


def _limit(scope: Scope) -> int:
    upload = scope["method"] == "PUT" and UPLOAD_PATH.match(scope["path"])
    return UPLOAD_MAX_BYTES if upload else BODY_MAX_BYTES


def _limited(receive: Receive, limit: int) -> Receive:
    """Count what arrives, because a chunked body declares no length."""
    received = 0

    async def receive_some() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise HTTPException(413, _too_large(limit))
        return message

    return receive_some


def _too_large(limit: int) -> str:
    return f"the body is larger than {limit // (1024 * 1024)} MiB; send less"


def _with_safe_headers(send: Send) -> Send:
    async def send_safe(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in SAFE_HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return send_safe
