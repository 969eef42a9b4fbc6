"""Measures sessions: making, using, listing and pruning them, with `rm -rf` of the same tree beside it."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench import Figure, Verdict, console, medians, show, timed, write
from sandbox import (
    create_sandbox,
    create_session_sandbox,
    delete_session_workspace,
    get_session_sandbox,
    list_sessions,
    prune_sessions,
    read_session_file,
    write_session_file,
)
from sandbox.events import SandboxLogger
from sandbox.sessions import make_session, metadata
from sandbox.sessions.layout import new_session_id

COUNTS = (100, 1_000, 10_000)
FILES_IN_ONE = (1, 100, 10_000)
SAMPLES = 200


def main() -> None:
    options = read_options()
    figures: list[Figure] = []
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for run in (one_session, files_of_a_session, many_sessions, large_sessions):
            console.print(f"measuring {run.__name__.replace('_', ' ')} ...")
            more_figures, more_verdicts = run(Path(folder) / run.__name__, options.rounds)
            figures += more_figures
            verdicts += more_verdicts
    show(figures, verdicts)
    write(figures, verdicts)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds of prune and rm -rf")
    parser.add_argument("--folder", help="where to measure; default: the folder for temporary files")
    return parser.parse_args()


def one_session(root: Path, _rounds: int) -> tuple[list[Figure], list[Verdict]]:
    create = [timed(lambda: make_session(new_session_id(), root)) for _ in range(SAMPLES)]
    session_id, sandbox = create_session_sandbox(workspace_root=root)
    with sandbox, create_sandbox(workspace=root.parent / "plain") as plain:
        sandbox.execute("pass")
        plain.execute("pass")
        pairs = [
            (timed(lambda: plain.execute("pass")), timed(lambda: sandbox.execute("pass")))
            for _ in range(SAMPLES)
        ]
    again = [timed(lambda: get_and_execute(session_id, root)) for _ in range(SAMPLES // 4)]
    refresh = refresh_times(session_id, root)
    figures = medians("make a session", "ms", {"sandbox": create})
    figures += medians(
        "execute 'pass'",
        "ms",
        {
            "without a session": [pair[0] for pair in pairs],
            "in a session": [pair[1] for pair in pairs],
            "get, execute, close": again,
        },
    )
    figures += medians("refresh the metadata", "us", {"sandbox": refresh})
    added = statistics.median(refresh) * 1e3
    return figures, [Verdict("ms that the metadata refresh adds", added, "< 1", added < 1)]


def get_and_execute(session_id: str, root: Path) -> None:
    with get_session_sandbox(session_id, workspace_root=root) as sandbox:
        sandbox.execute("pass")


def refresh_times(session_id: str, root: Path) -> list[float]:
    logger = SandboxLogger()
    fd = os.open(root / session_id, os.O_RDONLY)
    try:
        return [timed(lambda: metadata.refresh(fd, session_id, logger)) for _ in range(SAMPLES)]
    finally:
        os.close(fd)


def files_of_a_session(root: Path, _rounds: int) -> tuple[list[Figure], list[Verdict]]:
    session_id = make_session(new_session_id(), root).name
    figures, plain = [], root / "plain"
    for size, shown in ((1024, "1 KiB"), (1024 * 1024, "1 MiB")):
        data = os.urandom(size)
        samples = {
            "write_session_file": [
                timed(lambda data=data: write_session_file(session_id, "f", data, root))
                for _ in range(SAMPLES)
            ],
            "read_session_file": [
                timed(lambda: read_session_file(session_id, "f", root)) for _ in range(SAMPLES)
            ],
            "Path.write_bytes": [timed(lambda data=data: plain.write_bytes(data)) for _ in range(SAMPLES)],
            "Path.read_bytes": [timed(plain.read_bytes) for _ in range(SAMPLES)],
        }
        figures += medians(f"a file of {shown}", "us", samples)
    return figures, []


def many_sessions(root: Path, rounds: int) -> tuple[list[Figure], list[Verdict]]:
    figures, verdicts = [], []
    for count in COUNTS:
        kept = build(root / f"kept-{count}", count, hours=1)
        examine = [timed(lambda kept=kept: prune_sessions(24, kept)) for _ in range(rounds)]
        samples = {
            "prune, all stay": examine,
            "list": [timed(lambda kept=kept: list_sessions(kept)) for _ in range(rounds)],
            "list with sizes": [
                timed(lambda kept=kept: list_sessions(kept, sizes=True)) for _ in range(rounds)
            ],
        }
        more, ratio = prune_beside_rm(root, count, rounds)
        figures += medians(f"{count} sessions", "ms", samples | more)
        if count == COUNTS[-1]:
            per_second = count / statistics.median(examine)
            verdicts = [
                Verdict(
                    f"sessions examined a second, {count} that stay",
                    per_second,
                    ">= 5000",
                    per_second >= 5000,
                ),
                Verdict(f"prune of {count}, times rm -rf", ratio, "<= 2", ratio <= 2),
            ]
    return figures, verdicts


def prune_beside_rm(root: Path, count: int, rounds: int) -> tuple[dict[str, list[float]], float]:
    """Both on trees that are on disk already, in turns; the ratio is the median of the rounds' ratios."""
    samples: dict[str, list[float]] = {"prune, dry run": [], "prune, all go": [], "rm -rf": []}
    for number in range(rounds):
        ours, theirs = (
            build(root / f"{who}-{count}-{number}", count, hours=48) for who in ("ours", "theirs")
        )
        os.sync()
        samples["prune, dry run"].append(timed(lambda ours=ours: prune_sessions(24, ours, dry_run=True)))
        turns = [
            ("prune, all go", lambda ours=ours: prune_sessions(24, ours)),
            ("rm -rf", lambda theirs=theirs: remove(theirs)),
        ]
        for who, run in turns if number % 2 else reversed(turns):  # neither is always the first
            samples[who].append(timed(run))
    ratios = [ours / theirs for ours, theirs in zip(samples["prune, all go"], samples["rm -rf"], strict=True)]
    return samples, statistics.median(ratios)


