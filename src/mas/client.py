"""The runs behind a running API, with the operations of `mas.runs.Runs`."""

from __future__ import annotations

import http.client
import json
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from mas.agents import AgentView
from mas.answers import Run, RunDetails, RunPage, Stopped
from mas.errors import InvalidConfiguration, MasError
from sandbox.result import SandboxResult

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mas.config import Mode, RunConfig
    from mas.registry import Status
    from mas.settings import Settings

__all__ = ["Client", "ServerFailed", "find_server"]

HEALTH_SECONDS = 1.0
ANSWER_SECONDS = 60.0
NOT_OURS = "see its log, or whether MAS_API_URL is the address of mas serve"
EXECUTION_SECONDS = 330.0  # the longest execution the API allows, and some time to start it


class ServerFailed(MasError):
    """The API refused a request or did not answer; `code` is the problem's."""

    def __init__(self, code: str, detail: str) -> None:
        self.code, self.detail = code, detail
        super().__init__(detail)


def find_server(settings: Settings) -> Client | None:
    """The API of MAS_API_URL, else one that serves this MAS_ROOT and tmux socket now, else None."""
    token = settings.api_token.get_secret_value() if settings.api_token else None
    named = os.environ.get("MAS_API_URL")
    if named:
        return Client(named, token)
    try:
        note = json.loads(settings.address_file.read_text(encoding="utf-8"))
        client = Client(str(note["url"]), token)
        return client if note["tmuxSocket"] == settings.tmux_socket and client.answers() else None
    except (OSError, ValueError, KeyError, TypeError, MasError):
        return None  # no server, or one that was killed and left its note


class Client:
    """One API; opens a connection for each call."""

    def __init__(self, url: str, token: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidConfiguration(
                "MAS_API_URL", f"{url!r} is no address; use one like http://127.0.0.1:8765"
            )
        self.url, self._parts, self._token = url, parts, token

    def answers(self) -> bool:
        """Whether the server is up and lets us in."""
        try:
            self._call("GET", "/health", seconds=HEALTH_SECONDS)
            self._call("GET", "/sessions", query={"limit": 1})
        except ServerFailed:
            return False
        return True

    def create(
        self, config: RunConfig, *, mode: Mode | None = None, idempotency_key: str | None = None
    ) -> Run:
        body = config.as_received()
        if mode is not None:
            body.setdefault("sessionMode", mode)
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return Run.model_validate_json(self._call("POST", "/runs", body=body, headers=headers))

    def list(self, *, status: Status | None = None, limit: int | None = None, offset: int = 0) -> RunPage:
        query = {"status": status, "limit": limit, "offset": offset}
        return RunPage.model_validate_json(self._call("GET", "/sessions", query=query))

    def show(self, session_id: str) -> RunDetails:
        return RunDetails.model_validate_json(self._call("GET", _path(session_id)))

    def stop(self, session_id: str) -> Stopped:
        return Stopped.model_validate_json(self._call("POST", _path(session_id, "stop")))

    def restore(self, session_id: str) -> Run:
        return Run.model_validate_json(self._call("POST", _path(session_id, "restore")))

    def delete(self, session_id: str) -> None:
        self._call("DELETE", _path(session_id))

    def send(self, session_id: str, target: str, text: str, *, submit: bool = True) -> None:
        body = {"target": target, "text": text, "submit": submit}
        self._call("POST", _path(session_id, "messages"), body=body)

    def restart_agent(self, session_id: str, agent_id: str) -> AgentView:
        answer = self._call("POST", _path(session_id, "agents", agent_id, "restart"))
        return AgentView.model_validate_json(answer)

    def log(self, session_id: str, agent_id: str, *, tail: int | None = None) -> bytes:
        return self._call("GET", _path(session_id, "logs", agent_id), query={"tail": tail})

    def follow(self, session_id: str, agent_id: str) -> Iterator[bytes]:
        connection, response = self._open("GET", _path(session_id, "output", agent_id), seconds=None)
        try:
            for line in response:
                if line.startswith(b"data: "):
                    yield json.loads(line[len(b"data: ") :]).get("text", "").encode()
        finally:
            connection.close()

    def execute(self, session_id: str, code: str) -> SandboxResult:
        answer = self._call(
            "POST", _path(session_id, "execute"), body={"code": code}, seconds=EXECUTION_SECONDS
        )
        return SandboxResult.model_validate_json(answer)

    def list_files(self, session_id: str, *, pattern: str | None = None) -> tuple[str, ...]:
        answer = self._call("GET", _path(session_id, "files"), query={"pattern": pattern})
        return tuple(json.loads(answer)["files"])

    def read_file(self, session_id: str, path: str) -> bytes:
        return self._call("GET", _path(session_id, "files", path))

    def write_file(self, session_id: str, path: str, data: bytes) -> None:
        self._call("PUT", _path(session_id, "files", path), body=data)

    def delete_file(self, session_id: str, path: str, *, recursive: bool = False) -> None:
        self._call("DELETE", _path(session_id, "files", path), query={"recursive": str(recursive).lower()})

    def _call(self, method: str, path: str, **options: Any) -> bytes:
        connection, response = self._open(method, path, **options)
        try:
            return response.read()
        except (OSError, http.client.HTTPException) as error:
            raise _unreachable(self.url, error) from error
        finally:
            connection.close()

    def _open(
        self,
        method: str,
        path: str,
        *,
        body: dict[str, Any] | bytes | None = None,
        query: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        seconds: float | None = ANSWER_SECONDS,
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        secure = self._parts.scheme == "https"
        connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = connect(self._parts.netloc, timeout=seconds)
        given = urlencode({name: value for name, value in (query or {}).items() if value is not None})
        target = self._parts.path.rstrip("/") + path + (f"?{given}" if given else "")
        data, fields = self._content(body)
        try:
            connection.request(method, target, body=data, headers={**fields, **(headers or {})})
            response = connection.getresponse()
            if response.status >= http.client.BAD_REQUEST:
                raise _problem(response)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise _unreachable(self.url, error) from error
        except ServerFailed:
            connection.close()
            raise
        return connection, response

    def _content(self, body: dict[str, Any] | bytes | None) -> tuple[bytes | None, dict[str, str]]:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        if body is None or isinstance(body, bytes):
            return body, headers | ({"Content-Type": "application/octet-stream"} if body is not None else {})
        return json.dumps(body).encode(), headers | {"Content-Type": "application/json"}


def _path(session_id: str, *parts: str) -> str:
    # A file's path keeps its slashes; everything else is one component.
    return "/sessions/" + "/".join([quote(session_id, safe=""), *(quote(part) for part in parts)])


def _problem(response: http.client.HTTPResponse) -> ServerFailed:
    text = response.read()
    try:
        problem = json.loads(text)
        return ServerFailed(problem["code"], problem["detail"])
    except (ValueError, KeyError, TypeError):
        return ServerFailed(
            "no-problem", f"the server answered {response.status} {response.reason}; {NOT_OURS}"
        )


def _unreachable(url: str, error: Exception) -> ServerFailed:
    reason = getattr(error, "strerror", None) or error
    return ServerFailed(
        "unreachable", f"the server at {url} does not answer: {reason}; start it with mas serve"
    )
