"""The private folder of what is made once per machine."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import platformdirs
from filelock import FileLock

from sandbox.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sandbox.events import SandboxLogger

__all__ = ["Cache", "CacheEntry", "cache_folder", "file_sha256", "open_cache"]

TEMP_PREFIX = ".tmp-"
LOCK_PREFIX = ".lock-"
SEAL_PREFIX = ".seal-"
# Of what was used least lately; a machine that tries many sets of modules must not fill its disk.
MOST_FILE_BYTES = 4 << 30
UNUSED_SECONDS = 30 * 86400.0
# A temporary name is locked a moment after it is made; a sweep leaves young ones alone.
YOUNGEST_STALE_SECONDS = 60.0

_warned: set[tuple[str, Path]] = set()
_warned_guard = threading.Lock()


@dataclass(frozen=True)
class CacheEntry:
    """One finished thing in the cache."""

    name: str
    size_bytes: int


def cache_folder() -> Path:
    """Where the cache is: `$SANDBOX_CACHE`, else the user's cache folder."""
    chosen = os.environ.get("SANDBOX_CACHE")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("session-sandbox"))


def open_cache(logger: SandboxLogger) -> Cache | None:
    """The cache, or None with one warning per process where its folder cannot be made ours alone."""
    path = cache_folder()
    try:
        path = path.resolve()
        _make_private(path)
    except (OSError, RuntimeError) as error:
        _warn_once(logger, "cache.unusable", path, error)
        return None
    return Cache(path, logger)


def _no_problem(_: Path) -> str | None:
    return None


