"""Errors as HTTP answers: one table from error class to status, RFC 9457 bodies for all of them."""

from __future__ import annotations

import errno
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match

import mas.errors as runs
import sandbox.errors as sandboxes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastapi import FastAPI, Request

__all__ = ["PROBLEM_TYPE", "STATUS", "Problem", "add_handlers", "problem", "responses", "status_of"]

PROBLEM_TYPE = "application/problem+json"

STATUS: dict[type[Exception], int] = {
    runs.MasError: 500,
    runs.InvalidConfiguration: 422,
    runs.InvalidMessage: 422,
    runs.InvalidSessionId: 404,
    runs.RunNotFound: 404,
    runs.AgentNotFound: 404,
    runs.Conflict: 409,
    runs.RunActive: 409,
    runs.RunNotActive: 409,
    runs.AgentNotRunning: 409,
    runs.WorkspaceGone: 409,
    runs.LegacyRunning: 409,
    runs.SessionIdTaken: 409,
    runs.IdempotencyMismatch: 409,
    runs.TmuxError: 503,
    runs.TmuxMissing: 503,
    runs.TmuxFailed: 503,
    runs.TemplateUnusable: 503,
    runs.WorkspaceFailed: 500,
    sandboxes.SandboxError: 500,
    sandboxes.PolicyValidationError: 422,
    sandboxes.GuestUnavailable: 503,
    sandboxes.GuestRejected: 503,
    sandboxes.EngineUnusable: 503,
    sandboxes.PreloadFailed: 422,
    sandboxes.WorkspaceUnusable: 500,
    sandboxes.SandboxClosed: 500,
    sandboxes.SessionError: 500,
    sandboxes.InvalidSessionId: 404,
    sandboxes.InvalidSessionPath: 422,
    sandboxes.SessionInUse: 409,
    sandboxes.ArchiveRejected: 422,
    sandboxes.StateUnusable: 409,
    sandboxes.NotStateful: 409,
    sandboxes.CheckpointUnknown: 404,
    sandboxes.InvalidCheckpointName: 422,
    # What the session's file API raises besides: the path is the caller's.
    FileNotFoundError: 404,
    FileExistsError: 409,
    IsADirectoryError: 422,
    NotADirectoryError: 422,
}
ERRNO_STATUS = {errno.ENAMETOOLONG: 422, errno.ELOOP: 422, errno.ENOSPC: 507, errno.EDQUOT: 507}
WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")


class FieldProblem(BaseModel):
    """One field that breaks its rule."""

    field: str = Field(
        description="Where it is, with dots between the levels.", examples=["agents.units.0.unitId"]
    )
    message: str = Field(description="The rule that it breaks.")


class Problem(BaseModel):
    """Why a request was not carried out (RFC 9457)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "about:blank",
                    "title": "Not Found",
                    "status": 404,
                    "detail": "no session 550e8400-e29b-41d4-a716-446655440000; list the sessions",
                    "code": "run-not-found",
                }
            ]
        }
    )

    type: str = Field(default="about:blank", description="Always `about:blank`; `code` tells errors apart.")
    title: str = Field(description="The meaning of the status.")
    status: int = Field(description="The HTTP status, repeated.")
    detail: str = Field(description="What happened, and what to do next.")
    code: str = Field(description="The kind of error, stable across versions.")
    errors: list[FieldProblem] | None = Field(
        default=None, description="The fields at fault, for status 422."
    )


class ProblemResponse(JSONResponse):
    """A JSON answer that says it is a problem."""

    media_type = PROBLEM_TYPE


def problem(
    status: int,
    detail: str,
    *,
    code: str | None = None,
    errors: list[FieldProblem] | None = None,
    headers: Mapping[str, str] | None = None,
) -> ProblemResponse:
    """The answer for a failure; without a code, the status names the kind."""
    title = HTTPStatus(status).phrase
    shown = detail.encode(errors="replace").decode()  # a file's name may be bytes that are no text
    body = Problem(title=title, status=status, detail=shown, code=code or _kebab(title), errors=errors)
    return ProblemResponse(body.model_dump(exclude_none=True), status, headers=dict(headers or {}))


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI description of the problems that an operation answers with."""
    content = {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def status_of(error: Exception) -> int:
    """The HTTP status of an error: its own row, else the nearest class above it that has one."""
    if type(error) not in STATUS and isinstance(error, OSError) and error.errno in ERRNO_STATUS:
        return ERRNO_STATUS[error.errno]
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


def add_handlers(app: FastAPI) -> None:
    """Answer every error of `app` with a problem."""
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    for kind in (runs.MasError, sandboxes.SandboxError, OSError):
        app.add_exception_handler(kind, _answer_error)
    app.add_exception_handler(Exception, _answer_unexpected)


def _answer_error(_request: Request, error: Exception) -> ProblemResponse:
    status = status_of(error)
    if isinstance(error, runs.MasError | sandboxes.SandboxError):
        return problem(status, str(error), code=_kebab(type(error).__name__))
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        raise error
    # A built-in OSError names host paths; its reason alone is for the caller.
    return problem(status, getattr(error, "strerror", None) or type(error).__name__)


def _answer_http(request: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 - narrows the type; registered for this class only
    if error.status_code == HTTPStatus.BAD_REQUEST:  # FastAPI's word for a body that it could not decode
        return problem(422, "the body is no JSON in UTF-8", code="invalid-request")
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = ", ".join(_methods(request))
        return problem(405, f"this address takes {allowed}", headers={"Allow": allowed})
    return problem(error.status_code, str(error.detail), headers=error.headers)


def _methods(request: Request) -> list[str]:
    """Every method of an address; the router itself knows only those of the first route that fits."""
    fitting = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in fitting for method in getattr(route, "methods", None) or ()})


def _answer_invalid(_request: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - narrows the type, as above
    fields = [
        FieldProblem(field=_location(found["loc"]), message=found["msg"].removeprefix("Value error, "))
        for found in _causes(error.errors())
    ]
    detail = "; ".join(f"{found.field}: {found.message}" for found in fields[:3])
    return problem(422, detail, code="invalid-request", errors=fields)


def _causes(errors: Sequence[Any]) -> list[Any]:
    # A list whose items are all wrong is reported as too short as well, which only confuses.
    places = [found["loc"] for found in errors]
    return [
        found
        for found in errors
        if found["type"] != "too_short"
        or not any(place[: len(found["loc"])] == found["loc"] != place for place in places)
    ]


def _location(parts: tuple[int | str, ...]) -> str:
    names = [str(part) for part in parts[1:]]  # the first part says where: body, query, path
    return ".".join(names) or str(parts[0])


def _answer_unexpected(_request: Request, _error: Exception) -> ProblemResponse:
    return problem(500, "the server failed unexpectedly; its log says why", code="internal-error")


def _kebab(name: str) -> str:
    return WORDS.sub("-", name).replace(" ", "-").lower()
