"""What is made once per machine is ours alone, whole, and made once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from structlog.testing import CapturingLogger

from sandbox.cache import Cache, CacheEntry, open_cache
from sandbox.errors import GuestUnavailable
from sandbox.events import SandboxLogger

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")


@pytest.fixture
def events():
    return CapturingLogger()


@pytest.fixture
def cache(tmp_path, monkeypatch, events):
    monkeypatch.setenv("SANDBOX_CACHE", str(tmp_path / "cache"))
    return open_cache(SandboxLogger(events))


def warnings_of(events):
    return [(call.args[0], call.kwargs) for call in events.calls if call.method_name == "warning"]


def store_text(cache, name, text):
    return cache.store(name, lambda stream: stream.write(text.encode()))


def run_python(code, *args, **options):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, timeout=60, **options
    )


def test_the_folder_is_made_private(cache):
    assert cache.path.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_may_write_to_is_closed_to_them(tmp_path, monkeypatch, events):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    monkeypatch.setenv("SANDBOX_CACHE", str(tmp_path / "cache"))
    assert open_cache(SandboxLogger(events)).path.stat().st_mode & 0o777 == 0o700
    assert warnings_of(events) == []


def test_the_folder_defaults_to_the_users_cache(tmp_path, monkeypatch, events):
    monkeypatch.delenv("SANDBOX_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert open_cache(SandboxLogger(events)).path == tmp_path / "session-sandbox"


def test_a_file_in_place_of_the_folder_is_one_warning_per_process(tmp_path, monkeypatch, events):
    blocked = tmp_path / "cache"
    blocked.write_text("")
    monkeypatch.setenv("SANDBOX_CACHE", str(blocked))
    assert [open_cache(SandboxLogger(events)) for _ in range(3)] == [None, None, None]
    assert warnings_of(events) == [
        ("cache.unusable", {"path": str(blocked), "error": f"[Errno 17] File exists: '{blocked}'"})
    ]


def test_a_folder_that_cannot_be_made_gives_no_cache(monkeypatch, events):
    monkeypatch.setenv("SANDBOX_CACHE", f"/proc/nowhere-{os.getpid()}/cache")
    assert open_cache(SandboxLogger(events)) is None
    assert [name for name, _ in warnings_of(events)] == ["cache.unusable"]


@needs_root
def test_a_folder_of_another_user_gives_no_cache(tmp_path, monkeypatch, events):
    (tmp_path / "cache").mkdir()
    os.chown(tmp_path / "cache", NOBODY, NOBODY)
    monkeypatch.setenv("SANDBOX_CACHE", str(tmp_path / "cache"))
    assert open_cache(SandboxLogger(events)) is None
    assert [name for name, _ in warnings_of(events)] == ["cache.unusable"]


def test_what_is_stored_is_found_and_private(cache, events):
    stored = store_text(cache, "thing", "hello")
    assert cache.find("thing") == stored
    assert stored.read_text() == "hello"
    assert stored.stat().st_mode & 0o777 == 0o600
    assert warnings_of(events) == []


def test_what_was_never_stored_is_silently_missing(cache, events):
    assert cache.find("thing") is None
    assert events.calls == []


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "../a", "a\0b"])
def test_a_name_cannot_leave_the_folder(cache, name):
    with pytest.raises(ValueError, match="cannot name a cache entry"):
        cache.find(name)


def plant_symlink(path):
    (path.parent.parent / "elsewhere").write_text("planted")
    path.symlink_to(path.parent.parent / "elsewhere")


def plant_group_writable(path):
    path.write_text("planted")
    path.chmod(0o660)


def plant_hard_link(path):
    (path.parent.parent / "elsewhere").write_text("planted")
    path.hardlink_to(path.parent.parent / "elsewhere")


def plant_folder(path):
    path.mkdir()
    (path / "inside").write_text("planted")


def plant_fifo(path):
    os.mkfifo(path, 0o600)


PLANTED = {
    plant_symlink: "it is not a regular file",
    plant_group_writable: "others may write to it",
    plant_hard_link: "it has another name elsewhere",
    plant_folder: "it is not a regular file",
    plant_fifo: "it is not a regular file",
}


@pytest.mark.parametrize(("plant", "reason"), PLANTED.items())
def test_an_entry_that_is_not_ours_alone_is_refused_and_made_again(cache, events, plant, reason):
    plant(cache.path / "thing")
    assert cache.find("thing") is None
    assert warnings_of(events) == [
        ("cache.entry_refused", {"path": str(cache.path / "thing"), "reason": reason})
    ]
    store_text(cache, "thing", "ours")
    assert cache.find("thing").read_text() == "ours"
    elsewhere = cache.path.parent / "elsewhere"
    assert not elsewhere.exists() or elsewhere.read_text() == "planted"


@needs_root
def test_an_entry_of_another_user_is_refused(cache, events):
    os.chown(store_text(cache, "thing", "x"), NOBODY, NOBODY)
    assert cache.find("thing") is None
    assert warnings_of(events)[0][1]["reason"] == f"it belongs to user {NOBODY}"


def test_an_entry_whose_content_has_changed_is_refused(cache, events):
    with store_text(cache, "thing", "hello").open("r+b") as stream:
        stream.write(b"j")
    assert cache.find("thing") is None
    assert warnings_of(events)[0][1]["reason"] == "its content has changed since it was made"


def test_an_entry_that_was_only_touched_is_found(cache, events):
    os.utime(store_text(cache, "thing", "hello"), (1, 1))
    assert cache.find("thing").read_text() == "hello"
    assert cache.find("thing").read_text() == "hello"
    assert warnings_of(events) == []


def test_an_entry_without_its_digest_is_refused(cache, events):
    store_text(cache, "thing", "hello")
    (cache.path / ".seal-thing").unlink()
    assert cache.find("thing") is None
    assert warnings_of(events)[0][1]["reason"].startswith("its digest cannot be checked: ")


def test_an_entry_that_its_reader_refuses_is_dropped(cache, events):
    stored = store_text(cache, "thing", "hello")
    cache.refuse("thing", "it is in Greek")
    assert not stored.exists()
    assert warnings_of(events) == [("cache.entry_refused", {"path": str(stored), "reason": "it is in Greek"})]


def test_a_failed_write_leaves_the_old_entry_and_no_rest(cache):
    store_text(cache, "thing", "old")

    def fail(stream):
        stream.write(b"half")
        raise KeyError("stop")

    with pytest.raises(KeyError):
        cache.store("thing", fail)
    assert cache.find("thing").read_text() == "old"
    assert [path.name for path in cache.path.iterdir() if path.name.startswith(".tmp-")] == []


def test_a_full_disk_is_one_warning_and_no_entry(tmp_path):
    code = """
