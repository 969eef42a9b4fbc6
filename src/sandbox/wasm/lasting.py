"""The gate of a guest whose memory outlives its instance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandbox.wasm import abi
from sandbox.wasm.gate import Gate
from sandbox.wasm.openfiles import FIRST_PREOPEN, Descriptor

if TYPE_CHECKING:
    from collections.abc import Iterable

TMP = "/tmp"  # noqa: S108 - the guest's, not the host's
MOST_U64 = (1 << 64) - 1
GONE = b".gone"  # a folder in /tmp that is removed as soon as it is open


class LastingGate(Gate):
    """Keeps the guest's clock going, and its old descriptors from naming new files."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._first_own = len(self._fds)
        paths = [mount.guest_path for mount in parts["mounts"]]
        self._tmp = FIRST_PREOPEN + (paths.index(TMP) if TMP in paths else 0)
        self.clock_offset = 0  # nanoseconds that passed for the guest in earlier instances

    def now(self, clock: int) -> int | None:
        """The guest's own clock, in nanoseconds."""
        moment = super().now(clock)
        return None if moment is None else moment + self._offset(clock)

    def clock_time_get(self, args: int, clock: int, _precision: int, out: int) -> int:
        error = self._forward("clock_time_get", args)
        answer = self._memory.unpack(abi.U64, out) if error == abi.SUCCESS else None
        if answer is not None:
            self._memory.pack(abi.U64, out, (answer[0] + self._offset(clock)) & MOST_U64)
        return error

    def _offset(self, clock: int) -> int:
        return self.clock_offset if clock == abi.CLOCK_MONOTONIC else 0

    def open_numbers(self) -> list[int]:
        """The numbers that the guest itself holds open."""
        return sorted(number for number in self._fds if number >= self._first_own)

    def occupy(self, numbers: Iterable[int]) -> None:
        """Keep numbers that the guest held open in an earlier instance from naming other files.

        Each becomes a folder that is removed, in which nothing is found or made, until the guest closes it.
        """
        wanted = set(numbers)
        if not wanted or self._scratch is None or not self._at_gone("path_create_directory"):
            return
        surplus = []
        while wanted and len(self._fds) < self._most_fds and (opened := self._open_gone()) is not None:
            self._fds[opened] = Descriptor()
            if opened in wanted:
                wanted.discard(opened)
            else:
                surplus.append(opened)
        self._at_gone("path_remove_directory")
        for number in surplus:
            self._query("fd_close", number)
            del self._fds[number]

    def _at_gone(self, function: str) -> bool:
        return self._query(function, self._tmp, self._gone_name(), len(GONE)) == abi.SUCCESS

    def _open_gone(self) -> int | None:
        name = self._gone_name()
        answer = self._ask(abi.U32, "path_open", self._tmp, 0, name, len(GONE), abi.O_DIRECTORY, 0, 0, 0)
        return None if answer is None else int(answer[0])

    def _gone_name(self) -> int:
        address = (self._scratch or 0) + abi.FILESTAT.size
        self._memory.write(address, GONE)
        return address
