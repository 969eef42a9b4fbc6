"""Deletion of the sessions that a retention policy no longer keeps."""

from __future__ import annotations

import os
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from sandbox import tree
from sandbox.events import SandboxLogger
from sandbox.sessions import locks, removal
from sandbox.sessions.creation import open_root
from sandbox.sessions.layout import root_path
from sandbox.sessions.listing import Found, examine, is_unchanged, measure_session, survey
from sandbox.sessions.retention import SECONDS_PER_HOUR, Holdings, RetentionPolicy, check_hours

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    # (session id, root descriptor, descriptor of the locked session)
    Before = Callable[[str, int, int], object]

DEFAULT_HOURS = 24.0
MAX_WAITING = 64
AGE_REASON = "max_age_hours"

_UNITS = ("B", "KB", "MB", "GB", "TB")
_UNIT_STEP = 1024.0


@dataclass(frozen=True)
class PruneResult:
    """What a prune removed, or in a dry run would remove, oldest session first."""

    deleted_sessions: list[str] = field(default_factory=list)
    skipped_sessions: list[str] = field(default_factory=list)
    reclaimed_bytes: int = 0
    errors: dict[str, str] = field(default_factory=dict)
    dry_run: bool = False
    reasons: dict[str, str] = field(default_factory=dict)
    """Why each deleted or skipped session was: the limit it offended, or what protected it."""

    def __str__(self) -> str:
        verb = "Dry run: would delete" if self.dry_run else "Deleted"
        return (
            f"{verb} {_count(self.deleted_sessions, 'session')} ({format_bytes(self.reclaimed_bytes)}), "
            f"skipped {len(self.skipped_sessions)}, {_count(self.errors, 'error')}"
        )


def prune_sessions(
    older_than_hours: float = DEFAULT_HOURS,
    workspace_root: str | os.PathLike[str] | None = None,
    dry_run: bool = False,  # noqa: FBT001, FBT002 - the published signature
    logger: SandboxLogger | None = None,
    *,
    policy: RetentionPolicy | None = None,
    max_deletions: int | None = None,
    workers: int = 1,
    progress: Callable[[int, int], object] | None = None,
) -> PruneResult:
    """Delete the sessions that were not used for so long, or that `policy` does not keep.

    Sessions without readable metadata, in use, or reached by a symlink are never deleted. What
    fails for one session is in `errors` and stops no other. `workers` threads remove the files,
    which pays for large sessions. `progress` hears (seen, sessions).
    """
    retention = _retention(older_than_hours, policy)
    if max_deletions is not None and max_deletions < 0:
        raise ValueError(f"max_deletions is {max_deletions!r}: it must not be negative")
    return run_prune(
        retention,
        root_path(workspace_root),
        logger or SandboxLogger(),
        dry_run=dry_run,
        max_deletions=max_deletions,
        workers=workers,
        progress=progress,
    )


def run_prune(
    retention: RetentionPolicy,
    root: Path,
    logger: SandboxLogger,
    *,
    dry_run: bool,
    before: Before | None = None,
    max_deletions: int | None = None,
    workers: int = 1,
    progress: Callable[[int, int], object] | None = None,
) -> PruneResult:
    """Prune with a step before each deletion; a session for which it raises OSError stays."""
    with open_root(root) as root_fd:
        prune = _Prune(root, root_fd, retention, logger, before, dry_run=dry_run)
        return prune.run(max_deletions, workers, progress)


def format_bytes(count: float) -> str:
    """A number of bytes for people: 1536 is '1.5 KB'."""
    for unit in _UNITS[:-1]:
        if count < _UNIT_STEP:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= _UNIT_STEP
    return f"{count:.1f} {_UNITS[-1]}"


def _retention(older_than_hours: float, policy: RetentionPolicy | None) -> RetentionPolicy:
    check_hours(older_than_hours)
    if policy is None:
        return RetentionPolicy(max_age_hours=older_than_hours)
    if older_than_hours != DEFAULT_HOURS:
        raise ValueError("give older_than_hours or policy, not both; a policy has max_age_hours")
    return policy


