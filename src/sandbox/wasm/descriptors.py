"""What a guest holds open, by number."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox.wasm import abi
from sandbox.wasm.call import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sandbox.wasm.listing import Listing

STREAMS = 3  # stdin, stdout, stderr
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True)
class Mount:
    """A host folder that the guest sees at a path."""

    host_path: str
    guest_path: str
    writable: bool = False
    journaled: bool = False  # the workspace, whose changes are reported


def in_workspace(mount: Mount | None) -> bool:
    """Whether what is in a mount is the session's own, which is reported and has a quota."""
    return mount is not None and mount.journaled


@dataclass(slots=True, eq=False)
class Descriptor:
    """A standard stream, a file, a folder, or what a guest still holds though it is gone."""

    kind: int = abi.UNKNOWN
    host: int = -1  # the host's own number for it
    mount: Mount | None = None
    path: str | None = ""  # inside the mount; None where it has no name that can be told
    rights: int = abi.ALL_RIGHTS
    flags: int = 0
    stream: int | None = None  # which standard stream it is
    granted: bool = False  # a folder that the guest was given, not one that it opened
    listing: Listing | None = None  # of a folder, while it is read


class Descriptors:
    """The numbers that are taken; what the guest opens gets the lowest that is free."""

    def __init__(self, mounts: Sequence[Mount], most_opened: int) -> None:
        self._held = {number: _stream(number) for number in range(STREAMS)}
        self._lowest = STREAMS + len(mounts)
        self._most = self._lowest + most_opened
        self._first_opened = self._lowest
        for number, mount in enumerate(mounts, STREAMS):
            # Most executions never look at the other folders, so those are opened when one does.
            host = os.open(mount.host_path, _FOLDER) if mount.journaled else -1
            self._held[number] = Descriptor(abi.DIRECTORY, host, mount, granted=True)

    def get(self, number: int) -> Descriptor | None:
        """What is held under a number; a folder that was granted may not be open yet."""
        return self._held.get(number)

    def any(self, number: int) -> Descriptor:
        """What is held under a number; refused where nothing is."""
        held = self._held.get(number)
        if held is None:
            raise Refusal(abi.EBADF)
        if held.host < 0 and held.granted and held.mount is not None:
            held.host = os.open(held.mount.host_path, _FOLDER)
        return held

    def file(self, number: int) -> Descriptor:
        """An open file; refused for anything else."""
        held = self._held.get(number)
        if held is None or held.kind != abi.REGULAR_FILE:
            raise Refusal(abi.EBADF)
        return held

    def folder(self, number: int) -> Descriptor:
        """An open folder; refused for anything else."""
        held = self.any(number)
        if held.kind != abi.DIRECTORY:
            raise Refusal(abi.ENOTDIR if held.kind == abi.REGULAR_FILE else abi.EBADF)
        return held

    def __iter__(self) -> Iterator[Descriptor]:
        return iter(self._held.values())

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be opened."""
        return len(self._held) >= self._most

    def add(self, held: Descriptor) -> int:
        """Hold something under the lowest free number."""
        while self._lowest in self._held:
            self._lowest += 1
        self._held[self._lowest] = held
        return self._lowest

    def remove(self, number: int) -> bool:
        """Close what is held under a number; False where there is nothing."""
        held = self._held.pop(number, None)
        if held is None:
            return False
        self._lowest = min(self._lowest, number)
        if held.host >= 0:
            os.close(held.host)
        return True

    def opened(self) -> list[int]:
        """The numbers that the guest itself holds open."""
        held = self._held.items()
        return sorted(number for number, one in held if one.stream is None and not one.granted)

    def occupy(self, numbers: Iterable[int]) -> None:
        """Keep numbers from naming other files until the guest closes them."""
        for number in numbers:
            if number < self._first_opened:
                self.remove(number)  # the guest had closed the stream or the folder
            if not self.is_full and number not in self._held:
                self._held[number] = Descriptor(path=None)

    def close(self) -> None:
        """Close everything; may be called twice."""
        held, self._held = self._held, {}
        for descriptor in held.values():
            if descriptor.host >= 0:
                os.close(descriptor.host)


def _stream(number: int) -> Descriptor:
    rights = abi.RIGHT_FD_READ if number == 0 else abi.RIGHT_FD_WRITE
    return Descriptor(rights=rights, stream=number)
