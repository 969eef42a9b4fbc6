"""The archive format of a session: a tar of `session.json`, `workspace/` and `state/`, compressed with zstd.

Only what a session can hold is read back: regular files, folders, and symlinks that stay inside.
Headers are read one by one with bounded sizes, because a hostile archive may claim anything.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import tarfile
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sandbox import tree
from sandbox.errors import ArchiveRejected
from sandbox.sessions.layout import METADATA_NAME
from sandbox.wasm.names import HostOnlyNames

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MANIFEST, WORKSPACE, STATE = "session.json", "workspace", "state"
MAX_NAME_BYTES = 64 * 1024
MAX_DEPTH = 256
MAX_MANIFEST_BYTES = 64 * 1024
MAX_WINDOW_LOG = 27  # a decompressor needs as much memory as the window: 128 MiB
MAX_TAIL_BYTES = 64 * 1024
MAX_MTIME = 2**33  # seconds, the year 2242: what every file system takes

Kind = Literal["file", "folder", "link"]

_HIDDEN = HostOnlyNames()
_LONG_TYPES = {tarfile.GNUTYPE_LONGNAME: "name", tarfile.GNUTYPE_LONGLINK: "linkname"}
_KINDS: dict[bytes, Kind] = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "link",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """How much an archive may unpack to."""

    max_bytes: int
    max_files: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One checked entry; `parts` begin with `session.json`, `workspace` or `state`."""

    kind: Kind
    parts: tuple[str, ...]
    size: int
    mode: int
    mtime: int
    target: str


class Writer:
    """Adds folders to an archive; what must not come back is left out and told."""

    def __init__(self, stream: zstd.ZstdFile) -> None:
        self._tar = tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT)  # noqa: SIM115
        self.left_out: list[str] = []

    def add_manifest(self, data: bytes) -> None:
        info = tarfile.TarInfo(MANIFEST)
        info.size = len(data)
        self._tar.addfile(info, io.BytesIO(data))

    def add_tree(self, prefix: str, fd: int) -> None:
        """Everything below a folder that nobody changes meanwhile."""
        for folder in tree.walk(fd, skip=_HIDDEN.hides_name):
            if len(folder.parts) > MAX_DEPTH:
                raise OSError(errno.ENAMETOOLONG, f"folders are nested deeper than {MAX_DEPTH}")
            self._add_folder(prefix, folder)

    def close(self) -> None:
        self._tar.close()

    def _add_folder(self, prefix: str, folder: tree.Folder) -> None:
        self._add((prefix, *folder.parts), folder.fd, tarfile.DIRTYPE)
        for entry in sorted(folder.files, key=lambda one: one.name):
            if not _HIDDEN.hides_name(entry.name) or (*folder.parts, entry.name) == (METADATA_NAME,):
                with tree.closing_fd(tree.open_file(entry.name, folder.fd)) as fd:
                    self._add((prefix, *folder.parts, entry.name), fd, tarfile.REGTYPE)
        for name in sorted(folder.links):
            self._add_link((prefix, *folder.parts, name), os.readlink(name, dir_fd=folder.fd))
        self.left_out += ["/".join((*folder.parts, name)) for name in folder.others]

    def _add(self, parts: tuple[str, ...], fd: int, kind: bytes) -> None:
        status = os.fstat(fd)
        info = tarfile.TarInfo("/".join(parts))
        info.type, info.mode, info.mtime = kind, status.st_mode & 0o777, int(status.st_mtime)
        if kind == tarfile.DIRTYPE:
            self._tar.addfile(info)
            return
        info.size = status.st_size
        with os.fdopen(os.dup(fd), "rb") as stream:
            self._tar.addfile(info, stream)

    def _add_link(self, parts: tuple[str, ...], target: str) -> None:
        if not stays_inside(parts[1:], target):
            self.left_out.append("/".join(parts[1:]))
            return
        info = tarfile.TarInfo("/".join(parts))
        info.type, info.linkname = tarfile.SYMTYPE, target
        self._tar.addfile(info)


