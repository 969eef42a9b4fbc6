"""What one execution did to the files of its workspace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

CODE_FILE = "user_code.py"  # the code that runs; in no list
MOST_NAME_BYTES = 64 << 20  # of the names that the host keeps for one execution


@dataclass(slots=True)
class _File:
    existed: bool  # before the execution
    exists: bool
    written: bool = False


class Journal:
    """Kept by the gate call by call, so that its cost follows what was touched and not what is there."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._name_bytes = 0

    def __contains__(self, path: str | None) -> bool:
        return path in self._files

    @property
    def room(self) -> int:
        """How many bytes of names can still be told; a guest must not fill the host's memory with them."""
        return MOST_NAME_BYTES - self._name_bytes

    @property
    def is_full(self) -> bool:
        """Whether no more files can be told."""
        return self._name_bytes > MOST_NAME_BYTES

    def wrote(self, path: str, *, existed: bool = True) -> None:
        """Content of a file was written; `existed` says whether it was there at its first mention."""
        file = self._files.get(path) or self._add(path, _File(existed=existed, exists=True))
        file.exists = file.written = True

    def removed(self, path: str) -> None:
        """A file is gone from its name."""
        file = self._files.get(path)
        if file is None:
            self._add(path, _File(existed=True, exists=False))
        elif file.existed:
            file.exists = file.written = False
        else:
            del self._files[path]
            self._name_bytes -= len(path)

    def moved(self, source: str | None, target: str | None, *, replaced: bool) -> None:
        """A file has another name, None where it cannot be told; `replaced` says whether one was there."""
        if source != target:
            if source:
                self.removed(source)
            if target:
                self.wrote(target, existed=replaced)

    def _add(self, path: str, file: _File) -> _File:
        self._files[path] = file
        self._name_bytes += len(path)
        return file

    def created(self) -> list[str]:
        """Files that were not there before."""
        return _sorted(path for path, file in self._files.items() if file.exists and not file.existed)

    def modified(self) -> list[str]:
        """Files whose content was written, new ones too."""
        return _sorted(path for path, file in self._files.items() if file.exists and file.written)

    def deleted(self) -> list[str]:
        """Files that are gone."""
        return _sorted(path for path, file in self._files.items() if file.existed and not file.exists)


def _sorted(paths: Iterable[str]) -> list[str]:
    return sorted(path for path in paths if path != CODE_FILE)
