"""Measures the API of multi-agent sessions: starting a team, listing many sessions, calls of tmux.

    python benchmarks/teams.py [--teams 10] [--rounds 7] [--entries 100] [--json FILE]

A real server, a real tmux on a socket of its own, built-in agents. Everything is removed at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import httpx2

from mas.config import default_team
from mas.runs import Runs
from mas.settings import Settings

TARGETS_MS = {"POST /runs, 13 agents": 1_500, "GET /sessions, all entries": 150}

COUNTING_TMUX = """\
#!/bin/sh
echo called >>{calls}
exec {tmux} "$@"
"""


def main() -> int:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="mas-bench-") as folder, place(Path(folder)) as (runs, env):
        with server(Path(folder), env) as client:
            figures = measure(client, Path(folder) / "calls", options)
        report(figures, options)
        stop_all(runs)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--teams", type=int, default=10, help="sessions of 13 agents that live meanwhile")
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each figure")
    parser.add_argument("--entries", type=int, default=100, help="sessions in the list")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    return parser.parse_args()


@contextmanager
def place(root: Path):
    """A root with a tmux that writes down each of its calls."""
    settings = Settings(root=root, tmux_socket=f"mas-bench-{uuid.uuid4().hex[:8]}", session_mode="isolated")
    tmux = subprocess.run(["which", "tmux"], capture_output=True, text=True, check=True).stdout.strip()
    (root / "bin").mkdir()
    (root / "bin" / "tmux").write_text(COUNTING_TMUX.format(calls=root / "calls", tmux=tmux))
    (root / "bin" / "tmux").chmod(0o755)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAS_", "TMUX"))}
    env |= {
        "MAS_ROOT": str(root),
        "MAS_SESSION_MODE": "isolated",
        "MAS_TMUX_SOCKET": settings.tmux_socket,
        "PATH": f"{root / 'bin'}:{env['PATH']}",
    }
    try:
        yield Runs(settings), env
    finally:
        subprocess.run([tmux, "-L", settings.tmux_socket, "kill-server"], capture_output=True, check=False)
        Path(f"/tmp/tmux-{os.getuid()}", settings.tmux_socket).unlink(missing_ok=True)


@contextmanager
def server(root: Path, env: dict[str, str]):
    command = [sys.executable, "-m", "mas", "serve", "--port", "0"]
    with (root / "server.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=root, env=env, stdout=log, stderr=log)
    try:
        note = root / "sessions" / ".api.json"
        while not note.exists():
            time.sleep(0.05)
            if process.poll() is not None:
                raise SystemExit((root / "server.log").read_text())
        with httpx2.Client(base_url=json.loads(note.read_text())["url"], timeout=120) as client:
            yield client
    finally:
        process.terminate()
        process.wait(30)


def measure(client: httpx2.Client, calls: Path, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    team = default_team().as_received()
    for _ in range(options.teams):
        client.post("/runs", json=team).raise_for_status()
    settle(client)
    figures = {"POST /runs, 13 agents": started(client, calls, team, options.rounds)}
    small = {
        "agents": {
            "units": [team["agents"]["units"][0] | {"workers": team["agents"]["units"][0]["workers"][:1]}]
        }
    }
    while client.get("/sessions").json()["total"] < options.entries:
        made = client.post("/runs", json=small).raise_for_status().json()
        client.post(f"/sessions/{made['sessionId']}/stop").raise_for_status()
    figures["GET /sessions, all entries"] = timed(client, calls, options.rounds, "/sessions")
    entry = client.get("/sessions?limit=1").json()["sessions"][0]
    figures["GET /sessions/{id}, 13 agents"] = timed(
        client, calls, options.rounds, f"/sessions/{entry['sessionId']}"
    )
    return figures


def settle(client: httpx2.Client) -> None:
    """Wait until every agent that was started is at its prompt, so that only the next start is measured."""
    for entry in client.get("/sessions?status=active").json()["sessions"]:
        while {a["state"] for a in client.get(f"/sessions/{entry['sessionId']}").json()["agents"]} != {
            "running"
        }:
            time.sleep(0.1)
    time.sleep(1)


def started(client: httpx2.Client, calls: Path, team: dict, rounds: int) -> dict[str, float]:
    times, counts = [], []
    for _ in range(rounds):
        before, begun = count(calls), time.perf_counter()
        made = client.post("/runs", json=team).raise_for_status().json()
        times.append(time.perf_counter() - begun)
        counts.append(count(calls) - before)
        settle(client)
        client.post(f"/sessions/{made['sessionId']}/stop").raise_for_status()
    return summary(times, counts)


def timed(client: httpx2.Client, calls: Path, rounds: int, path: str) -> dict[str, float]:
    times, counts = [], []
    for _ in range(rounds):
        before, begun = count(calls), time.perf_counter()
        client.get(path).raise_for_status()
        times.append(time.perf_counter() - begun)
        counts.append(count(calls) - before)
    return summary(times, counts)


def count(calls: Path) -> int:
    return len(calls.read_text().splitlines())


def summary(times: list[float], counts: list[int]) -> dict[str, float]:
    return {
        "median_ms": round(statistics.median(times) * 1000, 1),
        "worst_ms": round(max(times) * 1000, 1),
        "tmux_calls": max(counts),
    }


def report(figures: dict[str, dict[str, float]], options: argparse.Namespace) -> None:
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{machine}; {options.teams} teams live, {options.entries} entries, {options.rounds} rounds")
    print("| call | median ms | worst ms | at most | tmux calls |\n|---|---|---|---|---|")
    for name, figure in figures.items():
        limit = TARGETS_MS.get(name, "")
        cells = [name, figure["median_ms"], figure["worst_ms"], limit, figure["tmux_calls"]]
        print("| " + " | ".join(str(cell) for cell in cells) + " |")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def stop_all(runs: Runs) -> None:
    for entry in runs.list(status="active").sessions:
        runs.stop(entry.session_id)


if __name__ == "__main__":
    sys.exit(main())