def _count(things: list[str] | dict[str, str], noun: str) -> str:
    return f"{len(things)} {noun}" if len(things) == 1 else f"{len(things)} {noun}s"


@dataclass(frozen=True, slots=True)
class _Candidate:
    session_id: str
    reason: str
    size: int


class _Removals:
    """Removes what was taken away, in other threads where asked to, and reports it in order."""

    def __init__(
        self, root_fd: int, workers: int, settle: Callable[[_Candidate, OSError | None], object]
    ) -> None:
        self._root_fd, self._settle = root_fd, settle
        self._pool = ThreadPoolExecutor(workers, "session-removal") if workers > 1 else None
        self._waiting: deque[tuple[_Candidate, Future[OSError | None]]] = deque()

    def add(self, candidate: _Candidate, leaving: removal.Leaving) -> None:
        if self._pool is None:
            self._settle(candidate, self._remove(leaving))
            return
        self._waiting.append((candidate, self._pool.submit(self._remove, leaving)))
        # Each one that waits holds a descriptor.
        if len(self._waiting) > MAX_WAITING:
            self._settle_first()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        while self._waiting:
            self._settle_first()
        if self._pool is not None:
            self._pool.shutdown()

    def _remove(self, leaving: removal.Leaving) -> OSError | None:
        try:
            removal.remove(leaving, self._root_fd)
        except OSError as error:
            return error
        return None

    def _settle_first(self) -> None:
        candidate, future = self._waiting.popleft()
        self._settle(candidate, future.result())


