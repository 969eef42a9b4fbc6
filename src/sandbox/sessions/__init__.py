"""Sandboxes that persist: sessions, their files, and how long they are kept."""

from sandbox.sessions.archive import ArchiveResult, archive_session, archive_sessions, restore_session
from sandbox.sessions.checkpoints import Checkpoint
from sandbox.sessions.copying import CopyResult, copy_into_session, copy_out_of_session
from sandbox.sessions.files import (
    SessionUsage,
    delete_session_path,
    list_session_files,
    read_session_file,
    session_usage,
    write_session_file,
)
from sandbox.sessions.forks import fork_session
from sandbox.sessions.lifecycle import (
    SessionSandbox,
    create_session_sandbox,
    delete_session_workspace,
    get_session_sandbox,
    hold_session,
    make_session,
    read_session_metadata,
    repair_session_metadata,
)
from sandbox.sessions.listing import SessionInfo, list_sessions
from sandbox.sessions.metadata import SessionMetadata
from sandbox.sessions.prune import PruneResult, prune_sessions
from sandbox.sessions.retention import RetentionPolicy

__all__ = [
    "ArchiveResult",
    "Checkpoint",
    "CopyResult",
    "PruneResult",
    "RetentionPolicy",
    "SessionInfo",
    "SessionMetadata",
    "SessionSandbox",
    "SessionUsage",
    "archive_session",
    "archive_sessions",
    "copy_into_session",
    "copy_out_of_session",
    "create_session_sandbox",
    "delete_session_path",
    "delete_session_workspace",
    "fork_session",
    "get_session_sandbox",
    "hold_session",
    "list_session_files",
    "list_sessions",
    "make_session",
    "prune_sessions",
    "read_session_file",
    "read_session_metadata",
    "repair_session_metadata",
    "restore_session",
    "session_usage",
    "write_session_file",
]
