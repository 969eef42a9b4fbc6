"""Where a session lives on disk.

workspace_root/
  <session id>/          the user's files, seen by the guest as /app
    .metadata.json       host-only
  .state/<session id>/   what a stateful session keeps outside the guest's sight
  .tmp-…  .trash-…       sessions on their way in and out; never a session
"""

from __future__ import annotations

import re
import secrets
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.errors import InvalidSessionId
from sandbox.wasm.names import HOST_ONLY_PREFIX

if TYPE_CHECKING:
    import os

DEFAULT_ROOT = Path("workspace")
METADATA_NAME = HOST_ONLY_PREFIX
STATE_FOLDER = ".state"
IMAGES_FOLDER = ".images"  # inside it: what the saved states of many sessions share
INCOMING_PREFIX = ".tmp-"
OUTGOING_PREFIX = ".trash-"
FOLDER_MODE = 0o700

_SESSION_ID = re.compile(r"[A-Za-z0-9-]{1,128}")
_CANONICAL_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def new_session_id() -> str:
    """A fresh canonical UUIDv4."""
    return str(uuid.uuid4())


def check_session_id(session_id: object) -> str:
    """`session_id` itself where a session may have it; touches no disk."""
    if not isinstance(session_id, str) or not _SESSION_ID.fullmatch(session_id):
        raise InvalidSessionId(session_id)
    return session_id


def is_canonical_uuid(name: str) -> bool:
    """Whether `name` is a UUID in lower case with hyphens: the names that pruning looks at."""
    return _CANONICAL_UUID.fullmatch(name) is not None


def root_path(workspace_root: str | os.PathLike[str] | None) -> Path:
    """The folder that holds the sessions, as the caller wrote it."""
    return DEFAULT_ROOT if workspace_root is None else Path(workspace_root)


def incoming_name() -> str:
    """A name for a session that is being made."""
    return f"{INCOMING_PREFIX}{secrets.token_hex(16)}"


def outgoing_name() -> str:
    """A name for a session that is being removed."""
    return f"{OUTGOING_PREFIX}{secrets.token_hex(16)}"


def is_passing(name: str) -> bool:
    """Whether `name` belongs to a session on its way in or out."""
    return name.startswith((INCOMING_PREFIX, OUTGOING_PREFIX))