import resource, sys
from pathlib import Path
from structlog.testing import CapturingLogger
from sandbox.cache import open_cache
from sandbox.events import SandboxLogger

events = CapturingLogger()
cache = open_cache(SandboxLogger(events))
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
assert cache.store("big", lambda stream: stream.write(bytes(100_000))) is None
assert cache.store("big", lambda stream: stream.write(bytes(100_000))) is None
assert cache.folder("tree", lambda path: (path / "big").write_bytes(bytes(100_000))) is None
assert [call.args[0] for call in events.calls] == ["cache.unwritable"], events.calls
assert [p.name for p in cache.path.iterdir() if not p.name.startswith(".lock-")] == []
"""
    done = run_python(code, env={**os.environ, "SANDBOX_CACHE": str(tmp_path / "cache")})
    assert (done.returncode, done.stderr) == (0, "")


def test_a_vanished_folder_is_one_warning_and_still_yields_the_lock(cache, events):
    cache.path.rmdir()
    cache.path.write_text("in the way")
    with cache.lock("thing"):
        assert store_text(cache, "thing", "x") is None
    assert [name for name, _ in warnings_of(events)] == ["cache.unwritable"]
    assert cache.entries() == []


def test_a_folder_is_filled_once_and_appears_whole(cache):
    filled = []

    def fill(path):
        filled.append(path)
        assert not (cache.path / "tree").exists()
        (path / "a").write_text("1")

    assert cache.folder("tree", fill) == cache.path / "tree"
    assert cache.folder("tree", fill) == cache.path / "tree"
    assert len(filled) == 1
    assert (cache.path / "tree" / "a").read_text() == "1"
    assert (cache.path / "tree").stat().st_mode & 0o777 == 0o700


def test_a_folder_whose_filling_fails_is_filled_anew_by_the_next_try(cache):
    def fail(path):
        (path / "half").write_text("")
        raise GuestUnavailable("no network", remedy="try again")

    with pytest.raises(GuestUnavailable):
        cache.folder("tree", fail)
    assert cache.entries() == []
    tree = cache.folder("tree", lambda path: (path / "whole").touch())
    assert [path.name for path in tree.iterdir()] == ["whole"]


@pytest.mark.parametrize("plant", [plant_symlink, plant_fifo, plant_group_writable])
def test_something_else_in_place_of_a_folder_is_refused_and_made_again(cache, events, plant):
    plant(cache.path / "tree")
    tree = cache.folder("tree", lambda path: (path / "ours").touch())
    assert [path.name for path in tree.iterdir()] == ["ours"]
    assert [name for name, _ in warnings_of(events)] == ["cache.entry_refused"]


def test_a_folder_with_a_problem_is_refused_and_filled_again(cache, events):
    cache.folder("tree", lambda path: (path / "broken").touch())

    def problem(path):
        return "it is broken" if (path / "broken").exists() else None

    tree = cache.folder("tree", lambda path: (path / "whole").touch(), problem=problem)
    assert [path.name for path in tree.iterdir()] == ["whole"]
    assert warnings_of(events) == [("cache.entry_refused", {"path": str(tree), "reason": "it is broken"})]


def test_entries_lists_finished_things_with_their_sizes(cache):
    store_text(cache, "b", "12345")
    cache.folder("a", lambda path: (path / "x").write_bytes(bytes(7)))
    with cache.lock("c"):
        assert cache.entries() == [CacheEntry("a", 7), CacheEntry("b", 5)]


def test_what_was_not_used_for_long_makes_room(cache, monkeypatch):
    for name in ("old", "used", "stale"):
        store_text(cache, name, "x" * 100)
    os.utime(cache.path / ".seal-stale", (1, 1))
    now = time.time()
    for age, name in enumerate(("used", "old"), start=1):
        os.utime(cache.path / f".seal-{name}", (now - age * 60, now - age * 60))
    cache.find("old")
    monkeypatch.setattr("sandbox.cache.MOST_FILE_BYTES", 250)
    store_text(cache, "new", "x" * 100)
    assert [entry.name for entry in cache.entries()] == ["new", "old"]
    assert sorted(path.name for path in cache.path.glob(".seal-*")) == [".seal-new", ".seal-old"]


def test_only_what_dead_processes_left_is_swept(cache):
    dead_file, dead_folder = cache.path / ".tmp-dead", cache.path / ".tmp-tree"
    dead_file.write_text("x")
    dead_folder.mkdir()
    (dead_folder / "inside").write_text("x")
    young = cache.path / ".tmp-young"
    young.write_text("x")
    with cache._temp_file() as (held, _):
        for path in (dead_file, dead_folder, held):
            os.utime(path, (1, 1))
        store_text(cache, "thing", "x")
        assert held.exists()
    assert [path.name for path in cache.path.iterdir() if path.name.startswith(".tmp-")] == [".tmp-young"]


def test_a_killed_process_leaves_nothing_that_counts(tmp_path):
    code = """
