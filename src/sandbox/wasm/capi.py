"""wasmtime's C API, where its Python layer is slow or shares state between threads."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_bool, c_char_p, c_int32, c_size_t, c_uint8, c_uint64, c_void_p
from typing import Any

import wasmtime
from wasmtime import _ffi as ffi  # the C API has no public Python name

# A host function: (env, caller, arguments and results, how many) -> a trap, or 0.
HostFunction = ctypes.CFUNCTYPE(c_size_t, c_void_p, c_void_p, c_void_p, c_size_t)
# An epoch callback: (context, data, ticks to go on for, kind of update) -> an error, or 0.
EpochCallback = ctypes.CFUNCTYPE(c_size_t, c_void_p, c_void_p, POINTER(c_uint64), POINTER(c_uint8))
_Finalizer = ctypes.CFUNCTYPE(None, c_void_p)
_NO_FINALIZER = _Finalizer()

VALUE_BYTES = 16  # one argument or result in a raw array
_SignalAction = c_size_t * 32  # more than any platform's struct sigaction, which begins with the handler


def _function(name: str, result: Any, *arguments: Any) -> Any:
    """The C function `name` under a signature of plain addresses, apart from wasmtime-py's own.

    It keeps Python's lock, which another thread would take for longer than such a call lasts.
    """
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ffi.dll))


_define = _function(
    "wasmtime_linker_define_func_unchecked",
    c_void_p, c_void_p, c_char_p, c_size_t, c_char_p, c_size_t, c_void_p, HostFunction, c_void_p, _Finalizer,
)  # fmt: skip
_watch_epochs = _function(
    "wasmtime_store_epoch_deadline_callback", None, c_void_p, EpochCallback, c_void_p, _Finalizer
)
# The one that takes long: other threads go on meanwhile.
_call = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, POINTER(c_void_p))(
    ("wasmtime_func_call_unchecked", ffi.dll)
)
_new_trap = _function("wasmtime_trap_new", c_size_t, c_char_p, c_size_t)
_new_error = _function("wasmtime_error_new", c_size_t, c_char_p)
_export_get = _function(
    "wasmtime_instance_export_get", c_bool, c_void_p, c_void_p, c_char_p, c_size_t, c_void_p
)
memory_base = _function("wasmtime_memory_data", c_size_t, c_void_p, c_void_p)
memory_size = _function("wasmtime_memory_data_size", c_size_t, c_void_p, c_void_p)
_memory_grow = _function("wasmtime_memory_grow", c_void_p, c_void_p, c_void_p, c_uint64, POINTER(c_uint64))
_error_delete = _function("wasmtime_error_delete", None, c_void_p)
_set_fuel = _function("wasmtime_context_set_fuel", c_void_p, c_void_p, c_uint64)
_get_fuel = _function("wasmtime_context_get_fuel", c_void_p, c_void_p, POINTER(c_uint64))
set_epoch_deadline = _function("wasmtime_context_set_epoch_deadline", None, c_void_p, c_uint64)

Extern = ffi.wasmtime_extern_t
_FUNC_OFFSET = Extern.of.offset  # where an extern keeps its function or memory handle


def address(pointer: Any) -> int:
    """The address that a ctypes pointer holds."""
    return ctypes.cast(pointer, c_void_p).value or 0


def context_of(store: wasmtime.Store) -> int:
    """The address that stands for a store in the C API."""
    return address(store._context())  # noqa: SLF001 - the C API takes it, and it has no public name


def set_async_stack(config: wasmtime.Config, size: int) -> None:
    """wasmtime aborts the process when `max_wasm_stack` is larger than this."""
    ffi.wasmtime_config_async_stack_size_set(config.ptr(), size)


def define(linker: wasmtime.Linker, module: str, name: str, kind: wasmtime.FuncType, function: Any) -> None:
    """Give the linker a host function; the caller keeps `function` alive for ever."""
    names = module.encode(), name.encode()
    error = _define(
        address(linker.ptr()), names[0], len(names[0]), names[1], len(names[1]),
        address(kind.ptr()), function, None, _NO_FINALIZER,
    )  # fmt: skip
    raise_error(error)


def watch_epochs(store: wasmtime.Store, callback: Any) -> None:
    """Ask `callback` whenever the store reaches its epoch deadline."""
    _watch_epochs(address(store.ptr()), callback, None, _NO_FINALIZER)


def new_trap(text: bytes) -> int:
    """A trap that wasmtime owns once a host function returns it."""
    return int(_new_trap(text, len(text)))


def new_error(text: bytes) -> int:
    """An error that wasmtime owns once an epoch callback returns it."""
    return int(_new_error(text))


def raise_error(error: int | None) -> None:
    """Raise what a C function returned, and free it."""
    if error:
        raise wasmtime.WasmtimeError._from_ptr(ctypes.cast(error, POINTER(ffi.wasmtime_error_t)))  # noqa: SLF001


def trap_of(trap: int) -> wasmtime.Trap:
    """The trap at an address, as an object that frees it."""
    return wasmtime.Trap._from_ptr(ctypes.cast(trap, POINTER(ffi.wasm_trap_t)))  # noqa: SLF001


def raise_ending(error: int, trap: int) -> None:
    """Raise what `call` returned, and free it."""
    try:
        raise_error(error)
    finally:
        if trap:
            raise trap_of(trap)


class Exports:
    """The exports of one instance, as handles for `call` and the memory functions."""

    def __init__(self, context: int, instance: Any) -> None:
        self._context = context
        self._instance = instance

    def handle(self, name: bytes) -> tuple[Any, int]:
        """An extern, which the caller keeps alive, with the address of the handle inside it."""
        extern = Extern()
        if not _export_get(self._context, byref(self._instance), name, len(name), byref(extern)):
            raise KeyError(name.decode())
        return extern, ctypes.addressof(extern) + _FUNC_OFFSET


def call(context: int, function: int, values: int, count: int) -> tuple[int, int]:
    """Call a function on a raw array; the addresses of the error and the trap, 0 where there is none.

    The caller owns both: it hands them to wasmtime or frees them.
    """
    trap = c_void_p()
    error = _call(context, function, values, count, byref(trap))
    return error or 0, trap.value or 0


def grow(context: int, memory: int, pages: int) -> bool:
    """Grow a memory by pages; False past its limit."""
    before = c_uint64()
    error = _memory_grow(context, memory, pages, byref(before))
    if error:
        _error_delete(error)
    return not error


def set_fuel(context: int, fuel: int) -> None:
    """How many instructions a store may run from now on."""
    raise_error(_set_fuel(context, fuel))


def get_fuel(context: int) -> int:
    """How many are left."""
    fuel = c_uint64()
    raise_error(_get_fuel(context, byref(fuel)))
    return fuel.value


def set_result(values: int, result: int) -> None:
    """Write the one i32 result of a host function."""
    c_int32.from_address(values).value = result


_sigaction = ctypes.PYFUNCTYPE(c_int32, c_int32, c_void_p, c_void_p)(("sigaction", ctypes.PyDLL(None)))


def signal_handler(number: int) -> int:
    """The address of the handler that is installed for a signal now, in C or by Python."""
    action = _SignalAction()
    _sigaction(number, None, action)
    return action[0]
