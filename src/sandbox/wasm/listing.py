"""What a guest sees of a folder that it reads."""

from __future__ import annotations

import os
from array import array
from typing import TYPE_CHECKING

from sandbox.wasm import abi
from sandbox.wasm.call import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox.wasm.names import HostOnlyNames

MOST_LISTED_BYTES = 128 << 20  # of the listings that a guest is in the middle of


class Listing:
    """The entries of a folder at one moment: reading on skips none, whatever is removed meanwhile."""

    def __init__(self, folder: int, host_only: HostOnlyNames, keep_going: Callable[[], object]) -> None:
        raw, starts = self._raw, self._starts = bytearray(), array("Q")
        with os.scandir(folder) as entries:
            for entry in entries:
                keep_going()
                name = os.fsencode(entry.name)
                if host_only.hides(name):
                    continue
                starts.append(len(raw))
                raw += abi.DIRENT.pack(len(starts), entry.inode(), len(name), _kind(entry)) + name
                if len(raw) > MOST_LISTED_BYTES:
                    raise Refusal(abi.ENOMEM)

    @property
    def size(self) -> int:
        """What it takes of the host's memory, in bytes."""
        return len(self._raw) + len(self._starts) * self._starts.itemsize

    def read(self, cookie: int, room: int) -> bytes:
        """The entries from a place on, cut off where there is no more room."""
        if cookie >= len(self._starts):
            return b""
        start = self._starts[cookie]
        return bytes(self._raw[start : start + room])


def _kind(entry: os.DirEntry[str]) -> int:
    if entry.is_symlink():
        return abi.SYMBOLIC_LINK
    if entry.is_dir(follow_symlinks=False):
        return abi.DIRECTORY
    return abi.REGULAR_FILE if entry.is_file(follow_symlinks=False) else abi.UNKNOWN
