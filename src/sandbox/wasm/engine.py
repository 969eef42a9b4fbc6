"""Engines, and the guest's code compiled for them."""

from __future__ import annotations

import atexit
import hashlib
import importlib.metadata
import os
import signal
import threading
from typing import TYPE_CHECKING, BinaryIO

import wasmtime

from sandbox.errors import EngineUnusable, GuestRejected
from sandbox.progress import progress
from sandbox.wasm import abi, capi
from sandbox.wasm.imports import define_host_functions
from sandbox.wasm.sections import mutable_globals
from sandbox.wasm.watchdog import Watchdog

if TYPE_CHECKING:
    from pathlib import Path

    from sandbox.cache import Cache
    from sandbox.events import SandboxLogger

WASM_STACK_BYTES = 8 << 20
COMPILE_SECONDS = 95  # about, on two cores
TRAP_SIGNALS = (signal.SIGSEGV, signal.SIGILL, signal.SIGFPE, signal.SIGBUS)
PINNED_IMPORTS = frozenset({("host", "call"), *((abi.WASI, name) for name in abi.SIGNATURES)})
# Part of the name of what is compiled: raise it when a setting below changes.
SETTINGS = "epochs,exceptions,stack=8M,v1"


class Engine:
    """One flavour of wasmtime, metered or not, and what is compiled for it in this process."""

    def __init__(self, *, metered: bool) -> None:
        self.metered = metered
        self.wasmtime = wasmtime.Engine(_configuration(metered=metered))
        self._modules: dict[str, wasmtime.Module] = {}
        self._programs: dict[tuple[str, bool], wasmtime.InstancePre] = {}
        self._guard = threading.Lock()

    def program(
        self, module: Path, digest: str, cache: Cache | None, logger: SandboxLogger, *, lasting: bool = False
    ) -> wasmtime.InstancePre:
        """The guest, compiled and linked; compiled once per machine where there is a cache.

        A lasting one is for guests whose memory outlives an instance.
        """
        with self._guard:
            if digest not in self._modules:
                compiled = self._load(module, digest, cache, logger)
                _check_imports(compiled, module)
                self._modules[digest] = compiled
            if (digest, lasting) not in self._programs:
                self._programs[digest, lasting] = self._link(self._modules[digest], lasting=lasting)
            return self._programs[digest, lasting]

    def _link(self, module: wasmtime.Module, *, lasting: bool) -> wasmtime.InstancePre:
        linker = wasmtime.Linker(self.wasmtime)
        linker.define_wasi()
        linker.allow_shadowing = True
        define_host_functions(linker, lasting=lasting)
        return linker.instantiate_pre(module)

    def _load(self, module: Path, digest: str, cache: Cache | None, logger: SandboxLogger) -> wasmtime.Module:
        check_globals(module)
        if cache is None:
            return self._compile(module, logger)
        name = self._entry(digest)
        found = self._deserialize(cache, name)
        if found is not None:
            return found
        with cache.lock(name):  # the one who waits finds what the other made
            found = self._deserialize(cache, name)
            if found is None:
                found = self._compile(module, logger)
                cache.store(name, lambda stream: _serialize(found, stream))
            return found

    def _entry(self, digest: str) -> str:
        version = importlib.metadata.version("wasmtime")
        made_of = f"{digest} {version} {SETTINGS} {'metered' if self.metered else 'unmetered'}"
        return f"module-{hashlib.sha256(made_of.encode()).hexdigest()[:32]}.cwasm"

    def _deserialize(self, cache: Cache, name: str) -> wasmtime.Module | None:
        path = cache.find(name)
        if path is None:
            return None
        try:
            return wasmtime.Module.deserialize_file(self.wasmtime, str(path))
        except wasmtime.WasmtimeError as error:
            cache.refuse(name, str(error).splitlines()[0])
            return None

    def _compile(self, module: Path, logger: SandboxLogger) -> wasmtime.Module:
        with progress(logger, "compiling the Python guest", expected_seconds=COMPILE_SECONDS):
            try:
                return wasmtime.Module.from_file(self.wasmtime, str(module))
            except wasmtime.WasmtimeError as error:
                raise GuestRejected(
                    module, str(error).splitlines()[0], remedy="name a CPython build for WASI"
                ) from None


def _configuration(*, metered: bool) -> wasmtime.Config:
    configuration = wasmtime.Config()
    configuration.consume_fuel = metered
    configuration.epoch_interruption = True
    configuration.wasm_exceptions = True
    capi.set_async_stack(configuration, WASM_STACK_BYTES + (1 << 20))
    configuration.max_wasm_stack = WASM_STACK_BYTES
    return configuration


def _serialize(module: wasmtime.Module, stream: BinaryIO) -> None:
    stream.write(module.serialize())


def _check_imports(module: wasmtime.Module, path: Path) -> None:
    imports = {(item.module, item.name or "") for item in module.imports}
    if imports != PINNED_IMPORTS:
        strange = sorted(".".join(item) for item in imports ^ PINNED_IMPORTS)
        raise GuestRejected(
            path,
            f"its imports differ in {', '.join(strange[:5])}",
            remedy="use the guest of `sandbox warmup`",
        )


def check_globals(module: Path) -> None:
    """An image is memory alone, so a guest must keep nothing else between calls but its stack pointer."""
    if mutable_globals(module) > 1:
        raise GuestRejected(
            module, "it keeps state outside its memory", remedy="use the guest of `sandbox warmup`"
        )


_engines: dict[bool, Engine] = {}
_guard = threading.Lock()
_owner = 0  # the process that made them
_handlers: dict[int, int] = {}


def _ring() -> None:
    for engine in list(_engines.values()):
        engine.wasmtime.increment_epoch()


watchdog = Watchdog(_ring)
atexit.register(watchdog.interrupt_all, "cancelled")


def engine(*, metered: bool) -> Engine:
    """The engine of this process for a flavour, made at its first use."""
    global _owner  # noqa: PLW0603 - engines belong to a process, and a fork must be noticed
    check_process()
    with _guard:
        if metered not in _engines:
            _engines[metered] = Engine(metered=metered)
            _owner = os.getpid()
            _handlers.update({number: capi.signal_handler(number) for number in TRAP_SIGNALS})
        return _engines[metered]


def check_process() -> None:
    """Refuse to enter a guest where a trap would kill the process, or a lock never be released."""
    check_fork()
    for number, handler in _handlers.items():
        if capi.signal_handler(number) != handler:
            name = signal.Signals(number).name
            raise EngineUnusable(
                f"the handler for {name} was replaced after the first execution, so a trap would end "
                "this process",
                remedy="enable faulthandler and install signal handlers before the first execution",
            )


def check_fork() -> None:
    """Refuse to wait for a lock or a thread that a fork has left behind."""
    if _engines and os.getpid() != _owner:
        raise EngineUnusable(
            "this process was forked from one that had already run a guest, and would hang",
            remedy='start worker processes with multiprocessing.get_context("spawn")',
        )
