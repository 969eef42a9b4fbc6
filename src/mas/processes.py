"""The processes of a run: the only module that ends processes from outside their supervisor."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from mas.supervisor import KILL_AFTER_SECONDS, descendants, process_fields, send, start_time

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MARK_NAME", "Process", "ask_to_stop", "callers_of_tmux", "end", "identify", "is_alive", "marked"]

Process = tuple[int, int]
"""Pid and start time: together they name one process for good."""

MARK_NAME = "MAS_RUN_ID"
MARK = f"{MARK_NAME}=".encode()
ROOT_MARK = b"MAS_ROOT="
STOP_SECONDS = KILL_AFTER_SECONDS + 4.0  # a supervisor kills by itself first, and needs a moment to reap
POLL_SECONDS = 0.02


def is_alive(process: Process) -> bool:
    """Whether exactly this process still lives."""
    pid, start = process
    return start != 0 and start_time(pid) == start


def identify(pid: int) -> Process:
    """The process that has this pid now."""
    return pid, start_time(pid)


def marked(root: Path) -> dict[str, list[Process]]:
    """The processes of this user that carry the mark of a run of `root` in their environment, by session id.

    A copied project has the same ids under another root; its processes are none of ours.
    """
    found: dict[str, list[Process]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and (session_id := _mark_of(path, root)):
            found.setdefault(session_id, []).append(identify(int(path.name)))
    return found


def callers_of_tmux(word: str) -> list[int]:
    """Calls of tmux that are under way with `word` in their arguments; the server itself is none."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and _calls(path, word)]


def ask_to_stop(supervisors: Iterable[Process]) -> None:
    """Ask supervisors to end their agents, and wait for it; one that hangs is ended with its tree."""
    asked = [process for process in supervisors if send(process, signal.SIGTERM)]
    deadline = time.monotonic() + STOP_SECONDS
    for process in asked:
        if not _wait_for_end(process, deadline):
            _end_tree(process)


def end(processes: Iterable[Process]) -> None:
    """End processes and all below them, TERM before KILL; this process and those above it are left alone."""
    spared = _own_line()
    targets = [process for process in processes if process[0] not in spared]
    trees = {process for target in targets for process in [target, *descendants(target[0])]}
    trees = {process for process in trees if process[0] not in spared}
    for process in trees:
        send(process, signal.SIGTERM)
        send(process, signal.SIGCONT)
    deadline = time.monotonic() + KILL_AFTER_SECONDS
    for process in trees:
        if not _wait_for_end(process, deadline):
            send(process, signal.SIGKILL)
            _wait_for_end(process, time.monotonic() + KILL_AFTER_SECONDS)


def _end_tree(root: Process) -> None:
    """KILL what is below a process until nothing is, then the process: its orphans could not be told."""
    deadline = time.monotonic() + KILL_AFTER_SECONDS
    send(root, signal.SIGSTOP)
    while (below := [p for p in descendants(root[0]) if is_alive(p)]) and time.monotonic() < deadline:
        for process in below:
            send(process, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    send(root, signal.SIGKILL)
    _wait_for_end(root, time.monotonic() + KILL_AFTER_SECONDS)


def _wait_for_end(process: Process, deadline: float) -> bool:
    """Wait until a process has ended, or the deadline; says whether it has."""
    try:
        descriptor = os.pidfd_open(process[0])
    except OSError:
        return True
    try:
        if not is_alive(process):
            return True
        timeout = max(0.0, deadline - time.monotonic())
        return bool(select.select([descriptor], [], [], timeout)[0])
    finally:
        os.close(descriptor)


def _mark_of(path: Path, root: Path) -> str | None:
    try:
        if path.stat().st_uid != os.getuid():
            return None
        variables = (path / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    if ROOT_MARK + os.fsencode(root) not in variables:
        return None
    values = [value for value in variables if value.startswith(MARK)]
    return values[0].removeprefix(MARK).decode(errors="replace") if values else None


def _calls(path: Path, word: str) -> bool:
    try:
        name = (path / "comm").read_text().strip()
        return name.startswith("tmux") and name != "tmux: server" and word in (path / "cmdline").read_text()
    except (OSError, ValueError):
        return False


def _own_line() -> set[int]:
    """This process and every process above it."""
    line, pid = set(), os.getpid()
    while pid > 0 and pid not in line:
        line.add(pid)
        pid = _parent_of(pid)
    return line


def _parent_of(pid: int) -> int:
    fields = process_fields(pid)
    return int(fields[1]) if fields else 0