import os, signal
from sandbox.cache import open_cache
from sandbox.events import SandboxLogger
cache = open_cache(SandboxLogger())
cache.store("thing", lambda stream: (stream.write(b"half"), os.kill(os.getpid(), signal.SIGKILL)))
"""
    done = run_python(code, env={**os.environ, "SANDBOX_CACHE": str(tmp_path)})
    assert done.returncode == -9
    cache = Cache(tmp_path, SandboxLogger(CapturingLogger()))
    assert (cache.find("thing"), cache.entries()) == (None, [])


RACER = """
import sys, time
from pathlib import Path
from sandbox.cache import open_cache
from sandbox.events import SandboxLogger
cache, journal, barrier = open_cache(SandboxLogger()), Path(sys.argv[1]), Path(sys.argv[2])

def fill(path):
    with journal.open("a") as lines:
        lines.write("filled\\n")
    time.sleep(0.2)
    (path / "a").write_text("x")

(barrier / sys.argv[3]).touch()
while len(list(barrier.iterdir())) < 4:
    time.sleep(0.005)
assert (cache.folder("tree", fill) / "a").read_text() == "x"
"""


def test_processes_that_start_at_once_make_an_entry_once(tmp_path):
    barrier, journal = tmp_path / "barrier", tmp_path / "journal"
    barrier.mkdir()
    environment = {**os.environ, "SANDBOX_CACHE": str(tmp_path / "cache")}
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER, str(journal), str(barrier), str(n)], env=environment)
        for n in range(4)
    ]
    assert [racer.wait(timeout=60) for racer in racers] == [0, 0, 0, 0]
    assert journal.read_text() == "filled\n"


def test_threads_that_start_at_once_make_an_entry_once(cache):
    made, start = [], threading.Barrier(8)

    def make():
        start.wait()
        with cache.lock("thing"):
            if cache.find("thing") is None:
                made.append(1)
                time.sleep(0.05)
                store_text(cache, "thing", "x")

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]


def test_a_store_never_shows_half_an_entry_to_a_reader(cache):
    store_text(cache, "thing", "a" * 50_000)
    done, seen = threading.Event(), set()

    def read():
        while not done.is_set():
            seen.add(Path(cache.path / "thing").read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for letter in "bc" * 20:
        store_text(cache, "thing", letter * 50_000)
    done.set()
    reader.join()
    assert seen <= {letter.encode() * 50_000 for letter in "abc"}
