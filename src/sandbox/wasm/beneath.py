"""Names beneath an open folder, found without ever leaving it."""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from typing import TYPE_CHECKING, Self

from sandbox.wasm import abi
from sandbox.wasm.call import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sandbox.wasm.descriptors import Descriptor

MOST_LINKS = 40  # followed on one way, as on Linux
LONGEST_PATH = 4096  # of Linux; what lies deeper has no path that anybody could use
_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_STEP = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Walk:
    """The way from an open folder to where a path ends: a name in a folder that stays open meanwhile.

    Every step opens one name in the folder before it and follows no link; a link is read, checked
    and walked like the path itself, and `..` goes back the way it came. So whatever is renamed or
    replaced meanwhile, nothing above the folder is reached, and no name that was not checked.
    """

    __slots__ = (
        "_hidden_error",
        "_hides",
        "_keep_going",
        "_names",
        "at",
        "folder",
        "info",
        "must_be_folder",
        "name",
    )

    def __init__(
        self,
        at: Descriptor,
        *,
        hides: Callable[[bytes], bool],
        hidden_error: int,
        keep_going: Callable[[], object],
    ) -> None:
        self.at = at
        self._hides = hides
        self._hidden_error = hidden_error
        self._keep_going = keep_going
        self._names: list[bytes] = []
        self.folder = at.host
        self.name = b"."
        self.info: os.stat_result | None = None  # of what is there, a link not followed
        self.must_be_folder = False  # the path ends with a slash

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._change_folder(self.at.host)

    def go(self, path: bytes, *, follow: bool, follow_slash: bool = True) -> Self:
        """Walk to the end of a path; a link there is followed where `follow` or a slash behind it says so."""
        if not path:
            raise Refusal(abi.ENOENT)
        pending, links = self._parts(path, last=True), 0
        while pending:
            self._keep_going()
            part = pending.pop()
            if part == b"..":
                self._go_back()
            elif pending:
                links += self._step(part, pending)
            else:
                self.name, self.info = part, _look(part, self.folder)
                if (
                    self.info is None
                    or not stat.S_ISLNK(self.info.st_mode)
                    or not (follow or (follow_slash and self.must_be_folder))
                ):
                    break
                self.name, links = b".", links + 1
                pending += self._parts(os.readlink(part, dir_fd=self.folder), last=True)
            if links > MOST_LINKS:
                raise Refusal(abi.ELOOP)
        else:
            self.info = os.fstat(self.folder)
        if self.must_be_folder and self.info is not None and not stat.S_ISDIR(self.info.st_mode):
            raise Refusal(abi.ENOTDIR)
        return self

    def path(self) -> str | None:
        """Where that is in the mount, for the report; None where that cannot be told."""
        if self.at.path is None:
            return None
        names = self._names if self.name == b"." else [*self._names, self.name]
        path = posixpath.join(self.at.path, b"/".join(names).decode("utf-8", "replace"))
        return path.rstrip("/") if len(path) <= LONGEST_PATH else None

    def _parts(self, path: bytes, *, last: bool) -> list[bytes]:
        """The names of a path, the first one last."""
        if self._hides(path):
            raise Refusal(self._hidden_error)
        if path.startswith(b"/"):
            raise Refusal(abi.EPERM)
        parts = path.split(b"/")
        if last and parts[-1] in (b"", b"."):
            self.must_be_folder = True
        return [part for part in reversed(parts) if part not in (b"", b".")]

    def _step(self, part: bytes, pending: list[bytes]) -> int:
        """Go into a folder, or put what a link says in front of the rest; how many links that was."""
        try:
            folder = os.open(part, _STEP, dir_fd=self.folder)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            pending += self._parts(_read_link(part, self.folder, error), last=False)
            return 1
        self._names.append(part)
        self._change_folder(folder)
        return 0

    def _go_back(self) -> None:
        """Go to the folder before, by walking there again: `..` may lead out by now, after a rename."""
        if not self._names:
            raise Refusal(abi.EPERM)
        names = self._names[:-1]
        self._names = []
        self._change_folder(self.at.host)
        for name in names:
            self._keep_going()
            self._change_folder(os.open(name, _STEP, dir_fd=self.folder))
            self._names.append(name)

    def _change_folder(self, folder: int) -> None:
        before, self.folder = self.folder, folder
        if before != self.at.host:
            os.close(before)


def _look(name: bytes, folder: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _read_link(name: bytes, folder: int, refused: OSError) -> bytes:
    """What a link says; where it is none, the error of whoever took it for one."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        raise refused from None


def files_below(
    folder: int, name: bytes, *, hides: Callable[[bytes], bool], keep_going: Callable[[], object]
) -> Iterator[str]:
    """What follows a folder's path in the paths of its files; no link is followed, nothing hidden told."""
    pending = [name]
    while pending:
        path = pending.pop()
        try:
            opened = open_below(folder, path.split(b"/"))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            continue  # gone meanwhile, replaced, or not ours to read
        try:
            with os.scandir(opened) as entries:
                for entry in entries:
                    keep_going()
                    below = path + b"/" + os.fsencode(entry.name)
                    if len(below) > LONGEST_PATH or hides(below[len(name) :]):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(below)
                    else:
                        yield below[len(name) :].decode("utf-8", "replace")
        finally:
            os.close(opened)


def open_below(folder: int, names: Iterable[str | bytes]) -> int:
    """Open a folder name by name, because a link that has just taken the place of one could lead out."""
    at = folder
    for name in names:
        try:
            below = os.open(name, _READ, dir_fd=at)
        finally:
            if at != folder:
                os.close(at)
        at = below
    return at
