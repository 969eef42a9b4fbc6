"""Answers requests for pieces of work, one line of JSON each; runs in a contestant's own environment."""

import json
import os
import resource
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

SETTLE_SECONDS = 10.0
FIRST = "--first"


class Cannot(Exception):
    """The contestant has no way to do a piece of work; the text says why."""


@dataclass(frozen=True)
class Wish:
    """What fresh code is to find."""

    preload: tuple = ()  # packages that it imports
    files: int | None = None  # in its folder; None where it needs no folder
    metered: bool = True


class Contestant:
    """What is measured: each public method is one kind of work, and answers its cost as `value`.

    A subclass says how its public API does the work; what it does not say, it cannot do.
    """

    reasons: ClassVar[dict[str, str]] = {}  # by kind of work: why it cannot

    def __init__(self):
        self.root = Path(tempfile.mkdtemp(prefix="bench-"))
        self._runners = {}
        self._sessions = {}

    # ---- what a subclass says

    def runner(self, _wish):
        """A function that runs code in a fresh interpreter and gives its output, and its folder."""
        raise Cannot(self._why("runner"))

    def session(self, _preload):
        """A function that runs code in one interpreter that lives on, and gives its output."""
        raise Cannot(self._why("session"))

    def keep(self, **_work):
        """Run code and have its variables saved; `token` says where."""
        raise Cannot(self._why("keep"))

    def revive(self, **_work):
        """Run code with the variables that another process saved."""
        raise Cannot(self._why("keep"))

    def fork(self, **_work):
        """Copy a live interpreter, and run code in the copy."""
        raise Cannot(self._why("fork"))

    def create_session(self):
        """Make one session, ready for its first code."""
        raise Cannot(self._why("create"))

    def make_sessions(self, _count):
        """Folders of so many new sessions under one root, and a function that prunes them all."""
        raise Cannot(self._why("prune"))

    # ---- the work

    def fresh(self, code, preload=(), **wishes):
        """Run code in a fresh interpreter, in a folder of so many files where it needs one."""
        run = self._runner(Wish(tuple(preload), **wishes))
        return timed(lambda: run(code))

    def turn(self, code, preload=()):
        """Run code in an interpreter that has run some before."""
        key = tuple(preload)
        if key not in self._sessions:
            self._sessions[key] = self.session(key)
        return timed(lambda: self._sessions[key](code))

    def create(self, count):
        """Make sessions, one after the other."""
        started = time.perf_counter()
        for _ in range(count):
            self.create_session()
        return {"value": count / (time.perf_counter() - started)}

    def prune(self, sessions, files):
        """Remove sessions that nobody uses, with so many files each."""
        folders, prune_all = self.make_sessions(sessions)
        for folder in folders:
            fill(folder, files)
        return timed(prune_all)

    def rate(self, code, callers, seconds):
        """Executions per second with so many callers at once."""
        run = self._runner(Wish())
        done, end = [], time.perf_counter() + seconds
        threads = [threading.Thread(target=call_until, args=(run, code, end, done)) for _ in range(callers)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"value": len(done) / (time.perf_counter() - started)}

    def hold(self, code, count, preload=()):
        """Private memory of one interpreter that waits for its next turn."""
        held = [self.session(tuple(preload))]
        held[0](code)
        before = settled_memory()
        for _ in range(count):
            held.append(self.session(tuple(preload)))
            held[-1](code)
        return {"value": (settled_memory() - before) / count}

    def _runner(self, wish):
        if wish not in self._runners:
            self._runners[wish], folder = self.runner(wish)
            fill(folder, wish.files or 0)
        return self._runners[wish]

    def _why(self, what):
        return self.reasons.get(what) or "it has no such thing"


def timed(work):
    started = time.perf_counter()
    output = work()
    return {"value": time.perf_counter() - started, "output": output}


def output_of(sandbox):
    """A function that executes code and gives its output; it raises where the code fails."""

    def run(code):
        result = sandbox.execute(code)
        if not result.success:
            raise RuntimeError(result.stderr[-300:])
        return result.stdout

    return run


def call_until(run, code, end, done):
    while time.perf_counter() < end:
        run(code)
        done.append(None)


def fill(folder, files):
    for number in range(files):
        (Path(folder) / f"{number}.txt").write_bytes(b"x" * 100)


def settled_memory():
    """Private memory of this process and its children, once it no longer changes."""
    end, before = time.monotonic() + SETTLE_SECONDS, -1
    while time.monotonic() < end:
        now = private_bytes()
        if abs(now - before) < 1 << 16:
            return now
        before = now
        time.sleep(0.5)
    return before


def private_bytes():
    return sum(private_bytes_of(process) for process in family())


def private_bytes_of(process):
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty"))


def peak_bytes():
    """The most memory that this process and its children held; those that ended count by the largest."""
    lines = [line for process in family() for line in status_of(process) if line.startswith("VmHWM")]
    ended = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return max(sum(int(line.split()[1]) for line in lines), ended) * 1024


def status_of(process):
    try:
        return Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return []


def family():
    """This process and everything that it started."""
    found, waiting = [], [os.getpid()]
    while waiting:
        process = waiting.pop()
        found.append(process)
        for task in Path(f"/proc/{process}/task").glob("*/children"):
            waiting += [int(child) for child in task.read_text().split()]
    return found


def serve(make):
    """Answer until the input ends; whatever else is printed goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    contestant = make()
    first = [json.dumps({"do": "fresh", "code": sys.argv[-1]})] if FIRST in sys.argv else None
    try:
        for line in first or sys.stdin:
            said = answer(contestant, json.loads(line))
            answers.write(json.dumps({**said, "peak_bytes": peak_bytes()} if first else said) + "\n")
            answers.flush()
    finally:
        shutil.rmtree(contestant.root, ignore_errors=True)


def answer(contestant, request):
    try:
        return getattr(contestant, request.pop("do"))(**request)
    except Cannot as why:
        return {"cannot": str(why)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}
