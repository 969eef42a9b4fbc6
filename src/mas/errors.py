"""The errors that multi-agent sessions raise; what an agent did is data in its record, never one of these.

MasError
├── InvalidConfiguration (ValueError)   a run configuration or setting breaks its rule
├── InvalidMessage (ValueError)         text that cannot be typed into a pane
├── InvalidSessionId (ValueError)       an id that is not a version 4 UUID
├── RunNotFound (LookupError)           no run has that id
├── AgentNotFound (LookupError)         the run has no such agent
├── Conflict (RuntimeError)             the state of a run forbids the operation
│   ├── RunActive                       it must be stopped first
│   ├── RunNotActive                    it must be running
│   ├── AgentNotRunning                 nothing is there to take a message
│   ├── WorkspaceGone                   somebody removed its folder
│   ├── LegacyRunning                   the one legacy session exists already
│   ├── SessionIdTaken                  the id, or its first eight characters, belongs to another run
│   └── IdempotencyMismatch             the key was used for another configuration
├── TmuxError (RuntimeError)
│   ├── TmuxMissing                     no tmux, or one that is too old
│   └── TmuxFailed                      tmux refused a command
├── TemplateUnusable                    a file of the templates cannot be copied
└── WorkspaceFailed (OSError)           the disk stood in the way
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "AgentNotFound",
    "AgentNotRunning",
    "Conflict",
    "IdempotencyMismatch",
    "InvalidConfiguration",
    "InvalidMessage",
    "InvalidSessionId",
    "LegacyRunning",
    "MasError",
    "RunActive",
    "RunNotActive",
    "RunNotFound",
    "SessionIdTaken",
    "TemplateUnusable",
    "TmuxError",
    "TmuxFailed",
    "TmuxMissing",
    "WorkspaceFailed",
    "WorkspaceGone",
]


class MasError(Exception):
    """Root of everything that multi-agent sessions raise on their own account."""


class InvalidConfiguration(MasError, ValueError):
    """A field of a run configuration, or a setting of the environment, breaks its rule."""

    def __init__(self, field: str, reason: str) -> None:
        self.field, self.reason = field, reason
        super().__init__(f"{field}: {reason}")


class InvalidMessage(MasError, ValueError):
    """A message holds what cannot be typed into a pane."""

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason, self.remedy = reason, remedy
        super().__init__(f"this message cannot be sent: {reason}; {remedy}")


class InvalidSessionId(MasError, ValueError):
    """A session id that no run can have."""

    def __init__(self, session_id: object) -> None:
        self.session_id = session_id
        super().__init__(f"invalid session id {session_id!r}: use a lower-case version 4 UUID")


class RunNotFound(MasError, LookupError):
    """No run has this id; ids are matched whole."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"no session {session_id}; list the sessions to see which there are")


class AgentNotFound(MasError, LookupError):
    """The run has no agent of this id."""

    def __init__(self, session_id: str, agent_id: str) -> None:
        self.session_id, self.agent_id = session_id, agent_id
        super().__init__(
            f"session {session_id} has no agent {agent_id!r}; show the session to see its agents"
        )


class Conflict(MasError, RuntimeError):
    """Branch of everything that the state of a run forbids."""


class RunActive(Conflict):
    """The run is active, and the operation needs it stopped."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"session {session_id} is active; stop it first")


class RunNotActive(Conflict):
    """The run is stopped, and the operation needs it active."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"session {session_id} is not active; restore it first")


class AgentNotRunning(Conflict):
    """The agent has ended, so a message would be lost."""

    def __init__(self, session_id: str, agent_id: str) -> None:
        self.session_id, self.agent_id = session_id, agent_id
        super().__init__(f"agent {agent_id} of session {session_id} is not running; restart it first")


class WorkspaceGone(Conflict):
    """The folder of the run was removed, and the operation needs it."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"the folder of session {session_id} is gone; put it back, or stop the session and delete it"
        )


class LegacyRunning(Conflict):
    """A legacy session of this name exists; there is only one at a time."""

    def __init__(self, tmux_session: str, session_id: str | None, *, elsewhere: bool = False) -> None:
        self.tmux_session, self.session_id, self.elsewhere = tmux_session, session_id, elsewhere
        known = f" (session {session_id})" if session_id else ""
        here = f"{known}; attach to it, or stop it first"
        there = " for another folder; put PROJECT_NAME=... into a .masrc here, or use isolated mode"
        super().__init__(f"{tmux_session} is already running{there if elsewhere else here}")


class SessionIdTaken(Conflict):
    """The id, or the eight characters that name its tmux session, belongs to another run."""

    def __init__(self, session_id: str, holder: str) -> None:
        self.session_id, self.holder = session_id, holder
        super().__init__(f"session id {session_id} is not free: {holder} exists; choose another id")


class IdempotencyMismatch(Conflict):
    """The idempotency key was used before, for another configuration."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"this idempotency key made session {session_id} from another configuration; use a new key"
        )


class TmuxError(MasError, RuntimeError):
    """Branch of everything that tmux could not do."""


class TmuxMissing(TmuxError):
    """There is no tmux that can be used."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{reason}; install tmux 3.2 or newer (Debian and Ubuntu: apt install tmux)")


class TmuxFailed(TmuxError):
    """tmux refused a command."""

    def __init__(self, command: str, reason: str, socket: str) -> None:
        self.command, self.reason, self.socket = command, reason, socket
        super().__init__(
            f"tmux {command} failed: {reason}; try again, and if it stays so, "
            f"tmux -L {socket} list-sessions shows whether its server answers"
        )


class TemplateUnusable(MasError):
    """Something in the templates cannot become part of a session; `path` begins with unit or workflows."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(
            f"the template {path} {reason}; mend it or move it out of the templates, then start again"
        )


class WorkspaceFailed(MasError, OSError):
    """A file or folder of a run could not be made, read or removed."""

    def __init__(
        self,
        path: Path,
        reason: str,
        remedy: str = "see that its disk has room and that you may write there, then try again",
    ) -> None:
        self.path, self.reason, self.remedy = path, reason, remedy
        super().__init__(f"{path}: {reason}; {remedy}")
