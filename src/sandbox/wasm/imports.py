"""The host functions that a guest imports, defined once per engine."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import wasmtime

from sandbox.wasm import abi, capi
from sandbox.wasm.call import Refusal, Stop, running_call
from sandbox.wasm.channel import NoRoom

if TYPE_CHECKING:
    from collections.abc import Callable

# Answered by the gate: everything on files. wasmtime answers the rest of WASI directly.
GATED = tuple(
    name
    for name in abi.SIGNATURES
    if name.startswith(("fd_", "path_")) or name in ("poll_oneoff", "proc_exit")
)
# Answered by the gate for guests that outlive their instance, and whose clock must go on.
GATED_CLOCK = "clock_time_get"
HOST_CALL_SIGNATURE = "iiii"

_callbacks: list[Any] = []  # wasmtime calls them for as long as the process lives


def define_host_functions(linker: wasmtime.Linker, *, lasting: bool) -> None:
    """Shadow what the gate answers, and add the channel between host and driver."""
    for name in (*GATED, GATED_CLOCK) if lasting else GATED:
        signature = abi.SIGNATURES[name]
        results = "" if name == "proc_exit" else "i"
        _define(linker, abi.WASI, name, signature, results, _gated(name))
    _define(linker, "host", "call", HOST_CALL_SIGNATURE, "i", _answer_driver)


def _gated(name: str) -> Callable[..., int]:
    def answer(call: Any, *arguments: int) -> int:
        try:
            result: int = getattr(call.gate, name)(*arguments)
        except Refusal as refusal:
            return refusal.error
        except OSError as error:
            return abi.error_number(error)
        return result

    return answer


def _answer_driver(call: Any, *arguments: int) -> int:
    try:
        result: int = call.channel.answer(*arguments)
    except NoRoom:
        call.interrupt("memory")
        raise Stop from None
    return result


def _define(
    linker: wasmtime.Linker, module: str, name: str, signature: str, results: str, answer: Callable[..., int]
) -> None:
    unpack = abi.argument_layout(signature).unpack
    size = len(signature) * capi.VALUE_BYTES
    string_at = ctypes.string_at

    def function(_env: int, _caller: int, args: int, _count: int) -> int:
        call = running_call()
        try:
            call.check()
            result = answer(call, *unpack(string_at(args, size)))
        except BaseException as cause:  # noqa: BLE001 - nothing may be raised into wasmtime
            call.record(cause)
            return capi.new_trap(b"stopped by the host")
        capi.set_result(args, result)
        return 0

    callback = capi.HostFunction(function)
    _callbacks.append(callback)
    capi.define(linker, module, name, _type(signature, results), callback)


def _type(parameters: str, results: str) -> wasmtime.FuncType:
    kinds = {"i": wasmtime.ValType.i32, "q": wasmtime.ValType.i64}
    return wasmtime.FuncType([kinds[kind]() for kind in parameters], [kinds[kind]() for kind in results])
