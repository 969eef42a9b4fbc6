"""Where a guest's names really lie in its workspace, for the report alone."""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Places:
    """Resolves links as the kernel would, and remembers the folders until something moves."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._real_root = os.path.realpath(root)
        self._parents: dict[str, str] = {}

    def forget(self) -> None:
        """Something moved: what was remembered may be wrong."""
        self._parents.clear()

    def find(self, folder: str, name: bytes, *, follow: bool = False) -> str:
        """The path, relative to the workspace, of a name in an open folder; empty outside of it."""
        path = posixpath.join(folder, name.decode("utf-8", "replace")).rstrip("/")
        parent, last = posixpath.split(path)
        if last in ("", ".", "..") or (follow and os.path.islink(os.path.join(self._root, path))):
            return self._resolve(path)
        if not parent:
            return last
        real = self._parents.get(parent)
        if real is None:
            real = self._parents[parent] = self._resolve(parent)
        return posixpath.join(real, last)

    def _resolve(self, path: str) -> str:
        real = os.path.realpath(os.path.join(self._root, path))
        inside = os.path.relpath(real, self._real_root)
        return "" if inside == "." or inside.startswith("..") else inside

    def files_below(self, folder: str, keep_going: Callable[[], object]) -> list[str]:
        """The files of a folder, relative to it, links not followed; `keep_going` may raise to give up."""
        top = os.path.join(self._root, folder)
        found = []
        for base, folders, names in os.walk(top):
            keep_going()
            links = [name for name in folders if os.path.islink(os.path.join(base, name))]
            below = "" if base == top else os.path.relpath(base, top)
            found += [posixpath.join(below, name) for name in (*names, *links)]
        return found