class _Prune:
    """One run: everything is decided in one order, so that a dry run decides the same."""

    def __init__(
        self,
        root: Path,
        root_fd: int,
        retention: RetentionPolicy,
        logger: SandboxLogger,
        before: Before | None,
        *,
        dry_run: bool,
    ) -> None:
        self.root, self.root_fd, self.retention = root, root_fd, retention
        self.logger, self.before, self.dry_run = logger, before, dry_run
        self.now = datetime.now(UTC)
        self.deleted: list[str] = []
        self.skipped: list[str] = []
        self.errors: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self.reclaimed = 0

    def run(
        self, max_deletions: int | None, workers: int, progress: Callable[[int, int], object] | None
    ) -> PruneResult:
        started = time.monotonic()
        self._log_start()
        if not self.dry_run:
            removal.sweep(self.root_fd)
        sessions = self._dated_sessions()
        holdings = self._holdings(sessions)
        with _Removals(self.root_fd, workers, self._settle) as removals:
            for number, found in enumerate(sessions, 1):
                reason = holdings.reason_to_remove(self._age(found))
                # Sorted by age: where the oldest one left may stay, so may the others.
                if reason is None or holdings.gone == max_deletions:
                    break
                size = self._take(found, reason, removals)
                if size is not None:
                    holdings.forget(size)
                if progress is not None:
                    progress(number, len(sessions))
        return self._finish(time.monotonic() - started)

    def _dated_sessions(self) -> list[Found]:
        dated = []
        for found in survey(self.root_fd):
            if found.problem is None:
                dated.append(found)
            elif found.problem == "unreadable":
                self._fail(found.session_id, "its metadata cannot be read: permission denied")
            else:
                self._skip(found.session_id, found.problem)
        return sorted(dated, key=lambda found: (found.updated_at, found.session_id))

    def _holdings(self, sessions: list[Found]) -> Holdings:
        total = 0
        if self.retention.max_total_bytes is not None:
            total = sum(self._size(found.session_id) for found in sessions)
        free = 0
        if self.retention.min_free_bytes is not None:
            space = os.fstatvfs(self.root_fd)
            free = space.f_bavail * space.f_frsize
        return Holdings(self.retention, len(sessions), total, free)

    def _size(self, session_id: str) -> int:
        try:
            with tree.closing_fd(tree.open_folder(session_id, self.root_fd)) as fd:
                return measure_session(session_id, self.root_fd, fd)
        except OSError:
            return 0  # told as an error when its turn comes

    def _age(self, found: Found) -> float:
        return max(0.0, (self.now - found.updated_at).total_seconds())

    def _take(self, found: Found, reason: str, removals: _Removals) -> int | None:
        """The bytes that go with the session; None where it stays."""
        session_id = found.session_id
        if found.held:
            self._skip(session_id, "in_use")
            return None
        try:
            fd = locks.try_exclusive(session_id, self.root_fd)
        except FileNotFoundError:
            return None  # somebody else deleted it
        except OSError as error:
            self._fail(session_id, str(error))
            return None
        if fd is None:
            self._skip(session_id, "in_use")
            return None
        try:
            return self._take_locked(found, reason, fd, removals)
        except OSError as error:
            self._fail(session_id, str(error))
            return None

    def _take_locked(self, found: Found, reason: str, fd: int, removals: _Removals) -> int | None:
        session_id = found.session_id
        leaving = None
        try:
            if not self._still_to_go(found, reason):
                return None
            size = removal.weigh(session_id, self.root_fd, fd)
            self._log_candidate(found, reason, size)
            if not self.dry_run:
                if self.before is not None:
                    self.before(session_id, self.root_fd, fd)
                leaving = removal.take_away(session_id, self.root_fd, fd)
        finally:
            if leaving is None:
                os.close(fd)
        candidate = _Candidate(session_id, reason, size)
        if leaving is None:
            self._settle(candidate, None)
        else:
            removals.add(candidate, leaving)
        return size

    def _settle(self, candidate: _Candidate, error: OSError | None) -> None:
        """Record one candidate: gone, to go, or gone from sight but not from the disk."""
        if error is not None:
            self._fail(candidate.session_id, str(error))
            return
        if not self.dry_run:
            self.logger.info("session.prune.deleted", session_id=candidate.session_id)
        self.deleted.append(candidate.session_id)
        self.reasons[candidate.session_id] = candidate.reason
        self.reclaimed += candidate.size

    def _fail(self, session_id: str, error: str) -> None:
        self.errors[session_id] = error
        self.logger.error("session.prune.error", session_id=session_id, error=error)

    def _still_to_go(self, found: Found, reason: str) -> bool:
        """Whether the reason still holds now that nobody can use the session."""
        if is_unchanged(found, self.root_fd):
            return True
        current = examine(found.session_id, self.root_fd)
        limit = self.retention.max_age_hours
        if current.problem is not None or reason != AGE_REASON or limit is None:
            return False
        return self._age(current) >= limit * SECONDS_PER_HOUR

    def _skip(self, session_id: str, reason: str) -> None:
        self.skipped.append(session_id)
        self.reasons[session_id] = reason
        self.logger.warning("session.prune.skipped", session_id=session_id, reason=reason)

    def _log_start(self) -> None:
        self.logger.info(
            "session.prune.started",
            threshold_hours=self.retention.max_age_hours,
            workspace_root=str(self.root),
            dry_run=self.dry_run,
        )

    def _log_candidate(self, found: Found, reason: str, size: int) -> None:
        self.logger.info(
            "session.prune.candidate",
            session_id=found.session_id,
            age_hours=self._age(found) / SECONDS_PER_HOUR,
            size_bytes=size,
            reason=reason,
        )

    def _finish(self, duration: float) -> PruneResult:
        self.logger.info(
            "session.prune.completed",
            deleted_count=len(self.deleted),
            skipped_count=len(self.skipped),
            reclaimed_bytes=self.reclaimed,
            duration=duration,
        )
        return PruneResult(
            self.deleted, self.skipped, self.reclaimed, self.errors, self.dry_run, self.reasons
        )
