"""The errors that the host raises; what a guest did is data in a result, never one of these.

SandboxError
├── PolicyValidationError (ValueError)      a field of a policy breaks its rule
├── GuestUnavailable (FileNotFoundError)    no guest binary, and no way to fetch one
├── GuestRejected                           a guest binary that is not the pinned one
├── EngineUnusable (RuntimeError)           this process cannot run a guest
├── PreloadFailed (ValueError)              a module named in preload is not in the guest
├── WorkspaceUnusable (OSError)             a workspace that cannot be read or written
├── SandboxClosed (RuntimeError)            used after close()
└── SessionError
    ├── InvalidSessionId (ValueError)
    ├── InvalidSessionPath (ValueError)
    ├── SessionInUse (RuntimeError)         deletion of a session that is executing or held
    ├── ArchiveRejected (ValueError)        an archive that must not be unpacked
    ├── StateUnusable (RuntimeError)        saved interpreter state that cannot be resumed
    ├── NotStateful (RuntimeError)          what only a stateful session can do
    ├── InvalidCheckpointName (ValueError)
    └── CheckpointUnknown (LookupError)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "ArchiveRejected",
    "CheckpointUnknown",
    "EngineUnusable",
    "GuestRejected",
    "GuestUnavailable",
    "InvalidCheckpointName",
    "InvalidSessionId",
    "InvalidSessionPath",
    "NotStateful",
    "PolicyValidationError",
    "PreloadFailed",
    "SandboxClosed",
    "SandboxError",
    "SessionError",
    "SessionInUse",
    "StateUnusable",
    "WorkspaceUnusable",
]


class SandboxError(Exception):
    """Root of everything that this library raises on its own account."""


class PolicyValidationError(SandboxError, ValueError):
    """A policy field breaks its rule."""

    def __init__(self, field: str, value: object, rule: str) -> None:
        self.field, self.value, self.rule = field, value, rule
        what = "policy" if field == "policy" else f"policy field {field!r} is"  # its file, or a field of it
        super().__init__(f"{what} {value!r}: {rule}")


class GuestUnavailable(SandboxError, FileNotFoundError):
    """The guest binary is nowhere, and could not be fetched."""

    def __init__(self, reason: str, *, remedy: str) -> None:
        self.reason, self.remedy = reason, remedy
        super().__init__(f"{reason}; {remedy}")


class GuestRejected(SandboxError):
    """A guest file is not what this version expects, so it is not run."""

    def __init__(self, path: Path, reason: str, *, remedy: str) -> None:
        self.path, self.reason, self.remedy = path, reason, remedy
        super().__init__(f"{path} is not used: {reason}; {remedy}")


class EngineUnusable(SandboxError, RuntimeError):
    """This process cannot enter a guest safely."""

    def __init__(self, reason: str, *, remedy: str) -> None:
        self.reason, self.remedy = reason, remedy
        super().__init__(f"{reason}; {remedy}")


class PreloadFailed(SandboxError, ValueError):
    """A module of `preload` could not be imported in the guest."""

    def __init__(self, module: str, reason: str) -> None:
        self.module, self.reason = module, reason
        super().__init__(f"cannot preload {module!r}: {reason}; name modules that the guest has")


class WorkspaceUnusable(SandboxError, OSError):
    """A workspace is not a folder that can be read and written."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"workspace {path} cannot be used: {reason}")


class SandboxClosed(SandboxError, RuntimeError):
    """A sandbox was used after close()."""

    def __init__(self) -> None:
        super().__init__("this sandbox is closed; create a new one to go on")


class SessionError(SandboxError):
    """Branch of everything that concerns one session."""


class InvalidSessionId(SessionError, ValueError):
    """A session id that no session can have."""

    def __init__(self, session_id: object) -> None:
        self.session_id = session_id
        rule = "use 1 to 128 letters, digits and hyphens"
        if isinstance(session_id, str) and ("/" in session_id or "\\" in session_id):
            rule = f"it must not contain path separators; {rule}"
        super().__init__(f"invalid session id {session_id!r}: {rule}")


class InvalidSessionPath(SessionError, ValueError):
    """A path that no file of a session can have."""

    def __init__(self, path: object, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"invalid session path {path!r}: {reason}")


class SessionInUse(SessionError, RuntimeError):
    """A session is executing, here or in another process, or a program holds it."""

    def __init__(self, session_id: str, *, remedy: str = "try again when its execution has ended") -> None:
        self.session_id, self.remedy = session_id, remedy
        super().__init__(f"session {session_id} is in use; {remedy}")


class ArchiveRejected(SessionError, ValueError):
    """An archive holds something that must not be unpacked."""

    def __init__(self, archive: Path, reason: str) -> None:
        self.archive, self.reason = archive, reason
        super().__init__(f"archive {archive} is not restored: {reason}")


class StateUnusable(SessionError, RuntimeError):
    """Saved interpreter state is damaged or belongs to another runtime."""

    def __init__(self, session_id: str, reason: str, *, remedy: str) -> None:
        self.session_id, self.reason, self.remedy = session_id, reason, remedy
        super().__init__(f"the saved state of session {session_id} cannot be resumed: {reason}; {remedy}")


class NotStateful(SessionError, RuntimeError):
    """A session that keeps no variables was asked for what needs them."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"session {session_id} keeps files only; open it with stateful=True for this")


class InvalidCheckpointName(SessionError, ValueError):
    """A name that no checkpoint can have."""

    def __init__(self, name: object) -> None:
        self.name = name
        rule = "use 1 to 64 letters, digits, '.', '_' and '-', not beginning with a dot"
        super().__init__(f"invalid checkpoint name {name!r}: {rule}")


class CheckpointUnknown(SessionError, LookupError):
    """A checkpoint that the session does not have."""

    def __init__(self, session_id: str, name: str) -> None:
        self.session_id, self.name = session_id, name
        super().__init__(f"session {session_id} has no checkpoint {name!r}; list_checkpoints names them")