def large_sessions(root: Path, rounds: int) -> tuple[list[Figure], list[Verdict]]:
    figures = []
    for count in FILES_IN_ONE:
        samples: dict[str, list[float]] = {"delete_session_workspace": [], "rm -rf": []}
        for _ in range(rounds):
            ours, theirs = (fill(make_session(new_session_id(), root), count) for _ in range(2))
            os.sync()
            samples["rm -rf"].append(timed(lambda theirs=theirs: remove(theirs)))
            samples["delete_session_workspace"].append(
                timed(lambda ours=ours: delete_session_workspace(ours.name, root))
            )
        figures += medians(f"a session of {count} files", "ms", samples)
    return figures, []


def build(root: Path, count: int, *, hours: float) -> Path:
    """So many small sessions that were used so long ago; written directly, because it is not measured."""
    root.mkdir(parents=True)
    moment = metadata.format_timestamp(datetime.now(UTC) - timedelta(hours=hours))
    for _ in range(count):
        session_id = str(uuid.uuid4())
        folder = root / session_id
        folder.mkdir()
        fields = {"session_id": session_id, "created_at": moment, "updated_at": moment, "version": 1}
        (folder / ".metadata.json").write_text(json.dumps(fields, indent=2))
        (folder / "user_code.py").write_text("print('hello')\n" * 10)
        (folder / "data.csv").write_text("1,2,3\n" * 200)
    return root


def fill(folder: Path, count: int) -> Path:
    for number in range(count):
        if number % 100 == 0:
            (folder / str(number // 100)).mkdir()
        (folder / str(number // 100) / f"{number}.txt").write_text("x" * 100)
    return folder


def remove(folder: Path) -> None:
    subprocess.run(["rm", "-rf", folder], check=True)


if __name__ == "__main__":
    main()
