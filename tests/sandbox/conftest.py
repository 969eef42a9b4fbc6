"""Code that must succeed, and hand-written guests, in the gate and without it."""

from __future__ import annotations

import functools
import struct

import pytest
import wasmtime

from sandbox.wasm import abi
from sandbox.wasm.call import Call
from sandbox.wasm.descriptors import Mount
from sandbox.wasm.engine import engine
from sandbox.wasm.imports import define_host_functions
from sandbox.wasm.instance import Instance
from sandbox.wasm.names import HostOnlyNames
from sandbox.wasm.quota import DiskLimits
from sandbox.wasm.streams import Input, Output

TEXT = 0x1000  # where tests put names
OUT = 0x2000  # where tests have results put
PAGES = 4


def guest_text():
    """A guest that exports each function of WASI; the arguments are taken from the start of its memory."""
    imports, functions = [], []
    for name, signature in abi.SIGNATURES.items():
        kinds = ["i32" if kind == "i" else "i64" for kind in signature]
        result = "" if name == "proc_exit" else "(result i32)"
        imports.append(f'(import "{abi.WASI}" "{name}" (func ${name} (param {" ".join(kinds)}) {result}))')
        values = " ".join(f"({kind}.load (i32.const {8 * place}))" for place, kind in enumerate(kinds))
        end = "(i32.const 0)" if name == "proc_exit" else ""
        functions.append(f'(func (export "{name}") (result i32) (call ${name} {values}) {end})')
    lines = [*imports, f'(memory (export "memory") {PAGES} 16)', *functions]
    return "\n".join(["(module", *lines, ")"])


@functools.cache
def gated_program():
    chosen = engine(metered=True)
    linker = wasmtime.Linker(chosen.wasmtime)
    linker.define_wasi()
    linker.allow_shadowing = True
    define_host_functions(linker, lasting=False)
    return linker.instantiate_pre(wasmtime.Module(chosen.wasmtime, guest_text()))


@functools.cache
def plain_program():
    flavour = wasmtime.Engine()
    linker = wasmtime.Linker(flavour)
    linker.define_wasi()
    return flavour, linker.instantiate_pre(wasmtime.Module(flavour, guest_text()))


class RawGuest:
    """Calls raw functions; an answer is an error number, or "trap"."""

    def put(self, address, data):
        raise NotImplementedError

    def get(self, address, length):
        raise NotImplementedError

    def enter(self, name):
        raise NotImplementedError

    def call(self, name, *arguments):
        for place, argument in enumerate(arguments):
            self.put(8 * place, struct.pack("<Q", argument & (1 << 64) - 1))
        return self.enter(name)

    def text(self, data, address=TEXT):
        """Put a name into the memory: its address and length."""
        data = data.encode() if isinstance(data, str) else data
        self.put(address, data)
        return address, len(data)

    def number(self, address=OUT):
        return struct.unpack("<I", self.get(address, 4))[0]

    def open(self, name, *, at=3, lookup=1, flags=0, rights=(1 << 6) | (1 << 1), fdflags=0):
        """The number of an opened file, or the error number made negative."""
        error = self.call("path_open", at, lookup, *self.text(name), flags, rights, 0, fdflags, OUT)
        return self.number() if error == 0 else -error

    def write(self, fd, data, *, name="fd_write", extra=()):
        self.put(TEXT + 0x800, data)
        self.put(OUT, struct.pack("<II", TEXT + 0x800, len(data)))
        return self.call(name, fd, OUT, 1, *extra, OUT + 8)

    def read(self, fd, size):
        self.put(OUT, struct.pack("<II", TEXT + 0x800, size))
        error = self.call("fd_read", fd, OUT, 1, OUT + 8)
        return self.get(TEXT + 0x800, self.number(OUT + 8)) if error == 0 else error


class GatedGuest(RawGuest):
    def __init__(self, mounts, *, limits=None, max_open_files=8, stdin=b"", host_only=(), deadline=None):
        self._instance = Instance(engine(metered=True), gated_program(), memory_bytes=1 << 21)
        self._instance.open_world(
            mounts,
            host_only=HostOnlyNames(host_only),
            max_open_files=max_open_files,
        )
        self.gate = self._instance.gate
        self.stdout = Output("stdout", 100)
        self._call = Call(deadline=deadline)
        self._call.gate = self.gate
        streams = Input(stdin), self.stdout, Output("stderr", 100)
        self.gate.begin(self._call, streams, limits or DiskLimits())
        self.put, self.get = self._instance.memory.write, self._instance.memory.read

    def enter(self, name):
        self.ending = self._instance.enter(name, call=self._call)
        return "trap" if self.ending.status is None else self.ending.status

    def close(self):
        self._instance.close()


class PlainGuest(RawGuest):
    def __init__(self, mounts):
        flavour, program = plain_program()
        self._store = wasmtime.Store(flavour)
        world = wasmtime.WasiConfig()
        for mount in mounts:
            world.preopen_dir(mount.host_path, mount.guest_path, mount.writable)
        self._store.set_wasi(world)
        self._exports = program.instantiate(self._store).exports(self._store)

    def put(self, address, data):
        self._exports["memory"].write(self._store, data, address)

    def get(self, address, length):
        return bytes(self._exports["memory"].read(self._store, address, address + length))

    def enter(self, name):
        try:
            return self._exports[name](self._store)
        except (wasmtime.Trap, wasmtime.WasmtimeError):
            return "trap"

    def close(self):
        self._store.close()


def fill(base):
    """The same three folders for every guest: /app, /tmp and a read-only /data."""
    for name in ("app", "tmp", "data"):
        (base / name).mkdir(parents=True)
    (base / "app" / "file").write_text("content")
    (base / "app" / "folder").mkdir()
    (base / "app" / "folder" / "inner").write_text("inner")
    (base / "app" / "link").symlink_to("file")
    (base / "app" / "dangling").symlink_to("nowhere")
    (base / "app" / "out").symlink_to("/etc/passwd")
    (base / "app" / "up").symlink_to("../data/known")
    (base / "data" / "known").write_text("known")
    return [
        Mount(str(base / "app"), "/app", writable=True, journaled=True),
        Mount(str(base / "tmp"), "/tmp", writable=True),
        Mount(str(base / "data"), "/data"),
    ]


@pytest.fixture
def gated(tmp_path):
    """Makes guests in the gate; `gated.app` is the host's side of their workspace."""
    mounts, made = fill(tmp_path / "gated"), []

    def make(**options):
        made.append(GatedGuest(mounts, **options))
        return made[-1]

    make.app, make.tmp, make.data = (tmp_path / "gated" / name for name in ("app", "tmp", "data"))
    yield make
    for guest in made:
        guest.close()


@pytest.fixture
def both(tmp_path):
    """One guest in the gate and one without it, on equal folders."""
    pair = GatedGuest(fill(tmp_path / "gated"), max_open_files=64), PlainGuest(fill(tmp_path / "plain"))
    yield pair
    for guest in pair:
        guest.close()


@pytest.fixture(scope="session")
def run():
    """Runs code that must succeed, and gives what it printed."""

    def run(box, code, **options):
        result = box.execute(code, **options)
        assert (result.exit_code, result.stopped_by) == (0, None), result.stderr
        return result.stdout

    return run
