"""The names that do not exist for a guest."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

HOST_ONLY_PREFIX = ".metadata.json"  # and every name that begins with it, such as its temporary files


def fold(name: str) -> str:
    """One spelling for all that some file system takes for the same name."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


class HostOnlyNames:
    """The metadata's name and what else a session keeps from its guests, in any letter case and depth."""

    def __init__(self, extra: Iterable[str] = ()) -> None:
        self._exact = frozenset(map(fold, extra))
        self._needles = tuple(name.encode() for name in (HOST_ONLY_PREFIX, *self._exact))

    def hide(self, path: bytes) -> bool:
        """Whether some component of a guest's path is such a name."""
        if path.isascii():
            lower = path.lower()
            if not any(needle in lower for needle in self._needles):
                return False
        return any(map(self.hide_name, path.decode("utf-8", "surrogateescape").split("/")))

    def hide_name(self, name: str) -> bool:
        """Whether one component is such a name."""
        folded = fold(name)
        return folded.startswith(HOST_ONLY_PREFIX) or folded in self._exact
