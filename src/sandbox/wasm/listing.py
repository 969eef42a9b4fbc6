"""What a guest sees of a folder that it reads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sandbox.wasm import abi

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox.wasm.names import HostOnlyNames


class Listing:
    """The entries of a folder at one moment, so that reading on costs nothing of what was read before."""

    def __init__(self, folder: int, host_only: HostOnlyNames, keep_going: Callable[[], object]) -> None:
        self._entries: list[tuple[int, int, bytes]] = []  # inode, type, name
        with os.scandir(folder) as entries:
            for entry in entries:
                keep_going()
                name = os.fsencode(entry.name)
                if not host_only.hide(name):
                    self._entries.append((entry.inode(), _kind(entry), name))

    def read(self, cookie: int, room: int) -> bytes:
        """The entries from a place on, cut off where there is no more room."""
        parts: list[bytes] = []
        size = 0
        for number in range(cookie, len(self._entries)):
            inode, kind, name = self._entries[number]
            parts += abi.DIRENT.pack(number + 1, inode, len(name), kind), name
            size += abi.DIRENT.size + len(name)
            if size >= room:
                break
        return b"".join(parts)[:room]


def _kind(entry: os.DirEntry[str]) -> int:
    if entry.is_symlink():
        return abi.SYMBOLIC_LINK
    if entry.is_dir(follow_symlinks=False):
        return abi.DIRECTORY
    return abi.REGULAR_FILE if entry.is_file(follow_symlinks=False) else abi.UNKNOWN
