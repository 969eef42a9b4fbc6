"""What a stateful session keeps beside its workspace.

.state/<session id>/
  interpreter.state   the last saved interpreter; replaced in one rename
  image               the memory that it differs from; one file for all sessions that share it
  lock                held by the process that is ahead of what is saved
  checkpoints/<name>/ interpreter.state, image, and workspace/ where the files were kept
.state/.images/<identity>  the images; one that no session links to is swept
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import threading
import time
import uuid
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING

from sandbox import tree
from sandbox.errors import PolicyValidationError, SessionInUse, StateUnusable
from sandbox.images import (
    DRIVER_PROTOCOL,
    HEADER_BYTES,
    Image,
    Recipe,
    read_image,
    write_image,
)
from sandbox.replacement import replacing
from sandbox.sessions import saved
from sandbox.sessions.layout import FOLDER_MODE, IMAGES_FOLDER, STATE_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from sandbox.guests.cpython import Guest
    from sandbox.snapshots import Snapshot

STATE_FILE = "interpreter.state"
IMAGE_FILE = "image"
LOCK_FILE = "lock"
TEMPORARY_PREFIX = ".tmp-"  # of a file on its way in
FILE_MODE = 0o600
LOCK_POLL_SECONDS = 0.005
COPY_BYTES = 1 << 20
MOST_SHARED_BYTES = 64 << 20  # of saves that forks share, kept expanded in memory
START_FRESH = "open the session with fresh_interpreter=True to keep its files and start anew"
# A file system without hard links, or without room for another one.
_NO_LINK = {errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EXDEV, errno.ENOSYS}

Stamp = tuple[int, ...]  # what changes whenever a file is replaced

_images: dict[str, Image] = {}  # by their identity
_images_guard = threading.Lock()
_sharing = threading.Lock()
_shared_saves: OrderedDict[Stamp, tuple[saved.SavedHeader, Snapshot]] = OrderedDict()
_shared_guard = threading.Lock()


class StateFolder:
    """The saved interpreter of one session, in its folder."""

    def __init__(self, root: Path, session_id: str, path: Path | None = None) -> None:
        self.session_id = session_id
        self._images = root / STATE_FOLDER / IMAGES_FOLDER
        self.path = path or root / STATE_FOLDER / session_id

    def make(self) -> None:
        """Make the folder where it is missing."""
        if not self.path.is_dir():
            self.path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)

    def lock(self, wait_seconds: float) -> int:
        """Become the process that may be ahead of what is saved; SessionInUse where another stays it."""
        fd = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        deadline = time.monotonic() + wait_seconds
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(fd)
                    raise SessionInUse(self.session_id) from None
                time.sleep(LOCK_POLL_SECONDS)
            else:
                return fd

    def is_locked_by(self, fd: int) -> bool:
        """Whether a lock is still this folder's: a session may be deleted and made again meanwhile."""
        try:
            there = (self.path / LOCK_FILE).stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(fd))

    def mark(self) -> tuple[Stamp | None, Stamp | None]:
        """Which folder it is, and which save is in place."""
        # The lock file is made with the folder and never changed: unlike the folder's own number,
        # the moment of its making does not come again.
        return _stamp(self.path / LOCK_FILE), _stamp(self.path / STATE_FILE)

    def has_save(self) -> bool:
        """Whether an interpreter is saved here."""
        return (self.path / STATE_FILE).exists()

    def save(
        self,
        snapshot: Snapshot,
        image: Image,
        generation: int,
        *,
        lock: int,
        dense: bool = True,
        shared: bool = False,
    ) -> bool:
        """Replace what is saved; the one before stays until the new one is whole.

        False, and nothing saved, where `lock` is not this folder's any more. `dense` takes longer;
        `shared` says that forks will read it at once.
        """
        header = _header(snapshot, image, generation)
        pieces = saved.encode(snapshot, header, dense=dense)
        try:
            with tree.closing_fd(tree.open_folder(self.path)) as fd:
                # From here on by descriptor: what is deleted now takes the save along.
                if not self.is_locked_by(lock):
                    return False
                self._keep_image(image, fd)
                _write(STATE_FILE, pieces, fd)
            if shared:
                _remember(self.path / STATE_FILE, header, snapshot)
        except FileNotFoundError:
            if self.is_locked_by(lock):
                raise
            return False
        return True

    def load(self, guest: Guest, memory_bytes: int) -> tuple[saved.SavedHeader, Snapshot, Image] | None:
        """What is saved, with its image; None where nothing is, StateUnusable where it cannot go on."""
        found = _recall(self.path / STATE_FILE) or self._read(guest, memory_bytes)
        if found is None:
            return None
        header, snapshot = found
        self._check(header, guest, memory_bytes)
        return header, snapshot, self._find_image(header, guest)

    def _read(self, guest: Guest, memory_bytes: int) -> tuple[saved.SavedHeader, Snapshot] | None:
        try:
            data = (self.path / STATE_FILE).read_bytes()
        except FileNotFoundError:
            return None
        try:
            self._check(saved.decode_header(data), guest, memory_bytes)
            return saved.decode(data)
        except PolicyValidationError:
            raise
        except ValueError as error:
            raise self._unusable(str(error)) from None

    def _check(self, header: saved.SavedHeader, guest: Guest, memory_bytes: int) -> None:
        if (header.guest_sha256, header.protocol) != (guest.module_sha256, DRIVER_PROTOCOL):
            raise self._unusable("it was saved by another version of the runtime")
        # Before it is expanded: a small file can claim gigabytes.
        if header.size > memory_bytes:
            needs = f"the saved interpreter alone needs {header.size} bytes"
            raise PolicyValidationError("memory_bytes", memory_bytes, needs)

    def discard(self) -> None:
        """Forget what is saved; files of the session stay."""
        for name in (STATE_FILE, IMAGE_FILE):
            (self.path / name).unlink(missing_ok=True)

    def link_to(self, other: StateFolder) -> None:
        """Give another folder the same save; a save is never changed in place, so both may share it."""
        other.make()
        for name in (IMAGE_FILE, STATE_FILE):
            if (self.path / name).exists():
                with tree.closing_fd(tree.open_folder(other.path)) as fd:
                    _link(self.path / name, name, fd)

    def _unusable(self, reason: str) -> StateUnusable:
        return StateUnusable(self.session_id, reason, remedy=START_FRESH)

    def _keep_image(self, image: Image, folder_fd: int) -> None:
        """Have the image beside the state, so that neither a cleared cache nor another machine matters."""
        know_image(image)
        shared = self._images / identity(image)
        while not _is_same(shared, folder_fd):
            self._share_image(image, shared)
            try:
                _link(shared, IMAGE_FILE, folder_fd)
            except FileNotFoundError:
                if shared.exists():  # it was not swept in between: the session's own folder is gone
                    raise
            else:
                return

    def _share_image(self, image: Image, shared: Path) -> None:
        with _sharing:
            if shared.exists():
                return
            self._images.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            content = io.BytesIO()
            write_image(image, content)
            with tree.closing_fd(tree.open_folder(self._images)) as images_fd:
                _write_new(shared.name, saved.compress(content.getvalue()), images_fd)

    def _find_image(self, header: saved.SavedHeader, guest: Guest) -> Image:
        with _images_guard:
            found = _images.get(header.image)
        if found is not None:
            return found
        try:
            content = saved.expand((self.path / IMAGE_FILE).read_bytes(), header.size + HEADER_BYTES)
            found = read_image(Recipe(guest, header.preload, header.data_path), io.BytesIO(content))
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise self._unusable(f"its image cannot be read: {error}") from None
        if not _is_genuine(found, content[HEADER_BYTES:]) or identity(found) != header.image:
            found.close()
            raise self._unusable("its image is damaged")
        return know_image(found)


