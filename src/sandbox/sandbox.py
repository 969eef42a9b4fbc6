"""One execution, from code to result."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Self

from sandbox.errors import SandboxClosed
from sandbox.events import SandboxLogger
from sandbox.policy import ExecutionPolicy
from sandbox.result import SandboxResult

__all__ = ["BaseSandbox", "OutputCallback", "PythonSandbox", "RuntimeType", "create_sandbox"]

OutputCallback = Callable[[str, bytes], object]


class RuntimeType(StrEnum):
    """The languages that a sandbox can run."""

    PYTHON = "python"


class BaseSandbox(ABC):
    """Runs code in one workspace; one sandbox may be used from many threads at once."""

    policy: ExecutionPolicy
    workspace: Path
    logger: SandboxLogger
    session_id: str | None

    @abstractmethod
    def execute(
        self,
        code: str,
        *,
        stdin: str | bytes | BinaryIO | None = None,
        args: Sequence[str] = (),
        timeout_seconds: float | None = None,
        on_output: OutputCallback | None = None,
        cancel: threading.Event | None = None,
    ) -> SandboxResult:
        """Run `code` in a fresh interpreter and wait for its end."""

    @abstractmethod
    def validate_code(self, code: str) -> bool:
        """Whether `code` compiles; it is not run."""

    @abstractmethod
    def close(self) -> None:
        """Release what the sandbox holds; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