class Reader:
    """The entries of an archive, checked one by one; everything wrong is ArchiveRejected."""

    def __init__(self, archive: Path, stream: zstd.ZstdFile, limits: Limits) -> None:
        self._archive, self._stream, self._limits = archive, stream, limits
        self._bytes_left, self._files_left = limits.max_bytes, limits.max_files
        self._unread = 0

    def __iter__(self) -> Iterator[Entry]:
        while (info := self._next_header()) is not None:
            entry = self._check(info)
            self._charge(entry)
            self._unread = entry.size
            yield entry
            while self._unread:
                self.read()
            self._skip_padding(entry.size)
        self._read_to_end()

    def read(self) -> bytes:
        """The next bytes of the entry at hand; empty at its end."""
        if not self._unread:
            return b""
        data = self._exactly(min(self._unread, tree.COPY_CHUNK_BYTES))
        self._unread -= len(data)
        return data

    def rejected(self, reason: str) -> ArchiveRejected:
        return ArchiveRejected(self._archive, reason)

    def _next_header(self) -> tarfile.TarInfo | None:
        long: dict[str, str] = {}
        while True:
            info = self._header()
            if info is None:
                return None
            field = _LONG_TYPES.get(info.type)
            if field is None:
                info.name, info.linkname = long.get("name", info.name), long.get("linkname", info.linkname)
                return info
            if not 0 < info.size <= MAX_NAME_BYTES:
                raise self.rejected("it has a name that is too long")
            self._charge_bytes(info.size)  # names may follow names without end
            text = self._exactly(info.size).rstrip(b"\0")
            self._skip_padding(info.size)
            long[field] = text.decode("utf-8", "surrogateescape")

    def _header(self) -> tarfile.TarInfo | None:
        block = self._exactly(tarfile.BLOCKSIZE)
        if not block.strip(b"\0"):
            return None
        try:
            return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.TarError as error:
            raise self.rejected(f"it is damaged: {error}") from None

    def _check(self, info: tarfile.TarInfo) -> Entry:
        kind = _KINDS.get(info.type)
        shown = info.name[:200]
        if kind is None:
            raise self.rejected(f"{shown!r} is neither a file, a folder nor a symlink")
        if info.size < 0 or (kind != "file" and info.size):
            raise self.rejected(f"{shown!r} has an impossible size")
        parts = tuple(info.name.removesuffix("/").split("/"))
        problem = _problem(kind, parts, info.linkname)
        if problem:
            raise self.rejected(f"{shown!r} {problem}")
        mtime = min(max(0, int(info.mtime)), MAX_MTIME)
        return Entry(kind, parts, info.size, info.mode & 0o777, mtime, info.linkname)

    def _charge(self, entry: Entry) -> None:
        self._charge_bytes(entry.size)
        self._files_left -= 1
        if self._files_left < 0:
            raise self.rejected(f"it holds more than {self._limits.max_files} files")

    def _charge_bytes(self, count: int) -> None:
        self._bytes_left -= count
        if self._bytes_left < 0:
            raise self.rejected(f"it unpacks to more than {self._limits.max_bytes} bytes")

    def _skip_padding(self, size: int) -> None:
        self._exactly(-size % tarfile.BLOCKSIZE)

    def _read_to_end(self) -> None:
        # To the end of the compressed data, where its checksum is; tar pads with a few zeros.
        if len(self._some(MAX_TAIL_BYTES)) == MAX_TAIL_BYTES:
            raise self.rejected("it goes on after its end")

    def _exactly(self, count: int) -> bytes:
        data = self._some(count)
        if len(data) < count:
            raise self.rejected("it ends too early")
        return data

    def _some(self, count: int) -> bytes:
        try:
            chunks = []
            while count and (chunk := self._stream.read(count)):
                chunks.append(chunk)
                count -= len(chunk)
            return b"".join(chunks)
        except (EOFError, zstd.ZstdError) as error:
            raise self.rejected(f"it is damaged: {error}") from None


@contextmanager
def compressing(fd: int) -> Iterator[zstd.ZstdFile]:
    """A stream whose bytes end up compressed, with a checksum, in an open file."""
    options: dict[int, int] = {zstd.CompressionParameter.checksum_flag: 1}
    with os.fdopen(os.dup(fd), "wb") as raw, zstd.ZstdFile(raw, "wb", options=options) as stream:
        yield stream


@contextmanager
def decompressing(archive: Path) -> Iterator[zstd.ZstdFile]:
    """The bytes that a compressed file stands for."""
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: MAX_WINDOW_LOG}
    with archive.open("rb") as raw, zstd.ZstdFile(raw, "rb", options=options) as stream:
        yield stream


def stays_inside(parts: tuple[str, ...], target: str) -> bool:
    """Whether a symlink at `parts` cannot lead out, whatever other such links lie on its way.

    Going up is allowed at the beginning only: after a name it may start from another link's end.
    """
    steps = [step for step in target.split("/") if step not in {"", "."}]
    ups = 0
    while ups < len(steps) and steps[ups] == "..":
        ups += 1
    inside = ups < len(parts) and ".." not in steps[ups:]
    return inside and bool(target) and not target.startswith("/") and "\0" not in target


def _problem(kind: Kind, parts: tuple[str, ...], target: str) -> str | None:
    """What makes an entry unacceptable; None where nothing does."""
    if parts == (MANIFEST,):
        return None if kind == "file" else "is not a file"
    if parts[0] not in {WORKSPACE, STATE} or any(part in {"", ".", ".."} or "\0" in part for part in parts):
        return "is not a path inside a session"
    if len(parts) > MAX_DEPTH + 2:
        return f"is nested deeper than {MAX_DEPTH} folders"
    if len(parts) == 1 and kind != "folder":
        return "is not a folder"
    is_metadata = parts == (WORKSPACE, METADATA_NAME) and kind == "file"
    if not is_metadata and any(map(_HIDDEN.hides_name, parts)):
        return "has a name that is kept for the host"
    if kind == "link" and (parts[0] == STATE or not stays_inside(parts[1:], target)):
        return "is a symlink that leads out of the session"
    return None