def identity(image: Image) -> str:
    """What names an image: its content, and all that is needed to go on from it.

    The content alone would let one session's file change the mounts of another's.
    """
    recipe, header = image.recipe, image.header
    made_of = [header.sha256, recipe.guest.module_sha256, recipe.preload, recipe.data_path]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()


def know_image(image: Image) -> Image:
    """Remember an image of this process, so that states that differ from it find it at once."""
    with _images_guard:
        return _images.setdefault(identity(image), image)


def _header(snapshot: Snapshot, image: Image, generation: int) -> saved.SavedHeader:
    recipe = image.recipe
    return saved.SavedHeader(
        generation,
        recipe.guest.module_sha256,
        DRIVER_PROTOCOL,
        identity(image),
        recipe.preload,
        recipe.data_path,
        snapshot.size,
        len(snapshot.pieces),
        snapshot.descriptors,
        snapshot.clock_ns,
    )


def _is_genuine(image: Image, content: bytes) -> bool:
    return hashlib.sha256(content).hexdigest() == image.header.sha256


def _remember(path: Path, header: saved.SavedHeader, snapshot: Snapshot) -> None:
    """Keep a save for the forks that have it under other names, and for as long as there is room."""
    stamp = _stamp(path)
    with _shared_guard:
        if stamp is not None:
            _shared_saves[stamp] = header, snapshot
        while sum(kept.bytes for _, kept in _shared_saves.values()) > MOST_SHARED_BYTES:
            _shared_saves.popitem(last=False)


def _recall(path: Path) -> tuple[saved.SavedHeader, Snapshot] | None:
    stamp = _stamp(path)
    with _shared_guard:
        return None if stamp is None else _shared_saves.get(stamp)


def _stamp(path: Path) -> Stamp | None:
    try:
        info = path.stat()
    except FileNotFoundError:
        return None
    return info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size


def _is_same(shared: Path, folder_fd: int) -> bool:
    try:
        return os.path.samestat(shared.stat(), os.stat(IMAGE_FILE, dir_fd=folder_fd))
    except FileNotFoundError:
        return False


def _write(name: str, pieces: Iterable[bytes], folder_fd: int, *, overwrite: bool = True) -> None:
    with (
        replacing(name, folder_fd, TEMPORARY_PREFIX, overwrite=overwrite, mode=FILE_MODE) as fd,
        os.fdopen(fd, "wb", closefd=False) as stream,
    ):
        stream.writelines(pieces)


def _write_new(name: str, data: bytes, folder_fd: int) -> None:
    """Write a file unless there is one: a file that is replaced cannot be linked to at that moment."""
    try:
        _write(name, [data], folder_fd, overwrite=False)
    except FileExistsError:
        pass  # another process was faster
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        _write(name, [data], folder_fd)


def _link(source: Path, name: str, folder_fd: int) -> None:
    """Give a file another name, in place of what has it; a copy where the file system has no links."""
    temporary = f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    try:
        os.link(source, temporary, dst_dir_fd=folder_fd)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        with source.open("rb") as stream:
            _write(name, iter(lambda: stream.read(COPY_BYTES), b""), folder_fd)
        return
    os.replace(temporary, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
    with suppress(FileNotFoundError):  # it is still there where both names are of the same file
        os.unlink(temporary, dir_fd=folder_fd)
