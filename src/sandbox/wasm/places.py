"""Where a guest's names really lie in a folder that it sees."""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONGEST_PATH = 4096  # of Linux; what lies deeper has no path that anybody could use
MOST_REMEMBERED = 1024  # folders, since a guest can spell one in any number of ways


class Places:
    """Resolves links as the kernel would, and remembers the folders until something moves.

    Serves to hide and to report: wasmtime itself resolves what it opens.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._real_root = ""
        self._parents: dict[str, str | None] = {}

    def forget(self) -> None:
        """Something moved: what was remembered may be wrong."""
        self._parents.clear()

    def find(self, folder: str | None, name: bytes, *, follow: bool = False) -> str | None:
        """The path, from the root, of a name in an open folder; None outside and where it is too long.

        OSError where a link on the way vanishes meanwhile.
        """
        if folder is None or len(folder) + len(name) > LONGEST_PATH:
            return None
        path = posixpath.join(folder, name.decode("utf-8", "replace")).strip("/")
        parent, last = posixpath.split(path)
        if last in ("", ".", "..") or (follow and os.path.islink(os.path.join(self._root, path))):
            return self._resolve(path)
        if parent == folder:  # which was resolved when it was opened
            return path
        if parent not in self._parents:
            self._remember(parent)
        real = self._parents[parent]
        return None if real is None else posixpath.join(real, last)

    def _remember(self, parent: str) -> None:
        if len(self._parents) >= MOST_REMEMBERED:
            self._parents.clear()
        self._parents[parent] = self._resolve(parent)

    def _resolve(self, path: str) -> str | None:
        self._real_root = self._real_root or os.path.realpath(self._root)
        real = os.path.realpath(os.path.join(self._root, path))
        if real == self._real_root:
            return ""
        inside = real.removeprefix(f"{self._real_root}/")
        return None if inside == real else inside

    def files_below(self, folder: str, keep_going: Callable[[], object]) -> Iterator[str]:
        """The files of a folder, relative to it, links not followed; `keep_going` may raise to give up."""
        pending = [""]
        while pending:
            keep_going()
            below = pending.pop()
            try:
                entries = list(os.scandir(os.path.join(self._root, folder, below)))
            except OSError:
                continue  # gone meanwhile, or deeper than a path can reach
            for entry in entries:
                path = posixpath.join(below, entry.name)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(path)
                else:
                    yield os.fsencode(path).decode("utf-8", "replace")
