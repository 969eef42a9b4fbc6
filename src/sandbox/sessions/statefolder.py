"""What a stateful session keeps beside its workspace.

.state/<session id>/
  interpreter.state   the last saved interpreter; replaced in one rename
  image               the memory that it differs from; one file for all sessions that share it
  lock                held by the process that is ahead of what is saved
  checkpoints/<name>/ interpreter.state, image, and workspace/ where the files were kept
.state/.images/<sha256>  the images, by content; one that no session links to is swept
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import threading
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from sandbox.errors import SessionInUse, StateUnusable
from sandbox.images import DRIVER_PROTOCOL, Image, Recipe, read_image, write_image
from sandbox.sessions import saved
from sandbox.sessions.layout import FOLDER_MODE, IMAGES_FOLDER, STATE_FOLDER

if TYPE_CHECKING:
    from pathlib import Path

    from sandbox.guests.cpython import Guest
    from sandbox.snapshots import Snapshot

STATE_FILE = "interpreter.state"
IMAGE_FILE = "image"
LOCK_FILE = "lock"
LOCK_POLL_SECONDS = 0.005
START_FRESH = "open the session with fresh_interpreter=True to keep its files and start anew"

Stamp = tuple[int, int, int]  # what changes whenever the file is replaced

_images: dict[str, Image] = {}  # by the digest of their content
_images_guard = threading.Lock()


class StateFolder:
    """The saved interpreter of one session, in its folder."""

    def __init__(self, root: Path, session_id: str, path: Path | None = None) -> None:
        self.session_id = session_id
        self._images = root / STATE_FOLDER / IMAGES_FOLDER
        self.path = path or root / STATE_FOLDER / session_id

    def make(self) -> None:
        """Make the folder where it is missing."""
        self.path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)

    def identity(self) -> tuple[int, int] | None:
        """Which folder it is; another one after the session was deleted and made again."""
        try:
            info = self.path.stat()
        except FileNotFoundError:
            return None
        return info.st_dev, info.st_ino

    def stamp(self) -> Stamp | None:
        """Which save is in place; None where there is none."""
        try:
            info = (self.path / STATE_FILE).stat()
        except FileNotFoundError:
            return None
        return info.st_ino, info.st_mtime_ns, info.st_size

    def lock(self, wait_seconds: float) -> int:
        """Become the process that may be ahead of what is saved; SessionInUse where another stays it."""
        fd = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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

    def save(self, snapshot: Snapshot, image: Image, generation: int) -> None:
        """Replace what is saved; the one before stays until the new one is whole."""
        self._keep_image(image)
        recipe = image.recipe
        header = saved.SavedHeader(
            generation,
            recipe.guest.module_sha256,
            DRIVER_PROTOCOL,
            image.header.sha256,
            recipe.preload,
            recipe.data_path,
            snapshot.size,
            len(snapshot.ranges),
            snapshot.descriptors,
            snapshot.clock_ns,
        )
        _replace(self.path / STATE_FILE, saved.encode(snapshot, header))

    def load(self, guest: Guest) -> tuple[saved.SavedHeader, Snapshot, Image] | None:
        """What is saved, with its image; None where nothing is, StateUnusable where it cannot go on."""
        try:
            data = (self.path / STATE_FILE).read_bytes()
        except FileNotFoundError:
            return None
        try:
            header, snapshot = saved.decode(data)
        except ValueError as error:
            raise self._unusable(str(error)) from None
        if (header.guest_sha256, header.protocol) != (guest.module_sha256, DRIVER_PROTOCOL):
            raise self._unusable("it was saved by another version of the runtime")
        return header, snapshot, self._find_image(header, guest)

    def discard(self) -> None:
        """Forget what is saved; files of the session stay."""
        for name in (STATE_FILE, IMAGE_FILE):
            (self.path / name).unlink(missing_ok=True)

    def link_to(self, other: StateFolder) -> None:
        """Give another folder the same save; a save is never changed in place, so both may share it."""
        other.make()
        for name in (IMAGE_FILE, STATE_FILE):
            if (self.path / name).exists():
                temporary = other.path / f".tmp-{uuid.uuid4().hex}"
                os.link(self.path / name, temporary)
                temporary.replace(other.path / name)

    def _unusable(self, reason: str) -> StateUnusable:
        return StateUnusable(self.session_id, reason, remedy=START_FRESH)

    def _keep_image(self, image: Image) -> None:
        """Have the image beside the state, so that neither a cleared cache nor another machine matters."""
        digest, mine = image.header.sha256, self.path / IMAGE_FILE
        with _images_guard:
            _images.setdefault(digest, image)
        shared = self._images / digest
        if _is_same(shared, mine):
            return
        if not shared.exists():
            self._images.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            content = io.BytesIO()
            write_image(image, content)
            _replace(shared, saved.compress_image(content.getvalue()))
        temporary = self.path / f".tmp-{uuid.uuid4().hex}"
        os.link(shared, temporary)
        temporary.replace(mine)

    def _find_image(self, header: saved.SavedHeader, guest: Guest) -> Image:
        with _images_guard:
            found = _images.get(header.image_sha256)
        if found is not None:
            return found
        recipe = Recipe(guest, header.preload, header.data_path)
        try:
            content = saved.expand_image((self.path / IMAGE_FILE).read_bytes())
            found = read_image(recipe, io.BytesIO(content))
            digest = hashlib.sha256()
            for chunk in found.chunks():
                digest.update(chunk)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._unusable(f"its image cannot be read: {error}") from None
        if digest.hexdigest() != header.image_sha256:
            raise self._unusable("its image is damaged")
        with _images_guard:
            return _images.setdefault(header.image_sha256, found)


def know_image(image: Image) -> None:
    """Remember an image of this process, so that states that differ from it find it at once."""
    with _images_guard:
        _images.setdefault(image.header.sha256, image)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except FileNotFoundError:
        return False


def _replace(target: Path, data: bytes) -> None:
    temporary = target.with_name(f".tmp-{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as stream:
            stream.write(data)
        temporary.replace(target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
