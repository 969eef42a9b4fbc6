"""Private folders that last for one execution each."""

from __future__ import annotations

import atexit
import fcntl
import os
import tempfile
import threading
import time
from pathlib import Path

from sandbox import tree

PREFIX = "session-sandbox-run-"
MOST_KEPT = 64
YOUNGEST_STALE_SECONDS = 60.0  # a folder is locked a moment after it is made


class Scratch:
    """Hands out empty folders; one that stayed empty is used again.

    They lie in one folder per process, locked while the process lives, so that what a killed
    process left behind is known as such and removed by the next.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._root: Path | None = None
        self._lock = -1
        self._kept: list[str] = []
        self._made = 0
        self._empty = ""

    def take(self) -> str:
        """An empty folder that nobody else uses."""
        with self._guard:
            if self._kept:
                return self._kept.pop()
            root = self._root or self._open()
            self._made += 1
            path = root / str(self._made)
        path.mkdir(mode=0o700)
        return str(path)

    def give_back(self, path: str, *, used: bool) -> None:
        """Return a folder; `used` says that something was put into it, and may be in it still."""
        with self._guard:
            keeps = not used and len(self._kept) < MOST_KEPT
            if keeps:
                self._kept.append(path)
        if not keeps:
            _remove(path)

    def empty(self) -> str:
        """One folder that stays empty, for mounts that are not used."""
        with self._guard:
            if not self._empty:
                path = (self._root or self._open()) / "empty"
                path.mkdir(mode=0o500)
                self._empty = str(path)
            return self._empty

    def _open(self) -> Path:
        base = Path(tempfile.gettempdir())
        sweep(base)
        self._root = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        self._lock = os.open(self._root, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        atexit.register(_remove_in, os.getpid(), self._root)
        return self._root


def _remove(path: str | Path) -> None:
    """Remove a folder that a guest may have made deeper than a recursion or a path can go."""
    try:
        with tree.closing_fd(tree.open_folder(path)) as fd:
            tree.remove_contents(fd)
        Path(path).rmdir()
    except OSError:
        return  # a sweep in another process was faster, or the next one tries again


def _remove_in(process: int, root: Path) -> None:
    if os.getpid() == process:  # a forked child must not remove what its parent uses
        _remove(root)


def sweep(base: Path) -> None:
    """Remove the folders of processes that are gone; leave those of others alone."""
    for path in base.glob(f"{PREFIX}*"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            info = os.fstat(descriptor)
            if info.st_uid == os.geteuid() and time.time() - info.st_mtime > YOUNGEST_STALE_SECONDS:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(path)
        except BlockingIOError:
            continue
        finally:
            os.close(descriptor)


scratch = Scratch()
