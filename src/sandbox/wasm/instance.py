"""One instance of a guest, from its store to its end."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wasmtime

from sandbox.errors import EngineUnusable, WorkspaceUnusable
from sandbox.wasm import capi
from sandbox.wasm.call import Call, on_epoch
from sandbox.wasm.channel import Channel
from sandbox.wasm.engine import Engine, check_process, watchdog
from sandbox.wasm.gate import Gate
from sandbox.wasm.lasting import LastingGate
from sandbox.wasm.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandbox.wasm.channel import Building
    from sandbox.wasm.descriptors import Mount
    from sandbox.wasm.names import HostOnlyNames
    from sandbox.wasm.openfiles import Streams
    from sandbox.wasm.quota import DiskLimits

UNLIMITED_FUEL = (1 << 63) - 1
PAGE_BYTES = 64 << 10  # a WebAssembly page
MOST_ARGUMENTS = 4
MOST_MEMORY_BYTES = 4 << 30  # that a guest can address


@dataclass(frozen=True)
class Ending:
    """How one call into the guest ended."""

    status: int | None = None  # what the export answered
    exit_code: int | None = None  # what the guest gave proc_exit
    stopped_by: str | None = None
    trap: str = ""


class Instance:
    """A guest with its memory; after a trap or a stop it can only be closed.

    Entered by one thread at a time, which needs a deep stack.
    """

    gate: Gate  # while it has a world

    def __init__(
        self, engine: Engine, program: wasmtime.InstancePre, *, memory_bytes: int, lasting: bool = False
    ) -> None:
        check_process()
        self._engine = engine
        self.metered = engine.metered
        self.lasting = lasting  # whether its memory may outlive it
        self._store = wasmtime.Store(engine.wasmtime)
        self._context = capi.context_of(self._store)
        self.set_memory_limit(memory_bytes)
        self.set_fuel(UNLIMITED_FUEL)
        capi.watch_epochs(self._store, on_epoch)
        self._exports = capi.Exports(self._context, _instantiate(program, self._store))
        self._functions: dict[bytes, tuple[Any, int]] = {}
        self._memory_handle = self._exports.handle(b"memory")
        self.memory = Memory(self._context, self._memory_handle)
        self._values = ctypes.create_string_buffer(MOST_ARGUMENTS * capi.VALUE_BYTES)
        self.is_sound = True  # every call so far came back by itself, so the stack is empty

    def set_memory_limit(self, size: int) -> None:
        """How large the memory may grow."""
        self._store.set_limits(memory_size=min(size, MOST_MEMORY_BYTES))

    def grow(self, size: int) -> None:
        """Make the memory at least this large; MemoryError past its limit."""
        missing = size - self.memory.size()
        if missing > 0 and not capi.grow(self._context, self._memory_handle[1], -(-missing // PAGE_BYTES)):
            raise MemoryError

    def open_world(
        self,
        mounts: Sequence[Mount],
        *,
        host_only: HostOnlyNames,
        max_open_files: int,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Give the guest its folders; wasi-libc knows them by their order from its start on."""
        # What wasmtime itself answers: clocks, randomness, and the environment, which is read once.
        world = wasmtime.WasiConfig()
        if env is not None:
            world.argv = ["python"]
            world.env = list(env.items())
        self._store.set_wasi(world)
        try:
            self.gate = (LastingGate if self.lasting else Gate)(
                memory=self.memory, mounts=mounts, host_only=host_only, max_open_files=max_open_files
            )
        except OSError as error:
            mount = next(mount for mount in mounts if mount.host_path == error.filename)
            reason = f"the guest is to see it at {mount.guest_path}, and opening it fails: {error.strerror}"
            raise WorkspaceUnusable(Path(mount.host_path), reason) from None

    def close_world(self) -> None:
        """Take the folders away again; every file that the guest held open is closed."""
        if hasattr(self, "gate"):
            self.gate.close()

    def set_fuel(self, fuel: int) -> None:
        """How many instructions the guest may run from now on."""
        if self._engine.metered:
            capi.set_fuel(self._context, fuel)

    def fuel(self) -> int:
        """How many instructions are left."""
        return capi.get_fuel(self._context) if self._engine.metered else 0

    def enter(self, export: str, *arguments: int, call: Call) -> Ending:
        """Call an export and wait for its end; raises only what the host's own functions raised."""
        check_process()
        capi.set_epoch_deadline(self._context, 1)
        if call.stopped_by is not None:  # asked to end when there was no deadline yet to be reached
            capi.set_epoch_deadline(self._context, 0)
        watchdog.add(call)
        try:
            with call:
                error, trap = self._call(export.encode(), arguments, self._values)
        finally:
            watchdog.remove(call)
        return self._ending(call, error, trap)

    def run_job(
        self,
        job: bytes,
        *,
        call: Call,
        streams: Streams,
        limits: DiskLimits,
        building: Building | None = None,
    ) -> Ending:
        """Hand a job to the driver in the guest; to one that has none yet, a line of Python."""
        call.channel = Channel(self.memory, self.allocate, building)
        call.gate = self.gate
        self.gate.begin(call, streams, limits)
        try:
            with call:
                place = self.allocate(len(job))
        except (wasmtime.Trap, wasmtime.WasmtimeError) as cause:  # less fuel than this takes
            self.is_sound = False
            return _trapped(cause)
        if not place or not self.memory.write(place, job):
            return Ending(stopped_by="memory")
        return self.enter("turn", place, len(job), call=call)

    def allocate(self, size: int) -> int:
        """A place in guest memory, 0 where there is none; the guest frees it."""
        # Values of its own: the guest allocates in the middle of other calls, too.
        values = ctypes.create_string_buffer(capi.VALUE_BYTES)
        capi.raise_ending(*self._call(b"host_alloc", (size,), values))
        return ctypes.c_uint32.from_buffer(values).value

    def _call(self, export: bytes, arguments: tuple[int, ...], values: Any) -> tuple[int, int]:
        handle = self._functions.get(export)
        if handle is None:
            handle = self._functions[export] = self._exports.handle(export)
        for number, argument in enumerate(arguments):
            ctypes.c_uint32.from_buffer(values, number * capi.VALUE_BYTES).value = argument
        count = max(1, len(arguments))
        return capi.call(self._context, handle[1], ctypes.addressof(values), count)

    def _ending(self, call: Call, error: int, trap: int) -> Ending:
        cause = call.trap
        try:
            capi.raise_ending(error, trap)
        except (wasmtime.Trap, wasmtime.WasmtimeError) as raised:
            raised.__traceback__ = None  # its frames would keep the store alive
            cause = cause or raised
        self.is_sound = self.is_sound and cause is None
        if call.failure is not None:
            raise call.failure
        if cause is None:
            return Ending(status=ctypes.c_int32.from_buffer(self._values).value)
        if call.exit_code is not None:
            return Ending(exit_code=call.exit_code)
        if call.stopped_by is not None:
            return Ending(stopped_by=call.stopped_by)
        return _trapped(cause)

    def close(self) -> None:
        """Give back the memory and the open files; may be called twice."""
        self.close_world()
        self._store.close()


def _instantiate(program: wasmtime.InstancePre, store: wasmtime.Store) -> Any:
    try:
        return program.instantiate(store)._instance  # noqa: SLF001 - it has no public handle
    except wasmtime.WasmtimeError as error:
        reason = str(error).splitlines()[0]
        raise EngineUnusable(
            f"there is no room for another guest in this process ({reason})",
            remedy="let others end first, or lift the limit on its address space (ulimit -v)",
        ) from None


def _trapped(cause: Exception) -> Ending:
    code = cause.trap_code if isinstance(cause, wasmtime.Trap) else None
    if code is wasmtime.TrapCode.OUT_OF_FUEL:
        return Ending(stopped_by="fuel")
    name = code.name.lower().replace("_", " ") if code else str(cause).strip().splitlines()[-1].strip()
    return Ending(stopped_by="trap", trap=name)
