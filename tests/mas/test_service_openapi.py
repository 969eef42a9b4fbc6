import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

EXAMPLES_PER_OPERATION = "8"


@pytest.fixture(scope="module")
def url(make_world):
    with make_world().server(MAS_SESSION_MODE="isolated") as url:
        yield url


@pytest.fixture(scope="module")
def described(url):
    return httpx2.get(url + "/openapi.json").raise_for_status().json()


def operations(described):
    return {
        (method.upper(), path): operation
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    }


def test_the_description_lists_every_operation(described):
    assert {where: operation["operationId"] for where, operation in operations(described).items()} == {
        ("POST", "/runs"): "create_run",
        ("GET", "/sessions"): "list_sessions",
        ("GET", "/sessions/{sessionId}"): "show_session",
        ("DELETE", "/sessions/{sessionId}"): "delete_session",
        ("POST", "/sessions/{sessionId}/stop"): "stop_session",
        ("POST", "/sessions/{sessionId}/restore"): "restore_session",
        ("POST", "/sessions/{sessionId}/messages"): "send_message",
        ("POST", "/sessions/{sessionId}/agents/{agentId}/restart"): "restart_agent",
        ("GET", "/sessions/{sessionId}/logs/{agentId}"): "read_log",
        ("GET", "/sessions/{sessionId}/output/{agentId}"): "follow_output",
        ("POST", "/sessions/{sessionId}/execute"): "execute_code",
        ("GET", "/sessions/{sessionId}/files"): "list_files",
        ("GET", "/sessions/{sessionId}/files/{path}"): "read_file",
        ("PUT", "/sessions/{sessionId}/files/{path}"): "write_file",
        ("DELETE", "/sessions/{sessionId}/files/{path}"): "delete_file",
        ("GET", "/health"): "check_health",
    }


def test_every_operation_is_described_and_its_errors_are_problems(described):
    for where, operation in operations(described).items():
        assert operation["description"], where
        assert operation["tags"], where
        for status, response in operation["responses"].items():
            assert response["description"] not in ("", "Successful Response"), (where, status)
            if int(status) >= 400:
                assert list(response["content"]) == ["application/problem+json"], (where, status)


def test_the_token_is_described_where_one_is_set(make_world):
    with make_world().server(MAS_API_TOKEN="secret") as url:
        described = httpx2.get(url + "/openapi.json", headers={"authorization": "Bearer secret"}).json()
    assert described["security"] == [{"token": []}]
    assert "401" in described["paths"]["/sessions"]["get"]["responses"]
    assert described["paths"]["/health"]["get"]["security"] == []


# positive_data_acceptance is left out: a schema cannot say that a worker's id belongs to its unit.
# The live stream is left out: it does not end. tests/mas/test_service_routes.py reads it.
def test_no_request_gets_an_answer_outside_the_description(url, tmp_path):
    command = Path(sys.executable).with_name("schemathesis")
    options = {
        "--checks": "all",
        "--exclude-checks": "positive_data_acceptance",
        "--exclude-operation-id": "follow_output",
        "--max-examples": EXAMPLES_PER_OPERATION,
        "--request-timeout": "30",
        "--seed": "1",
        "--warnings": "off",
    }
    words = [word for option in options.items() for word in option]
    result = subprocess.run(
        [command, "run", f"{url}/openapi.json", "--no-color", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert result.returncode == 0, result.stdout[-8_000:] + result.stderr
