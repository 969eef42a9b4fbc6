"""Counts what fixed programs cost, and compares it with what is recorded: no clock is asked."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandbox import ExecutionPolicy, create_session_sandbox
from sandbox.wasm.gate import Gate
from sandbox.wasm.imports import GATED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).resolve().parent
RECORDED = HERE / "counts.json"
PROGRAMS = HERE / "programs"
GROWTH_ALLOWED = 0.10
# Below this a single call more would be a large growth, and is noise: a save that fell into the window.
LEAST_GROWTH = {"fuel": 0.0, "calls": 0.0, "syscalls": 0.75}
REPEATS = 5
FEW, MANY = 10, 60  # executions under strace; the difference leaves out the start of the process

# Fuel follows the hash seed of the image, which each machine draws for itself: dictionaries collide
# differently. These programs stay within two percent of each other over images.
FUEL_PROGRAMS = {"print": (), "json_trips": (), "frame": ("numpy", "pandas")}
GATE_PROGRAMS = {"print": (), "files": ()}
SYSCALL_MODES = ("fresh", "turn")
# How often these happen depends on the scheduler and the allocator, not on what is asked for.
UNSTEADY = {
    "brk", "clock_nanosleep", "clone3", "epoll_wait", "exit", "futex", "getrandom", "madvise", "mmap",
    "mprotect", "mremap", "munmap", "rseq", "rt_sigprocmask", "sched_yield", "set_robust_list", "gettid",
}  # fmt: skip

Counts = dict[str, dict[str, dict[str, float]]]  # by kind, program or mode, and name


def main() -> None:
    options = read_options()
    if options.executions:
        execute_many(options.mode, options.executions)
        return
    recorded = {} if options.record else json.loads(RECORDED.read_text())
    counted = count(with_syscalls=recorded.get("where", where()) == where())
    if options.record:
        RECORDED.write_text(json.dumps({"where": where(), **counted}, indent=1, sort_keys=True) + "\n")
        print(f"recorded in {RECORDED.relative_to(HERE.parent)}")
        return
    found = compare(recorded, counted)
    if found[0] and "syscalls" in counted:  # a busy machine adds some: what is there twice is there
        counted["syscalls"] = lesser(counted["syscalls"], count_all_syscalls())
        found = compare(recorded, counted)
    sys.exit(report(found))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write what is counted instead of comparing")
    parser.add_argument("--executions", type=int, help="only execute, for strace to watch")
    parser.add_argument("--mode", choices=SYSCALL_MODES, default="fresh")
    return parser.parse_args()


# What is counted.


def where() -> dict[str, str]:
    """What the number of system calls depends on besides this project."""
    return {
        "kernel": ".".join(platform.release().split(".")[:2]),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "wasmtime": version("wasmtime"),
    }


def count(*, with_syscalls: bool) -> Counts:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        counted: Counts = {
            "fuel": {name: count_fuel(root, name, preload) for name, preload in FUEL_PROGRAMS.items()},
            "calls": {name: count_calls(root, name) for name in GATE_PROGRAMS},
        }
    if not with_syscalls:
        print("counts: another kernel, Python or wasmtime than recorded, so system calls are not compared")
    elif not can_trace():
        print("counts: strace is not here or not allowed, so system calls are not counted")
    else:
        counted["syscalls"] = count_all_syscalls()
    return counted


def can_trace() -> bool:
    strace = shutil.which("strace")
    return (
        strace is not None and not subprocess.run([strace, "-o", os.devnull, "true"], check=False).returncode
    )


def count_fuel(root: Path, name: str, preload: tuple[str, ...]) -> dict[str, float]:
    """The least of a few runs, in instructions: randomness inside the guest only adds to it."""
    return {"instructions": min(run(root, name, preload).fuel_consumed or 0 for _ in range(REPEATS))}


def count_calls(root: Path, name: str) -> dict[str, float]:
    """Calls of a guest that reach the gate."""
    run(root, name, ())
    counter: Counter[str] = Counter()
    originals = {function: getattr(Gate, function) for function in GATED}
    for function, original in originals.items():
        setattr(Gate, function, counting(counter, function, original))
    run(root, name, ())
    for function, original in originals.items():
        setattr(Gate, function, original)
    return {function: float(calls) for function, calls in sorted(counter.items())}


def counting(counter: Counter[str], name: str, original: Callable[..., int]) -> Callable[..., int]:
    def counted(self: Gate, *arguments: int) -> int:
        counter[name] += 1
        return original(self, *arguments)

    return counted


def run(root: Path, name: str, preload: tuple[str, ...]) -> Any:
    _, sandbox = create_session_sandbox(workspace_root=root, policy=ExecutionPolicy(preload=preload))
    with sandbox:
        result = sandbox.execute((PROGRAMS / f"{name}.py").read_text())
    if not result.success:
        raise SystemExit(f"{name} failed, so nothing is counted: {result.stderr}")
    return result


def count_all_syscalls() -> dict[str, dict[str, float]]:
    return {mode: count_syscalls(mode) for mode in SYSCALL_MODES}


def lesser(
    one: dict[str, dict[str, float]], other: dict[str, dict[str, float]]
) -> dict[str, dict[str, float]]:
    return {
        mode: {name: min(calls, other[mode].get(name, 0.0)) for name, calls in figures.items()}
        for mode, figures in one.items()
    }


def count_syscalls(mode: str) -> dict[str, float]:
    """System calls of the host for one execution, where they do not depend on the scheduler."""
    few, many = trace(mode, FEW), trace(mode, MANY)
    each = {name: (many[name] - few[name]) / (MANY - FEW) for name in many if name not in UNSTEADY}
    return {name: round(calls, 1) for name, calls in sorted(each.items()) if calls >= 0.5}


def trace(mode: str, executions: int) -> Counter[str]:
    with tempfile.NamedTemporaryFile("r") as summary:
        command = ["strace", "-f", "-c", "-U", "calls,name", "-o", summary.name]
        own = [sys.executable, __file__, "--executions", str(executions), "--mode", mode]
        subprocess.run([*command, *own], check=True, stderr=subprocess.DEVNULL)
        return Counter(dict(rows(summary.read())))


def rows(summary: str) -> Iterator[tuple[str, int]]:
    for line in summary.splitlines():
        parts = line.split()
        if len(parts) == 2 and parts[0].isdigit() and parts[1] != "total":
            yield parts[1], int(parts[0])


def execute_many(mode: str, executions: int) -> None:
    """What strace watches: nothing but executions of the smallest program."""
    with tempfile.TemporaryDirectory() as folder:
        _, sandbox = create_session_sandbox(workspace_root=folder, stateful=mode == "turn")
        code = (PROGRAMS / "print.py").read_text()
        for _ in range(executions):
            sandbox.execute(code)
        sandbox.close()


# What is said about it.


def compare(recorded: Counts, counted: Counts) -> tuple[list[str], list[str]]:
    """What grew past what is allowed, and what shrank as much; a kind that was not counted is left out."""
    grown, shrunk = [], []
    for kind, programs in counted.items():
        for program, figures in programs.items():
            before = recorded.get(kind, {}).get(program, {})
            for name in sorted({*figures, *before}):
                old, new = before.get(name, 0.0), figures.get(name, 0.0)
                least = LEAST_GROWTH[kind]
                line = f"{kind} of {program}, {name}: {old:g} recorded, {new:g} counted"
                if new > old * (1 + GROWTH_ALLOWED) and new - old > least:
                    grown.append(line)
                elif old > new * (1 + GROWTH_ALLOWED) and old - new > least:
                    shrunk.append(line)
    return grown, shrunk


def report(found: tuple[list[str], list[str]]) -> int:
    grown, shrunk = found
    for line in shrunk:
        print(f"counts: less than recorded, keep it with `make counts`: {line}")
    for line in grown:
        print(f"counts: {line}", file=sys.stderr)
    if grown:
        print("counts: executions cost more; record it with `make counts` if it is worth it", file=sys.stderr)
    return 1 if grown else 0


if __name__ == "__main__":
    main()
