"""Warm interpreters, kept as memory that instances start from."""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import marshal
import struct
import threading
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, BinaryIO

from sandbox.errors import GuestRejected, PolicyValidationError, PreloadFailed
from sandbox.policy import DEFAULT_ENV
from sandbox.progress import progress
from sandbox.scratch import scratch
from sandbox.wasm import abi, threads
from sandbox.wasm.call import Call
from sandbox.wasm.channel import Building
from sandbox.wasm.descriptors import Mount
from sandbox.wasm.engine import engine
from sandbox.wasm.instance import Instance
from sandbox.wasm.mapping import CHUNK_BYTES, SharedMemory
from sandbox.wasm.names import HostOnlyNames
from sandbox.wasm.quota import DiskLimits
from sandbox.wasm.streams import Input, Output

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sandbox.cache import Cache
    from sandbox.events import SandboxLogger
    from sandbox.guests.cpython import Guest
    from sandbox.wasm.memory import Memory
    from sandbox.wasm.openfiles import Streams

DRIVER_PROTOCOL = 2  # raise it when a driver of an older image could not serve this host
FORMAT = 2  # raise it when the layout of an image file changes
HEADER_BYTES = 4096
BUILD_MEMORY_BYTES = 4 << 30
BUILD_OPEN_FILES = 256
BUILD_SECONDS = 3
MOST_SPARES = 8  # of one image, metered or not; each keeps at most MOST_UNDONE_BYTES
KEPT_BUILD_OUTPUT = 1 << 16
# Of CPython where a pointer has 32 bits; the count is the first field of an object.
IMMORTAL_COUNT = 5 << 28
LEAST_IMMORTAL_COUNT = 1 << 30
# Beside the policy's own: what programs look for and what no policy needs to say.
BASE_ENV = {"HOME": "/tmp", "TMPDIR": "/tmp", "MPLBACKEND": "agg", "MPLCONFIGDIR": "/tmp/matplotlib"}  # noqa: S108
# What an interpreter begins with; another one is set when it starts.
IMAGE_ENV = {**BASE_ENV, **DEFAULT_ENV}
REPORT = struct.Struct("<iB")  # exit code, flags; a text follows
OUT_OF_MEMORY, HAS_VALUE = 1, 2
MARSHAL_VERSION = 2  # one that every guest reads


@dataclass(frozen=True)
class Recipe:
    """Everything that an image is made of, so that its digest can name it."""

    guest: Guest
    preload: tuple[str, ...]
    data_path: str

    def mounts(self, *, workspace: str, tmp: str, data: str) -> list[Mount]:
        """The guest's folders, in the one order that an image remembers."""
        library = f"/usr/local/lib/{self.guest.stdlib_zip_name}"
        fonts = str(self.guest.mpl_data or self.guest.stdlib)
        return [
            Mount(str(self.guest.stdlib), "/usr/local/lib"),
            Mount(fonts, f"{library}/matplotlib/mpl-data"),
            Mount(workspace, "/app", writable=True, journaled=True),
            Mount(tmp, "/tmp", writable=True),  # noqa: S108 - the guest's, not the host's
            Mount(data, self.data_path),
        ]

    def key(self) -> str:
        """The name of the image in the cache."""
        mounts = [mount.guest_path for mount in self.mounts(workspace="", tmp="", data="")]
        guest = [self.guest.module_sha256, self.guest.stdlib_sha256, _driver_sha256()]
        made_of = [FORMAT, *guest, self.preload, mounts, IMAGE_ENV]
        return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Header:
    """What is known of an image besides its content."""

    preload: tuple[str, ...]
    sha256: str  # of the content

    @classmethod
    def read(cls, stream: BinaryIO) -> Header:
        """The header at the beginning of a file."""
        fields = json.loads(stream.read(HEADER_BYTES).rstrip(b"\0"))
        return cls(tuple(fields["preload"]), str(fields["sha256"]))

    def write(self, stream: BinaryIO) -> None:
        """Write the header, padded to its fixed size."""
        stream.write(json.dumps(asdict(self)).encode().ljust(HEADER_BYTES, b"\0"))