class Cache:
    """Entries that are ours alone; each appears whole, under its name, or not at all."""

    def __init__(self, path: Path, logger: SandboxLogger) -> None:
        self.path = path
        self._logger = logger

    def find(self, name: str) -> Path | None:
        """The file stored under `name`, whole and ours alone; any other is refused with a warning.

        Its content is hashed again only when the file system says that it may have changed.
        """
        found = self._accepted(self._entry(name), self._sealed_file_refusal)
        if found is not None:
            self._mark_used(found)
        return found

    def refuse(self, name: str, reason: str) -> None:
        """Warn of an entry that its reader cannot use, and drop it."""
        target = self._entry(name)
        self._logger.warning("cache.entry_refused", path=str(target), reason=reason)
        target.unlink(missing_ok=True)
        self._seal_of(target).unlink(missing_ok=True)

    def store(self, name: str, write: Callable[[BinaryIO], object]) -> Path | None:
        """Put what `write` writes under `name`; None with a warning where the disk refuses."""
        target = self._entry(name)
        try:
            self._sweep()
            with self._temp_file() as (temp, stream):
                write(stream)
                stream.flush()
                digest = file_sha256(temp)
                _remove_folder(target)
                self._seal(target, digest, _stamp(temp))  # a reader never meets the entry without its seal
                temp.replace(target)
            self._seal(target, digest, _stamp(target))
        except SandboxError:
            raise
        except OSError as error:
            _warn_once(self._logger, "cache.unwritable", self.path, error)
            return None
        self._evict(keep=target)
        return target

    def folder(
        self,
        name: str,
        fill: Callable[[Path], object],
        *,
        problem: Callable[[Path], str | None] = _no_problem,
    ) -> Path | None:
        """The folder under `name`, filled by `fill` when it is not there or `problem` names one.

        Holds the lock of `name` while filling, so that processes fill it once. None with a warning
        where the disk refuses; what `fill` raises on its own account passes through.
        """

        def refusal_of(path: Path) -> str | None:
            refusal = _folder_refusal(path)
            return problem(path) if refusal is None else refusal

        target = self._entry(name)
        if refusal_of(target) is None:
            return target
        with self.lock(name):
            return self._accepted(target, refusal_of) or self._fill(target, fill)

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Keeps other threads and processes out of the making of `name`; not reentrant."""
        held = FileLock(self.path / f"{LOCK_PREFIX}{self._entry(name).name}", mode=0o600)
        try:
            held.acquire()
        except OSError as error:
            # Nothing can be stored here either, so there is nothing to keep others out of.
            _warn_once(self._logger, "cache.unwritable", self.path, error)
            yield
            return
        try:
            yield
        finally:
            held.release()

    def entries(self) -> list[CacheEntry]:
        """What is stored, sorted by name; walks the folders to add up their sizes."""
        try:
            found = sorted(path for path in self.path.iterdir() if not path.name.startswith("."))
        except OSError:
            return []
        return [CacheEntry(path.name, _size(path)) for path in found]

    def _entry(self, name: str) -> Path:
        if not name or name.startswith(".") or "/" in name or "\0" in name:
            raise ValueError(f"{name!r} cannot name a cache entry")
        return self.path / name

    def _accepted(self, path: Path, refusal_of: Callable[[Path], str | None]) -> Path | None:
        refusal = refusal_of(path)
        if refusal is None:
            return path
        if refusal:
            self._logger.warning("cache.entry_refused", path=str(path), reason=refusal)
        return None

    def _fill(self, target: Path, fill: Callable[[Path], object]) -> Path | None:
        try:
            self._sweep()
            with self._temp_folder() as temp:
                fill(temp)
                _remove(target)
                temp.rename(target)
        except SandboxError:
            raise
        except OSError as error:
            _warn_once(self._logger, "cache.unwritable", self.path, error)
            return None
        return target

    def _seal(self, path: Path, digest: str, stamp: list[int]) -> None:
        """Record a file's digest, with what the file system changes whenever the content changes."""
        seal = {"sha256": digest, "stamp": stamp}
        with self._temp_file() as (temp, stream):
            stream.write(json.dumps(seal).encode())
            stream.flush()
            temp.replace(self._seal_of(path))

    def _mark_used(self, path: Path) -> None:
        try:
            os.utime(self._seal_of(path))
        except OSError:
            pass

    def _evict(self, *, keep: Path) -> None:
        """Drop the files that were not used for long, and those past the most that is kept."""
        kept_bytes = _size(keep)
        for path, used_at in self._files_by_use():
            if path == keep:
                continue
            kept_bytes += _size(path)
            if kept_bytes > MOST_FILE_BYTES or time.time() - used_at > UNUSED_SECONDS:
                path.unlink(missing_ok=True)
                self._seal_of(path).unlink(missing_ok=True)

    def _files_by_use(self) -> list[tuple[Path, float]]:
        """Every file with the time of its last use, the latest first."""
        seals = ((seal, _stat(seal)) for seal in self.path.glob(f"{SEAL_PREFIX}*"))
        used = [
            (self.path / seal.name.removeprefix(SEAL_PREFIX), info.st_mtime) for seal, info in seals if info
        ]
        return sorted(used, key=lambda pair: -pair[1])

    def _seal_of(self, path: Path) -> Path:
        return self.path / f"{SEAL_PREFIX}{path.name}"

    def _sealed_file_refusal(self, path: Path) -> str | None:
        refusal = _file_refusal(path)
        if refusal is not None:
            return refusal
        try:
            seal = json.loads(self._seal_of(path).read_bytes())
            stamp = _stamp(path)
            if seal["stamp"] == stamp:
                return None
            if seal["sha256"] != file_sha256(path):
                return "its content has changed since it was made"
            self._seal(path, seal["sha256"], stamp)
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"its digest cannot be checked: {error}"
        return None

    @contextmanager
    def _temp_file(self) -> Iterator[tuple[Path, BinaryIO]]:
        temp = self._temp_name()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(temp, "wb", opener=lambda path, _: os.open(path, flags, 0o600)) as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH)
                yield temp, stream
            finally:
                temp.unlink(missing_ok=True)

    @contextmanager
    def _temp_folder(self) -> Iterator[Path]:
        temp = self._temp_name()
        temp.mkdir(mode=0o700)
        descriptor = os.open(temp, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield temp
        finally:
            os.close(descriptor)
            shutil.rmtree(temp, ignore_errors=True)

    def _temp_name(self) -> Path:
        return self.path / f"{TEMP_PREFIX}{secrets.token_hex(8)}"

    def _sweep(self) -> None:
        """Remove what processes that died while making an entry left behind."""
        for path in self.path.glob(f"{TEMP_PREFIX}*"):
            try:
                if _is_abandoned(path):
                    _remove(path)
            except OSError:
                continue


def _make_private(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = path.stat()
    if info.st_uid != os.geteuid():
        raise PermissionError(f"it belongs to user {info.st_uid}, not to user {os.geteuid()}")
    if stat.S_IMODE(info.st_mode) & 0o077:
        path.chmod(0o700)


def _file_refusal(path: Path) -> str | None:
    """Why a file is not ours alone: None when it is, empty when there is none."""
    return _refusal(path, stat.S_ISREG, "it is not a regular file", single_link=True)


def _folder_refusal(path: Path) -> str | None:
    """Why a folder is not ours alone: None when it is, empty when there is none."""
    return _refusal(path, stat.S_ISDIR, "it is not a folder", single_link=False)


def _refusal(path: Path, is_kind: Callable[[int], bool], wrong_kind: str, *, single_link: bool) -> str | None:
    try:
        info = path.lstat()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return str(error)
    if not is_kind(info.st_mode):
        return wrong_kind
    if info.st_uid != os.geteuid():
        return f"it belongs to user {info.st_uid}"
    if info.st_mode & 0o022:
        return "others may write to it"
    if single_link and info.st_nlink != 1:
        return "it has another name elsewhere"
    return None


def file_sha256(path: Path) -> str:
    """The digest of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _stamp(path: Path) -> list[int]:
    """Nobody but the kernel sets the time of the last change, and every write moves it."""
    info = path.lstat()
    return [info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns]


def _is_abandoned(path: Path) -> bool:
    """Whether nobody holds the lock of a temporary name any more."""
    if time.time() - path.lstat().st_mtime < YOUNGEST_STALE_SECONDS:
        return False
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _remove(path: Path) -> None:
    _remove_folder(path)
    path.unlink(missing_ok=True)


def _remove_folder(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)


def _size(path: Path) -> int:
    inside = path.rglob("*") if path.is_dir() and not path.is_symlink() else iter((path,))
    return sum(info.st_size for info in map(_stat, inside) if info and stat.S_ISREG(info.st_mode))


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None


def _warn_once(logger: SandboxLogger, event: str, path: Path, error: Exception) -> None:
    with _warned_guard:
        if (event, path) in _warned:
            return
        _warned.add((event, path))
    logger.warning(event, path=str(path), error=str(error))
