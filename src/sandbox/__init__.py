"""Run untrusted code in WebAssembly, in sessions that persist."""

from sandbox.errors import (
    ArchiveRejected,
    EngineUnusable,
    GuestRejected,
    GuestUnavailable,
    InvalidSessionId,
    InvalidSessionPath,
    PolicyValidationError,
    PreloadFailed,
    SandboxClosed,
    SandboxError,
    SessionError,
    SessionInUse,
    StateUnusable,
    WorkspaceUnusable,
)
from sandbox.events import SandboxLogger
from sandbox.policy import ExecutionPolicy, load_policy
from sandbox.result import SandboxResult
from sandbox.sandbox import BaseSandbox, PythonSandbox, RuntimeType, create_sandbox

__all__ = [
    "ArchiveRejected",
    "BaseSandbox",
    "EngineUnusable",
    "ExecutionPolicy",
    "GuestRejected",
    "GuestUnavailable",
    "InvalidSessionId",
    "InvalidSessionPath",
    "PolicyValidationError",
    "PreloadFailed",
    "PythonSandbox",
    "RuntimeType",
    "SandboxClosed",
    "SandboxError",
    "SandboxLogger",
    "SandboxResult",
    "SessionError",
    "SessionInUse",
    "StateUnusable",
    "WorkspaceUnusable",
    "create_sandbox",
    "load_policy",
]
