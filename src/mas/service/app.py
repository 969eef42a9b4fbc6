"""The API as one ASGI application."""

from __future__ import annotations

from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.requests import Request  # noqa: TC002 - FastAPI reads the annotation

from mas.service import files, routes
from mas.service.guard import Guard
from mas.service.models import Health
from mas.service.problems import Problem, add_handlers, responses
from mas.service.waiting import Clients

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mas.runs import Runs

__all__ = ["create_app"]

REQUESTS_AT_ONCE = 100
"""Worker threads, each held until its request is answered."""

DESCRIPTION = """\
Teams of agents in tmux, each session with a workspace and a sandbox of its own.

`POST /runs` starts a session. Its agents are reached with messages, their output is read from logs or
live, and code runs in the session's sandbox. A session is stopped (its workspace stays), restored, deleted.

Ids are matched whole. Every error is an RFC 9457 `application/problem+json` whose `code` names its kind.
Where the server has a token, every call but `/health` sends it as `Authorization: Bearer`.
"""
TAGS = [
    {"name": "runs", "description": "Start a team."},
    {"name": "sessions", "description": "See, stop, restore and delete sessions."},
    {"name": "agents", "description": "Talk to the agents of a session, and read what they print."},
    {"name": "sandbox", "description": "Run code and exchange files in a session's sandbox."},
    {"name": "server", "description": "The server itself."},
]

server = APIRouter(tags=["server"])


@server.get("/health", response_description="It does.")
async def check_health(request: Request) -> Health:
    """Whether the server answers; asks for no token."""
    return Health(version=request.app.version)


def create_app(runs: Runs, *, local: bool = True) -> FastAPI:
    """The API over `runs`; `local` says that it is bound to loopback, and checks the Host of each request."""
    token = runs.settings.api_token
    app = FastAPI(
        title="Multi-agent sessions",
        version=version("session-sandbox"),
        description=DESCRIPTION,
        openapi_tags=TAGS,
        lifespan=_lifespan,
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        responses=responses(*([401] if token else []), 403, 413, 500),
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.runs = runs
    for part in (routes.router, files.router, server):
        app.include_router(part)
    add_handlers(app)
    app.add_middleware(Guard, token=token.get_secret_value() if token else None, local=local)
    app.openapi = lambda: _describe(app, with_token=token is not None)  # type: ignore[method-assign]  # FastAPI's own way
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = REQUESTS_AT_ONCE
    app.state.clients = Clients()
    await anyio.to_thread.run_sync(app.state.runs.reconcile)
    yield


def _describe(app: FastAPI, *, with_token: bool) -> dict[str, Any]:
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            tags=app.openapi_tags,
        )
        parts = schema.setdefault("components", {})
        problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        parts.setdefault("schemas", {}).update(problem.pop("$defs", {}), Problem=problem)
        if with_token:
            _require_token(schema)
        for part in ("components", "paths"):
            _drop_titles(schema[part])
        app.openapi_schema = schema
    return app.openapi_schema


def _require_token(schema: dict[str, Any]) -> None:
    schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    schema["security"] = [{"token": []}]
    schema["paths"]["/health"]["get"]["security"] = []


def _drop_titles(part: Any) -> None:
    """Leave out the titles that only repeat a field's name."""
    if isinstance(part, dict):
        if isinstance(part.get("title"), str):
            del part["title"]
        for inner in part.values():
            _drop_titles(inner)
    elif isinstance(part, list):
        for inner in part:
            _drop_titles(inner)
