"""What this machine offers to a sandbox."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandbox.cache import cache_folder, open_cache
from sandbox.errors import SandboxError
from sandbox.events import SandboxLogger
from sandbox.guests.cpython import find_unpacked_guest

if TYPE_CHECKING:
    from sandbox.cache import Cache

__all__ = ["Finding", "examine"]

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; `ok` is false only where a sandbox cannot work without it."""

    name: str
    shown: str
    ok: bool = True
    details: dict[str, Any] = field(default_factory=dict)


def examine() -> list[Finding]:
    """Look at everything; changes nothing, and fetches nothing."""
    cache = open_cache(SandboxLogger())
    return [
        _python(),
        _wasmtime(),
        _guest(cache),
        _cache(cache),
        _images(cache),
        _kernel(),
        _tmux(),
    ]


def _python() -> Finding:
    version = platform.python_version()
    details = {"version": version, "executable": sys.executable}
    return Finding("Python", f"{version} at {sys.executable}", sys.version_info >= (3, 11), details)


def _wasmtime() -> Finding:
    try:
        version = metadata.version("wasmtime")
    except metadata.PackageNotFoundError:
        return Finding("wasmtime", "missing: install the project again", ok=False, details={"version": None})
    return Finding("wasmtime", version, details={"version": version})


def _guest(cache: Cache | None) -> Finding:
    try:
        guest = find_unpacked_guest(None, cache, SandboxLogger())
    except SandboxError as error:
        return Finding("guest", str(error), ok=False, details={"error": str(error)})
    if guest is None:
        return Finding("guest", "not fetched yet: `sandbox warmup` does it", details={"version": None})
    packages = ", ".join(f"{name} {version}" for name, version in guest.packages.items())
    details = {"version": guest.version, "packages": guest.packages, "sha256": guest.module_sha256}
    return Finding("guest", f"CPython {guest.version} with {packages}", details=details)


def _cache(cache: Cache | None) -> Finding:
    if cache is None:
        shown = f"{cache_folder()} cannot be used, so every process compiles anew: set SANDBOX_CACHE"
        return Finding("cache", shown, details={"path": str(cache_folder()), "usable": False})
    size = sum(entry.size_bytes for entry in cache.entries())
    free = shutil.disk_usage(cache.path).free
    shown = f"{cache.path}: {size // MEGABYTE} MB, {free // MEGABYTE} MB free"
    details = {"path": str(cache.path), "usable": True, "size_bytes": size, "free_bytes": free}
    return Finding("cache", shown, details=details)


def _images(cache: Cache | None) -> Finding:
    if cache is None:
        return Finding("images", "none are kept without a cache")
    images = [entry for entry in cache.entries() if entry.name.startswith("image-")]
    details: dict[str, dict[str, Any]] = {
        entry.name: {"preload": _preload_of(cache.path / entry.name), "size_bytes": entry.size_bytes}
        for entry in images
    }
    sizes: dict[str, list[int]] = {}
    for image in details.values():
        sizes.setdefault(image["preload"], []).append(image["size_bytes"])
    lines = [f"{preload}: {_amount(sizes[preload])}" for preload in sorted(sizes)]
    return Finding("images", "\n".join(lines) or "none yet: `sandbox warmup` makes one", details=details)


def _amount(sizes: list[int]) -> str:
    size = f"{sum(sizes) // MEGABYTE} MB"
    return size if len(sizes) == 1 else f"{size} in {len(sizes)} images"


def _preload_of(path: Path) -> str:
    from sandbox.images import Header

    try:
        with path.open("rb") as stream:
            return ", ".join(Header.read(stream).preload) or "no modules"
    except (OSError, ValueError, KeyError, TypeError):
        return "made by another version"


def _kernel() -> Finding:
    features = {
        "memfd_create": _has_memfd(),
        "pidfd_open": _has_pidfd(),
        "pagemap": Path("/proc/self/pagemap").exists(),
    }
    missing = [name for name, there in features.items() if not there]
    shown = f"{platform.system()} {platform.release()}, " + (
        f"without {', '.join(missing)}" if missing else f"with {', '.join(features)}"
    )
    return Finding("kernel", shown, details={"release": platform.release(), **features})


def _has_memfd() -> bool:
    try:
        os.close(os.memfd_create("doctor"))
    except (AttributeError, OSError):
        return False
    return True


def _has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _tmux() -> Finding:
    program = shutil.which("tmux")
    if program is None:
        return Finding("tmux", "missing: only `mas` needs it", details={"version": None})
    said = subprocess.run([program, "-V"], capture_output=True, text=True, check=False)  # noqa: S603 - found on PATH
    return Finding("tmux", said.stdout.strip(), details={"version": said.stdout.strip(), "path": program})
