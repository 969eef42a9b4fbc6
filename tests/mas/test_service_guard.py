import http.client
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

MIB = 1024 * 1024
TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def served(make_world):
    world = make_world()
    with world.server() as url:
        yield world, url


@pytest.fixture(scope="module")
def url(served):
    return served[1]


@pytest.fixture(scope="module")
def guarded(make_world):
    with make_world().server(MAS_API_TOKEN=TOKEN) as url:
        yield url


def get(url, path, **headers):
    return httpx2.get(url + path, headers=headers)


def problem_of(response):
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == response.status_code
    return response.status_code, response.json()["code"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST:99", "127.0.0.1:8765"])
def test_names_of_this_machine_are_answered(url, host):
    assert get(url, "/sessions", host=host).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "0.0.0.0",
        "[::1",
        "x:y:z",
        "2130706433",
    ],
)
def test_a_name_pointed_at_loopback_is_refused(url, host):
    assert problem_of(get(url, "/sessions", host=host)) == (403, "host-refused")


def test_a_request_without_host_is_refused(url):
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        connection.sendall(b"GET /sessions HTTP/1.0\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "http://127.0.0.1:1",
        "",
        "file://",
        "app://{host}",
        "chrome-extension://{host}",
        "{host}",
        "://{host}",
        "http://{host}/",
        "http://user@{host}",
        "http://{host}.evil.example",
    ],
)
def test_requests_of_other_pages_are_refused(url, origin):
    origin = origin.format(host=urlsplit(url).netloc)
    assert problem_of(get(url, "/sessions", origin=origin)) == (403, "origin-refused")


@pytest.mark.parametrize("scheme", ["http", "https", "HTTP"])
def test_the_servers_own_origin_is_answered_also_behind_a_proxy_that_adds_tls(url, scheme):
    assert get(url, "/sessions", origin=f"{scheme}://{urlsplit(url).netloc}").status_code == 200


def test_no_answer_allows_other_origins(url):
    response = httpx2.options(
        url + "/sessions", headers={"origin": url, "access-control-request-method": "POST"}
    )
    assert response.status_code == 405
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_the_token_is_asked_for_everywhere_but_on_health(guarded):
    for path in ("/sessions", "/openapi.json", "/nothing", "/sessions/x/files/y"):
        response = get(guarded, path)
        assert problem_of(response) == (401, "unauthorized")
        assert response.headers["www-authenticate"] == 'Bearer realm="mas"'
    assert get(guarded, "/health").status_code == 200


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        TOKEN,
        "Bearer \xff",
    ],
)
def test_a_wrong_token_is_refused(guarded, value):
    response = httpx2.get(guarded + "/sessions", headers={b"authorization": value.encode("latin-1")})
    assert problem_of(response) == (401, "unauthorized")


def test_the_right_token_opens(guarded):
    assert get(guarded, "/sessions", authorization=f"Bearer {TOKEN}").status_code == 200
    assert get(guarded, "/sessions", authorization=f"bearer {TOKEN}").status_code == 200


@pytest.mark.parametrize("words", [["serve", "--port", "0"], ["list"]], ids=["server", "client"])
def test_a_token_outside_ascii_is_refused_by_the_server_and_by_its_clients(world, words):
    result = world.mas(*words, check=False, MAS_API_TOKEN="t\u00f6k\u20acn", MAS_API_URL="http://127.0.0.1:1")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        "mas: MAS_API_TOKEN: use letters, digits and punctuation of ASCII alone, without spaces\n"
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_a_server_off_loopback_does_not_start_without_a_token(world, host):
    result = world.mas("serve", "--host", host, "--port", "0", check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert (
        result.stderr == f"mas: MAS_API_TOKEN: a server on {host} needs a token; set one, or use 127.0.0.1\n"
    )


def test_a_server_off_loopback_starts_with_a_token(world):
    with world.server("--host", "0.0.0.0", MAS_API_TOKEN=TOKEN) as url:
        assert get(url, "/sessions").status_code == 401
        assert get(url, "/sessions", authorization=f"Bearer {TOKEN}", host="team.example").status_code == 200


@pytest.mark.parametrize(
    ("path", "method", "limit"),
    [
        ("/runs", "POST", 10 * MIB),
        ("/sessions/x/files/a", "PUT", 100 * MIB),
        ("/sessions/x/files/a", "POST", 10 * MIB),
    ],
)
def test_a_body_that_declares_too_much_is_refused_unread(url, path, method, limit):
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    connection.putrequest(method, path)
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(limit + 1))
    connection.endheaders()
    response = connection.getresponse()
    assert (response.status, response.headers["content-type"]) == (413, "application/problem+json")
    connection.close()


def chunks(size):
    while size > 0:
        yield b" " * min(size, 65_536)
        size -= 65_536


def test_a_chunked_body_is_counted_while_it_arrives(url):
    response = httpx2.post(
        url + "/runs", content=chunks(10 * MIB + 1), headers={"content-type": "application/json"}
    )
    assert problem_of(response)[0] == 413
    assert get(url, "/health").status_code == 200


def test_a_chunked_upload_has_a_larger_limit(served):
    world, url = served
    world.mas("start", MAS_SESSION_MODE="isolated")
    (entry,) = httpx2.get(url + "/sessions").json()["sessions"]
    target = f"{url}/sessions/{entry['sessionId']}/files/large.bin"
    response = httpx2.put(target, content=chunks(100 * MIB), timeout=60)
    assert (response.status_code, response.json()) == (200, {"path": "large.bin", "size": 100 * MIB})
    response = httpx2.put(target, content=chunks(100 * MIB + 1), timeout=60)
    assert problem_of(response)[0] == 413
    assert (Path(entry["workingDir"]) / "large.bin").stat().st_size == 100 * MIB
    os.truncate(Path(entry["workingDir"]) / "large.bin", 0)


@pytest.mark.parametrize(
    "media_type", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "jsonx"]
)
@pytest.mark.parametrize("path", ["/runs", "/sessions/x/messages", "/sessions/x/execute"])
def test_a_body_that_is_not_declared_as_json_is_refused(url, path, media_type):
    headers = {} if media_type is None else {"content-type": media_type}
    assert problem_of(httpx2.post(url + path, content=b'{"code": "1"}', headers=headers))[0] == 415


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/nothing", 404),
        ("GET", "/docs", 404),
        ("GET", "/sessions/", 404),
        ("GET", "/runs", 405),
        ("DELETE", "/sessions", 405),
        ("GET", "/sessions?limit=0", 422),
        ("GET", "/sessions?limit=x", 422),
        ("GET", "/sessions?status=gone", 422),
        ("GET", "/sessions?offset=-1", 422),
        ("GET", "/sessions/550e8400", 404),
        ("GET", "/sessions/..%2f..%2fetc", 404),
        ("GET", "/sessions/%00", 404),
        ("POST", "/sessions/550e8400-e29b-41d4-a716-446655440000/stop", 404),
    ],
)
def test_every_refusal_is_a_problem(url, method, path, status):
    assert problem_of(httpx2.request(method, url + path))[0] == status


def test_every_answer_carries_the_headers_that_keep_browsers_out(url):
    for path in ("/health", "/sessions", "/nothing"):
        headers = get(url, path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers
