"""The index of the runs, with the .session file of each: their only reader and writer."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, get_args

from mas.config import MODES
from mas.locks import lock_file
from mas.workspace import Layout, disk_work
from sandbox.sessions import hold_session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sandbox.events import SandboxLogger

__all__ = [
    "TEMPORARY_PREFIX",
    "UUID4",
    "Claim",
    "Registry",
    "Status",
    "make_private_folder",
    "now",
    "timestamp",
]

Status = Literal["active", "stopped", "error"]
STATUSES: tuple[Status, ...] = get_args(Status)

INDEX_VERSION = "1.0"
TEMPORARY_PREFIX = "tmp-"
KEY_LIFETIME_SECONDS = 24 * 3600
UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
Entries = dict[str, dict[str, Any]]


def timestamp(seconds: float) -> str:
    """A moment, in seconds since 1970, as the index and every answer write it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def now() -> str:
    """The current time, likewise."""
    return timestamp(time.time())


@dataclass(frozen=True)
class Claim:
    """What an idempotency key stands for: empty until a run is being made under it."""

    path: Path
    session_id: str | None
    digest: str | None

    def keep(self, session_id: str, digest: str) -> None:
        """Tie the key to the run that is about to be made."""
        facts = {"sessionId": session_id, "digest": digest}
        _replace(self.path.with_suffix(".json"), json.dumps(facts), self.path.parent)


class Registry:
    """The runs under one root, in sessions/.sessions.index.

    Reading needs no lock, because a write replaces the whole file. Fields that this version does not know
    survive in the index and in its entries.
    """

    def __init__(self, root: Path, logger: SandboxLogger) -> None:
        self.root = root
        self.folder = root / "sessions"
        self.index = self.folder / ".sessions.index"
        self.scratch = self.folder / ".mas"
        self.logger = logger

    def entries(self) -> Entries:
        """Every entry by id, in order of creation; a lost or corrupt index is rebuilt first."""
        with disk_work(self.index):
            found = self._read()
        if found is None:
            with self.transaction() as entries:
                return dict(entries)
        return _by_id(found)

    def find(self, session_id: str) -> dict[str, Any] | None:
        """The entry of exactly this id."""
        return self.entries().get(session_id)

    @contextmanager
    def transaction(self) -> Iterator[Entries]:
        """The entries, to be changed by one process at a time; they are written when the block succeeds."""
        make_private_folder(self.scratch)
        with disk_work(self.index), lock_file(self.folder / ".sessions.index.lock"):
            document = self._read() or self._rebuild()
            entries = _by_id(document)
            before = json.dumps(entries)
            yield entries
            if json.dumps(entries) != before or not self.index.exists():
                self._write(document, entries)

    def add(self, layout: Layout, status: Status, created_at: str) -> dict[str, Any]:
        """Register a run, or bring its entry up to date; fields that others added to it are kept."""
        with self.transaction() as entries:
            fresh = {
                "sessionId": layout.session_id,
                "tmuxSession": layout.tmux_session,
                "status": status,
                "createdAt": created_at,
                "workingDir": str(layout.working_dir),
                "mode": layout.mode,
            }
            entries[layout.session_id] = {**entries.get(layout.session_id, {}), **fresh}
        self.write_session_file(layout, status, created_at)
        return fresh

    def adopt(self, layout: Layout, facts: dict[str, str]) -> None:
        """Register a run from its .session file."""
        with self.transaction() as entries:
            entries.setdefault(layout.session_id, _entry_of(layout, facts))

    def set_status(self, session_ids: list[str], status: Status) -> None:
        """Record a status in the index and in the .session files."""
        with self.transaction() as entries:
            known = [entries[session_id] for session_id in session_ids if session_id in entries]
            for entry in known:
                entry["status"] = status
        for entry in known:
            layout = self.layout_of(entry)
            if layout.folder.is_dir():
                self.write_session_file(layout, status, entry["createdAt"], entry["tmuxSession"])

    def remove(self, session_id: str) -> None:
        """Forget a run."""
        with self.transaction() as entries:
            entries.pop(session_id, None)

    def layout_of(self, entry: dict[str, Any]) -> Layout:
        return Layout(self.root, entry["sessionId"], entry["mode"])

    def write_session_file(
        self,
        layout: Layout,
        status: Status,
        created_at: str,
        tmux_session: str | None = None,
        folder: Path | None = None,
    ) -> None:
        """Write .session whole, into `folder` where the session's own does not exist yet."""
        facts = {
            "SESSION_ID": layout.session_id,
            "TMUX_SESSION": tmux_session or layout.tmux_session,
            "STATUS": status,
            "CREATED_AT": created_at,
            "UNIT_DIR": str(layout.unit_dir),
            "WORKFLOWS_DIR": str(layout.workflows_dir),
            "SESSION_DIR": str(layout.folder),
        }
        text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in facts.items())
        _replace((folder or layout.folder) / ".session", text, self.scratch, durable=False)
        if folder is None:
            self._hold(layout, held=status == "active")

    def _hold(self, layout: Layout, *, held: bool) -> None:
        """Keep the folder of a team that runs from being pruned as a session that nobody executes in."""
        try:
            hold_session(layout.session_id, layout.sandbox_root, held=held)
        except (OSError, ValueError) as error:
            self.logger.warning("run.not_held", session_id=layout.session_id, error=str(error))

    def read_session_file(self, folder: Path) -> dict[str, str] | None:
        """The assignments of a .session file, read and never run; None when there is no readable one."""
        try:
            text = (folder / ".session").read_text(encoding="utf-8")
            pairs = [line.split("=", 1) for line in text.splitlines() if "=" in line]
            return {name.strip(): (shlex.split(value) or [""])[0] for name, value in pairs}
        except (OSError, ValueError):
            return None

    def session_folders(self) -> Iterator[tuple[Layout, dict[str, str]]]:
        """Every folder of a run with its .session file; plain sandbox sessions have none and are left out."""
        for mode in MODES:
            parent = Layout(self.root, "", mode).sandbox_root
            for path in sorted(parent.iterdir()) if parent.is_dir() else []:
                facts = self.read_session_file(path) if UUID4.fullmatch(path.name) else None
                if facts is not None and facts.get("SESSION_ID") == path.name:
                    yield Layout(self.root, path.name, mode), facts

    @contextmanager
    def claim(self, key: str) -> Iterator[Claim]:
        """Hold an idempotency key, so that of two callers with it the second sees what the first made."""
        folder = self.scratch / "keys"
        make_private_folder(folder)
        _expire_claims(folder)
        path = folder / f"{hashlib.sha256(key.encode()).hexdigest()}.lock"
        with lock_file(path):
            facts = _read_json(path.with_suffix(".json")) or {}
            yield Claim(path, facts.get("sessionId"), facts.get("digest"))

    def _read(self) -> dict[str, Any] | None:
        """The index; None when it is lost or cannot be used."""
        document = _read_json(self.index)
        return document if document is not None and _is_index(document) else None

    def _rebuild(self) -> dict[str, Any]:
        """An index from the folders; tmux is asked when entries are shown, so a status may be old here."""
        kept = self._set_aside()
        entries = [_entry_of(layout, facts) for layout, facts in self.session_folders()]
        entries.sort(key=lambda entry: entry["createdAt"])
        if kept is not None or entries:
            self.logger.warning("registry.rebuilt", index=str(self.index), kept=kept, sessions=len(entries))
        return {"version": INDEX_VERSION, "sessions": entries, "lastUpdated": now()}

    def _set_aside(self) -> str | None:
        if not self.index.exists():
            return None
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        kept = self.index.with_name(f"{self.index.name}.corrupt-{stamp}")
        self.index.rename(kept)
        return str(kept)

    def _write(self, document: dict[str, Any], entries: Entries) -> None:
        fresh = {
            **document,
            "version": INDEX_VERSION,
            "sessions": list(entries.values()),
            "lastUpdated": now(),
        }
        _replace(self.index, json.dumps(fresh, indent=2, ensure_ascii=False) + "\n", self.scratch)


def make_private_folder(path: Path) -> None:
    """A folder for its owner alone, with the parents it needs."""
    with disk_work(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)


def _by_id(document: dict[str, Any]) -> Entries:
    return {entry["sessionId"]: dict(entry) for entry in document["sessions"]}


def _is_index(document: dict[str, Any]) -> bool:
    sessions = document.get("sessions")
    return isinstance(sessions, list) and all(_is_entry(entry) for entry in sessions)


def _is_entry(entry: object) -> bool:
    fields = ("sessionId", "tmuxSession", "status", "createdAt", "workingDir", "mode")
    return (
        isinstance(entry, dict)
        and all(isinstance(entry.get(field), str) for field in fields)
        and UUID4.fullmatch(entry["sessionId"]) is not None
        and entry["mode"] in MODES
        and entry["status"] in STATUSES
    )


def _entry_of(layout: Layout, facts: dict[str, str]) -> dict[str, Any]:
    status = facts.get("STATUS")
    return {
        "sessionId": layout.session_id,
        "tmuxSession": facts.get("TMUX_SESSION") or layout.tmux_session,
        "status": status if status in STATUSES else "stopped",
        "createdAt": facts.get("CREATED_AT") or now(),
        "workingDir": str(layout.working_dir),
        "mode": layout.mode,
    }


def _expire_claims(folder: Path) -> None:
    for path in folder.glob("*.lock"):
        if _is_expired(path):
            with lock_file(path):
                if _is_expired(path):
                    path.with_suffix(".json").unlink(missing_ok=True)
                    path.unlink()


def _is_expired(path: Path) -> bool:
    """Whether a key was last used, or at least asked for, more than its lifetime ago."""
    used = [_modified(path), _modified(path.with_suffix(".json"))]
    return max(used) < time.time() - KEY_LIFETIME_SECONDS


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None where there is no such file or no such object in it."""
    try:
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _replace(path: Path, text: str, scratch: Path, *, durable: bool = True) -> None:
    """Replace a file whole; a durable one is the old or the new one after a power failure too.

    The temporary file is in `scratch`, where sandboxed code does not see it.
    """
    temporary = scratch / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
