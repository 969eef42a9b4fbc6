"""How much of the past is kept, as a value."""

from __future__ import annotations

import math
from dataclasses import dataclass

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class RetentionPolicy:
    """Which sessions may stay; every limit that is set holds afterwards, oldest sessions going first.

    Sessions without readable metadata are outside of it: they are neither counted nor removed.
    Free bytes are those of the file system that holds the sessions, plus what is removed.
    """

    max_age_hours: float | None = None
    max_sessions: int | None = None
    max_total_bytes: int | None = None
    min_free_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.max_age_hours is not None:
            check_hours(self.max_age_hours)
        for name in ("max_sessions", "max_total_bytes", "min_free_bytes"):
            limit = getattr(self, name)
            if limit is not None and limit < 0:
                raise ValueError(f"{name} is {limit!r}: it must not be negative")


def check_hours(hours: float) -> float:
    """`hours` itself where it is an age: zero or more, infinity included."""
    if math.isnan(hours) or hours < 0:
        raise ValueError(f"hours are {hours!r}: they must be zero or more")
    return hours


@dataclass(slots=True)
class Holdings:
    """What is there while sessions go one by one, and why the next one must go."""

    policy: RetentionPolicy
    sessions: int
    total_bytes: int
    free_bytes: int
    gone: int = 0

    def reason_to_remove(self, age_seconds: float) -> str | None:
        """The limit that the oldest session left offends; None where all of them hold."""
        policy = self.policy
        if policy.max_age_hours is not None and age_seconds >= policy.max_age_hours * SECONDS_PER_HOUR:
            return "max_age_hours"
        if policy.max_sessions is not None and self.sessions > policy.max_sessions:
            return "max_sessions"
        if policy.max_total_bytes is not None and self.total_bytes > policy.max_total_bytes:
            return "max_total_bytes"
        if policy.min_free_bytes is not None and self.free_bytes < policy.min_free_bytes:
            return "min_free_bytes"
        return None

    def forget(self, size: int) -> None:
        """Count a session of `size` bytes as gone."""
        self.gone += 1
        self.sessions -= 1
        self.total_bytes -= size
        self.free_bytes += size
