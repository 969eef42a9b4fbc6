"""What one execution did, as a value."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

StoppedBy = Literal["fuel", "timeout", "memory", "cancelled", "trap"]
State = Literal["saved", "live", "rolled_back"]


class SandboxResult(BaseModel):
    """The outcome of one `execute`; survives a JSON round trip unchanged."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    success: bool
    stdout: str
    stderr: str
    exit_code: int
    fuel_consumed: int | None
    memory_used_bytes: int
    duration_ms: float
    files_created: list[str] = Field(default_factory=list)
    files_modified: list[str] = Field(default_factory=list)
    files_deleted: list[str] = Field(default_factory=list)
    workspace_path: str
    metadata: dict[str, Any] = Field(default_factory=dict)
    stopped_by: StoppedBy | None = None
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    value: str | None = None
    """The repr of a turn's last expression, bounded; None where there is none."""
    state: State | None = None
    """Of a stateful session: on disk, in memory and soon on disk, or as before the turn."""