class Image:
    """The memory of an interpreter that has its modules imported and waits for a job."""

    def __init__(self, recipe: Recipe, chunks: Iterator[bytes], header: Header) -> None:
        self.recipe = recipe
        self.header = header
        self._memory = SharedMemory(chunks)
        self._spares: dict[tuple[bool, bool], list[Instance]] = {}

    @property
    def size(self) -> int:
        """Bytes of linear memory."""
        return self._memory.size

    def chunks(self) -> Iterator[bytes]:
        """The content, piece by piece."""
        return self._memory.chunks()

    def start(
        self,
        *,
        metered: bool,
        memory_bytes: int,
        cache: Cache | None,
        logger: SandboxLogger,
        lasting: bool = False,
    ) -> Instance:
        """A new instance that begins where the image ended; a lasting one may be captured."""
        if memory_bytes < self.size:
            raise PolicyValidationError(
                "memory_bytes", memory_bytes, f"this interpreter alone needs {self.size} bytes"
            )
        spare = self._take_spare(metered=metered, lasting=lasting)
        if spare is not None:
            spare.set_memory_limit(memory_bytes)
            return spare
        instance = _instance(
            self.recipe.guest,
            metered=metered,
            memory_bytes=memory_bytes,
            cache=cache,
            logger=logger,
            lasting=lasting,
        )
        instance.grow(self.size)
        self._memory.lay_over(instance.memory)
        return instance

    def give_back(self, instance: Instance) -> None:
        """Keep an instance for another start, with every page as in the image, or close it.

        A new instance has to fault in each page that it writes; one that is used again has them.
        """
        spares = self._spares.setdefault((instance.metered, instance.lasting), [])
        instance.close_world()
        if instance.is_sound and len(spares) < MOST_SPARES and self._memory.lay_again(instance.memory):
            spares.append(instance)
        else:
            instance.close()

    def close(self) -> None:
        """Let go of the memory; instances that started from it keep it."""
        self._memory.close()

    def _take_spare(self, *, metered: bool, lasting: bool) -> Instance | None:
        try:
            return self._spares[metered, lasting].pop()
        except (KeyError, IndexError):
            return None


class Images:
    """The images of this process, each made once per machine."""

    def __init__(self) -> None:
        self._made: dict[str, Image] = {}
        self._guard = threading.Lock()

    def get(self, recipe: Recipe, cache: Cache | None, logger: SandboxLogger) -> Image:
        """The image of a recipe: from this process, from the cache, or built now."""
        key = recipe.key()
        found = self._made.get(key)
        if found is None:
            with self._guard:
                found = self._made.get(key)
                if found is None:
                    found = self._made[key] = _find_or_build(recipe, key, cache, logger)
        return found


images = Images()


def _find_or_build(recipe: Recipe, key: str, cache: Cache | None, logger: SandboxLogger) -> Image:
    if cache is None:
        return _build(recipe, None, logger)
    name = f"image-{key}.img"
    found = _read(recipe, cache.find(name))
    if found is not None:
        return found
    with cache.lock(name):  # the one who waits finds what the other made
        found = _read(recipe, cache.find(name))
        return found or _build(recipe, cache, logger, name)


def _read(recipe: Recipe, path: Path | None) -> Image | None:
    if path is None:
        return None
    try:
        with path.open("rb") as stream:
            return read_image(recipe, stream)
    except FileNotFoundError:
        return None  # another process made room for something else


def read_image(recipe: Recipe, stream: BinaryIO) -> Image:
    """An image from a file that is known to be whole."""
    header = Header.read(stream)
    return Image(recipe, iter(partial(stream.read, CHUNK_BYTES), b""), header)


def write_image(image: Image, stream: BinaryIO) -> None:
    """Write an image to a file."""
    image.header.write(stream)
    stream.writelines(image.chunks())


def _build(recipe: Recipe, cache: Cache | None, logger: SandboxLogger, name: str = "") -> Image:
    with progress(
        logger, f"preparing Python {' '.join(recipe.preload)}".rstrip(), expected_seconds=BUILD_SECONDS
    ):
        return threads.run(lambda: _build_deep(recipe, cache, logger, name))


