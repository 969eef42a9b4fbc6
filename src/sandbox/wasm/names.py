"""The names that do not exist for a guest."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

HOST_ONLY_PREFIX = ".metadata.json"  # and every name that begins with it, such as its temporary files
# Code points that Unicode has by default ignored, as HFS+ and case-folding ext4 ignore them in names.
_IGNORED_RANGES = (
    *((0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F)),
    *((0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F)),
    *((0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A)),
    (0xE0000, 0xE0FFF),
)
_IGNORED = {code: None for first, last in _IGNORED_RANGES for code in range(first, last + 1)}


def fold(name: str) -> str:
    """One spelling for all that some file system takes for the same name."""
    shown = unicodedata.normalize("NFKC", name).translate(_IGNORED)
    return unicodedata.normalize("NFKC", shown.casefold()).translate(_IGNORED)


class HostOnlyNames:
    """The metadata's name and what else a session keeps from its guests, in any letter case and depth."""

    def __init__(self, extra: Iterable[str] = ()) -> None:
        self._exact = frozenset(map(fold, extra))
        self._needles = tuple(name.encode() for name in (HOST_ONLY_PREFIX, *self._exact))

    def hides(self, path: bytes) -> bool:
        """Whether some component of a guest's path is such a name."""
        if path.isascii():
            lower = path.lower()
            if not any(needle in lower for needle in self._needles):
                return False
        return any(map(self.hides_name, path.decode("utf-8", "surrogateescape").split("/")))

    def hides_name(self, name: str) -> bool:
        """Whether one component is such a name."""
        folded = fold(name)
        return folded.startswith(HOST_ONLY_PREFIX) or folded in self._exact
