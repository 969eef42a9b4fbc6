"""Operations on runs and their agents."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Header, Path, Query, Response
from fastapi.exceptions import HTTPException
from fastapi.requests import Request
from fastapi.responses import PlainTextResponse

from mas.agents import AgentView
from mas.answers import Run, RunDetails, RunPage, Stopped
from mas.config import Message, RunConfig
from mas.registry import Status
from mas.runs import Runs
from mas.service.models import Accepted
from mas.service.problems import responses
from mas.service.stream import EventStream, stream_output
from mas.service.waiting import run_in_line

__all__ = ["OneAgent", "OneSession", "TheRuns", "require_json", "router"]

MOST_SESSIONS_PER_PAGE = 1_000
MOST_LOG_LINES = 1_000_000


def get_runs(request: Request) -> Runs:
    """The runs that this server is about."""
    runs: Runs = request.app.state.runs
    return runs


def require_json(request: Request) -> None:
    """Refuse a body that is not declared as JSON: a web form of another page could send it."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HTTPException(415, "send the body as Content-Type: application/json")


TheRuns = Annotated[Runs, Depends(get_runs)]
OneSession = Annotated[
    str,
    Path(
        alias="sessionId",
        description="The whole id of a session; a part of it finds nothing.",
        examples=["550e8400-e29b-41d4-a716-446655440000"],
    ),
]
OneAgent = Annotated[str, Path(alias="agentId", description="Two digits.", examples=["10"])]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="Of the client's choice. For a day, the same key gives the same run.",
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
    ),
]

SMALL_TEAM = {
    "summary": "One unit of a manager and a worker",
    "value": {
        "sessionMode": "isolated",
        "agents": {
            "units": [
                {
                    "unitId": 1,
                    "manager": {"id": "10", "prompt": "You lead the design."},
                    "workers": [{"id": "11", "prompt": "You write the requirements."}],
                }
            ]
        },
    },
}
SHORT_MESSAGE = {
    "summary": "A line for agent 11",
    "value": {"target": "11", "text": "Read workflows/README.md."},
}
Team = Annotated[RunConfig, Body(openapi_examples={"small": SMALL_TEAM})]
OneMessage = Annotated[Message, Body(openapi_examples={"short": SHORT_MESSAGE})]

router = APIRouter()
json_body = Depends(require_json)


@router.post(
    "/runs",
    tags=["runs"],
    status_code=201,
    dependencies=[json_body],
    response_description="The session, running.",
    responses=responses(409, 413, 415, 422, 503),
)
def create_run(runs: TheRuns, config: Team, idempotency_key: IdempotencyKey = None) -> Run:
    """Make a session and start its agents, all or nothing.

    Answers once every pane's process exists; each agent gets its prompt when it is ready.
    """
    return runs.create(config, idempotency_key=idempotency_key)


@router.get(
    "/sessions",
    tags=["sessions"],
    response_description="A page of the sessions, and how many match.",
    responses=responses(422),
)
def list_sessions(
    runs: TheRuns,
    status: Annotated[Status | None, Query(description="Only these.")] = None,
    limit: Annotated[
        int | None, Query(ge=1, le=MOST_SESSIONS_PER_PAGE, description="All, when left out.")
    ] = None,
    offset: Annotated[int, Query(ge=0, description="How many to leave out first.")] = 0,
) -> RunPage:
    """Every session in order of creation, each verified against tmux now."""
    return runs.list(status=status, limit=limit, offset=offset)


@router.get(
    "/sessions/{sessionId}",
    tags=["sessions"],
    response_description="The session.",
    responses=responses(404, 422),
)
def show_session(runs: TheRuns, session_id: OneSession) -> RunDetails:
    """One session with its windows and agents as they are now."""
    return runs.show(session_id)


@router.post(
    "/sessions/{sessionId}/stop",
    tags=["sessions"],
    response_description="It is stopped.",
    responses=responses(404, 422, 503),
)
def stop_session(runs: TheRuns, session_id: OneSession) -> Stopped:
    """End the agents and every process that they started; the workspace stays. May be repeated."""
    return runs.stop(session_id)


@router.post(
    "/sessions/{sessionId}/restore",
    tags=["sessions"],
    response_description="The session, running again.",
    responses=responses(404, 409, 422, 503),
)
def restore_session(runs: TheRuns, session_id: OneSession) -> Run:
    """Start the agents of a stopped session again, in the workspace that was kept."""
    return runs.restore(session_id)


@router.delete(
    "/sessions/{sessionId}",
    tags=["sessions"],
    status_code=204,
    response_description="It is gone.",
    responses=responses(404, 409, 422),
)
def delete_session(runs: TheRuns, session_id: OneSession) -> Response:
    """Remove a stopped session with everything in its workspace. It cannot be taken back."""
    runs.delete(session_id)
    return Response(status_code=204)


@router.post(
    "/sessions/{sessionId}/messages",
    tags=["agents"],
    status_code=202,
    dependencies=[json_body],
    response_description="The text was typed.",
    responses=responses(404, 409, 413, 415, 422, 503),
)
async def send_message(
    request: Request, runs: TheRuns, session_id: OneSession, message: OneMessage
) -> Accepted:
    """Type a text into an agent's pane exactly as it is, then press Enter unless `submit` is false.

    Waits until the agent has its prompt, and for the messages to it that came before.
    """
    send = partial(runs.send, session_id, message.target, message.text, submit=message.submit)
    await run_in_line(request, (session_id, message.target), send)
    return Accepted(session_id=session_id, target=message.target, characters=len(message.text))


@router.post(
    "/sessions/{sessionId}/agents/{agentId}/restart",
    tags=["agents"],
    response_description="The agent, starting.",
    responses=responses(404, 409, 422, 503),
)
def restart_agent(runs: TheRuns, session_id: OneSession, agent_id: OneAgent) -> AgentView:
    """End one agent with its processes, and start it again in its pane."""
    return runs.restart_agent(session_id, agent_id)


@router.get(
    "/sessions/{sessionId}/logs/{agentId}",
    tags=["agents"],
    response_class=PlainTextResponse,
    response_description="The log.",
    responses=responses(404, 422),
)
def read_log(
    runs: TheRuns,
    session_id: OneSession,
    agent_id: OneAgent,
    tail: Annotated[int | None, Query(ge=0, le=MOST_LOG_LINES, description="Only the last lines.")] = None,
) -> PlainTextResponse:
    """What the agent's pane printed, control sequences included; kept after the session has stopped."""
    return PlainTextResponse(runs.log(session_id, agent_id, tail=tail).decode(errors="replace"))


@router.get(
    "/sessions/{sessionId}/output/{agentId}",
    tags=["agents"],
    response_class=EventStream,
    response_description="Events, for as long as the session runs.",
    responses=responses(404, 422),
)
def follow_output(request: Request, runs: TheRuns, session_id: OneSession, agent_id: OneAgent) -> EventStream:
    """What the agent's pane prints from now on, as server-sent events.

    `output` events carry a JSON object whose `text` is the next piece; one `end` event follows when the
    session stops. Comments keep the connection open while nothing is printed.
    """
    return stream_output(runs.follow(session_id, agent_id), request.app.state.clients.closing)
