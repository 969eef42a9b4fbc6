"""wasmtime's own WASI functions, called by the host on a guest's memory."""

from __future__ import annotations

import ctypes
from typing import Any

import wasmtime

from sandbox.wasm import abi, capi

# What the gate hands on after a look, and what it asks on its own account.
LOOKED_AT = (
    "fd_close",
    "fd_filestat_set_size",
    "fd_pwrite",
    "fd_read",
    "fd_readdir",
    "fd_write",
    "path_create_directory",
    "path_filestat_get",
    "path_filestat_set_times",
    "path_link",
    "path_open",
    "path_readlink",
    "path_remove_directory",
    "path_rename",
    "path_symlink",
    "path_unlink_file",
)
FORWARDED = (*LOOKED_AT, "clock_time_get", "fd_filestat_get", "fd_tell")
_NAMES = tuple(name.encode() for name in FORWARDED)
_COUNTS = {name: max(1, len(abi.SIGNATURES[name])) for name in FORWARDED}
_LAYOUTS = {name: abi.argument_layout(abi.SIGNATURES[name]) for name in FORWARDED}
MOST_ARGUMENTS = max(_COUNTS.values())
SERVICE_FUEL = 1_000_000


def trampoline_text() -> str:
    """A module that passes calls on; wasmtime finds the memory through the instance that calls it."""
    lines = ['(module (import "guest" "memory" (memory 0)) (export "memory" (memory 0))']
    functions = []
    for name in FORWARDED:
        kinds = ["i32" if kind == "i" else "i64" for kind in abi.SIGNATURES[name]]
        signature = f"(param {' '.join(kinds)}) (result i32)"
        lines.append(f'(import "wasi" "{name}" (func ${name} {signature}))')
        values = " ".join(f"(local.get {number})" for number in range(len(kinds)))
        functions.append(f'(func (export "{name}") {signature} (call ${name} {values}))')
    return "\n".join([*lines, *functions, ")"])


class Trampoline:
    """The compiled trampoline of one engine, with the linker that has wasmtime's functions."""

    def __init__(self, engine: wasmtime.Engine) -> None:
        self._module = wasmtime.Module(engine, trampoline_text())
        self._linker = wasmtime.Linker(engine)
        self._linker.define_wasi()
        self._addresses = capi.address(self._linker.ptr()), capi.address(self._module.ptr())

    def attach(self, context: int, memory: Any) -> capi.Exports:
        """An instance of the trampoline in a store, on the memory of its guest."""
        linker, module = self._addresses
        externs = (capi.Extern * (1 + len(_NAMES)))()
        externs[0] = memory
        functions = (capi.Extern * len(_NAMES)).from_buffer(externs, ctypes.sizeof(capi.Extern))
        capi.link(linker, context, abi.WASI.encode(), _NAMES, functions)
        return capi.Exports(context, capi.instantiate(context, module, externs, len(externs)))


def start_file_service(engine: wasmtime.Engine, trampoline: Trampoline, *, metered: bool) -> None:
    """Have wasmtime start the threads that serve files, which it has once per process.

    It would start them at a guest's first file, and end the process where no descriptor is left then.
    """
    store = wasmtime.Store(engine)
    if metered:
        store.set_fuel(SERVICE_FUEL)
    store.set_epoch_deadline(1)
    store.set_wasi(wasmtime.WasiConfig())
    memory = wasmtime.Memory(store, wasmtime.MemoryType(wasmtime.Limits(1, 1)))
    extern = memory._as_extern()  # noqa: SLF001 - the C API takes it, and it has no public name
    Forwards(trampoline, capi.context_of(store), extern).query("fd_filestat_get", 0, 0)
    store.close()


class Forwards:
    """The forwarded functions of one guest, made when the first is needed: many executions need none."""

    def __init__(self, trampoline: Trampoline, context: int, memory: Any) -> None:
        self._trampoline = trampoline
        self._context = context
        self._memory = memory
        self._exports: capi.Exports | None = None
        self._handles: dict[str, tuple[Any, int]] = {}
        self._values = ctypes.create_string_buffer(MOST_ARGUMENTS * capi.VALUE_BYTES)
        self._address = ctypes.addressof(self._values)

    def call(self, name: str, values: int) -> int:
        """Pass a guest's call on with its own arguments; the answer replaces the first of them."""
        error, trap = capi.call(self._context, self._handle(name), values, _COUNTS[name])
        if error or trap:  # fuel, an epoch, or a pointer that wasmtime refuses
            capi.raise_ending(error, trap)
        return ctypes.c_int32.from_address(values).value

    def query(self, name: str, *arguments: int) -> int:
        """Call one of the functions on the host's own account."""
        _LAYOUTS[name].pack_into(self._values, 0, *arguments)
        return self.call(name, self._address)

    def _handle(self, name: str) -> int:
        handle = self._handles.get(name)
        if handle is None:
            if self._exports is None:
                self._exports = self._trampoline.attach(self._context, self._memory)
            handle = self._handles[name] = self._exports.handle(name.encode())
        return handle[1]