def _build_deep(recipe: Recipe, cache: Cache | None, logger: SandboxLogger, name: str) -> Image:
    folder = scratch.take()
    instance = _instance(
        recipe.guest, metered=True, memory_bytes=BUILD_MEMORY_BYTES, cache=cache, logger=logger
    )
    try:
        _prepare(instance, recipe, folder)
        content = [instance.memory.read(start, CHUNK_BYTES) or b"" for start in _starts(instance)]
        digest = hashlib.sha256()
        for chunk in content:
            digest.update(chunk)
        image = Image(recipe, iter(content), Header(recipe.preload, digest.hexdigest()))
        if cache is not None:
            cache.store(name, partial(write_image, image))
        return image
    finally:
        instance.close()
        scratch.give_back(folder, used=True)


def _starts(instance: Instance) -> range:
    return range(0, instance.memory.size(), CHUNK_BYTES)


def _prepare(instance: Instance, recipe: Recipe, folder: str) -> None:
    """Start the interpreter and import everything."""
    instance.open_world(
        recipe.mounts(workspace=folder, tmp=folder, data=folder),
        env=BASE_ENV,
        host_only=HostOnlyNames(),
        max_open_files=BUILD_OPEN_FILES,
    )
    _start_driver(instance, recipe.guest)
    job = {"kind": "prepare", "preload": recipe.preload, "env": IMAGE_ENV}
    report = _step(instance, recipe.guest, marshal.dumps(job, MARSHAL_VERSION))
    if report:
        module, _, reason = report[REPORT.size :].decode("utf-8", "replace").partition("\n")
        raise PreloadFailed(module, reason)


def _start_driver(instance: Instance, guest: Guest) -> None:
    streams, call = _silence(), Call()
    call.gate = instance.gate
    instance.gate.begin(call, streams, DiskLimits())
    instance.enter("_initialize", call=call)
    _step(instance, guest, _driver_file("bootstrap.py").encode())


def _step(instance: Instance, guest: Guest, job: bytes) -> bytes:
    """Have the guest do one job while an image is made; what it reported."""
    streams, call = _silence(), Call()
    building = Building(_driver_file("driver.py").encode(), partial(_make_immortal, instance.memory))
    ending = instance.run_job(job, call=call, streams=streams, limits=DiskLimits(), building=building)
    if ending.status != 0 and not call.channel.report:
        reason = f"its interpreter does not start ({streams[2].text().strip() or ending.trap})"
        raise GuestRejected(guest.module, reason, remedy="use the guest of `sandbox warmup`")
    return call.channel.report


def _make_immortal(memory: Memory, addresses: bytes) -> None:
    """Give objects, while they are alive, a reference count that CPython leaves alone from then on."""
    for (address,) in abi.U32.iter_unpack(addresses):
        count = memory.unpack(abi.U32, address)
        if count is not None and 0 < count[0] < LEAST_IMMORTAL_COUNT:
            memory.pack(abi.U32, address, IMMORTAL_COUNT)


def _silence() -> Streams:
    return Input(b""), Output("stdout", KEPT_BUILD_OUTPUT), Output("stderr", KEPT_BUILD_OUTPUT)


def _instance(
    guest: Guest,
    *,
    metered: bool,
    memory_bytes: int,
    cache: Cache | None,
    logger: SandboxLogger,
    lasting: bool = False,
) -> Instance:
    chosen = engine(metered=metered)
    program = chosen.program(guest.module, guest.module_sha256, cache, logger, lasting=lasting)
    return Instance(chosen, program, memory_bytes=memory_bytes, lasting=lasting)


@cache
def _driver_sha256() -> str:
    sources = _driver_file("bootstrap.py") + _driver_file("driver.py")
    return hashlib.sha256(sources.encode()).hexdigest()


@cache
def _driver_file(name: str) -> str:
    return importlib.resources.files("sandbox.guests.driver").joinpath(name).read_text("utf-8")
