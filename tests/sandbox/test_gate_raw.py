"""The gate from a guest that calls the raw functions with anything."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import resource
import struct
import time

import pytest

from sandbox.wasm import abi
from sandbox.wasm.quota import NODE_BYTES, DiskLimits, measure

TEXT, OUT = 0x1000, 0x2000
END = 4 << 16  # of the memory
FAR = 0xFFFF_FFF0
ALL = 0xFFFF_FFFF
CREATE, DIRECTORY, EXCLUSIVE, TRUNCATE = 1, 2, 4, 8
READ, WRITE = 1 << 1, 1 << 6
APP, TMP, DATA = 3, 4, 5
EACCES, EBADF, EFAULT, EINVAL, EMFILE, ENAMETOOLONG, ENOENT, ENOSPC, EXDEV = 2, 8, 21, 28, 33, 37, 44, 51, 75
EBUSY, EEXIST, ENOMEM, ENOTDIR = 10, 20, 48, 54
SECRET = "the host's own"

NAMES = [
    *("file", "folder", "link", "dangling", "nothing", "out", "up", "folder/inner", "nothing/inner"),
    *(".", "..", "", "/", "//", "./file", "folder/", "file/", "file/.", "folder/..", "folder/../file"),
    *("../data/known", "/etc/passwd", "../../../../etc/passwd", "folder/../../data/known", "a\0b", "\0"),
    *(
        "é",
        "\u202e",
        "x" * 255,
        "x" * 256,
        "x" * 5000,
        "./" * 2500,
        "link/",
        "up/",
        "out/x",
        "folder/./inner",
    ),
]
ANSWERED_LIKE_WASMTIME = [
    ("path_open", lambda at, name: (at, 0, *name, 0, READ, 0, 0, OUT)),
    ("path_open", lambda at, name: (at, 1, *name, 0, READ, 0, 0, OUT)),
    ("path_open", lambda at, name: (at, 1, *name, CREATE, READ | WRITE, 0, 0, OUT)),
    ("path_open", lambda at, name: (at, 0, *name, CREATE | EXCLUSIVE, WRITE, 0, 0, OUT)),
    ("path_open", lambda at, name: (at, 1, *name, DIRECTORY, READ, 0, 0, OUT)),
    ("path_open", lambda at, name: (at, 1, *name, TRUNCATE, WRITE, 0, 0, OUT)),
    ("path_filestat_get", lambda at, name: (at, 0, *name, OUT)),
    ("path_filestat_get", lambda at, name: (at, 1, *name, OUT)),
    ("path_filestat_set_times", lambda at, name: (at, 1, *name, 1, 1, 5)),
    ("path_readlink", lambda at, name: (at, *name, OUT, 100, OUT + 200)),
    ("path_create_directory", lambda at, name: (at, *name)),
    ("path_remove_directory", lambda at, name: (at, *name)),
    ("path_unlink_file", lambda at, name: (at, *name)),
    ("path_symlink", lambda at, name: (*name, at, TEXT + 0x3000, 3)),
    ("path_symlink", lambda at, name: (TEXT + 0x3000, 3, at, *name)),
    ("path_link", lambda at, name: (at, 0, *name, at, TEXT + 0x3000, 3)),
    ("path_link", lambda at, name: (at, 0, TEXT + 0x3000, 3, at, *name)),
    ("path_rename", lambda at, name: (at, *name, at, TEXT + 0x3000, 3)),
    ("path_rename", lambda at, name: (at, TEXT + 0x3000, 3, at, *name)),
]


# Refused by both, with the error of another fault, or, for a folder that is not empty, a truer one.
OTHER_ERRORS = {
    ("path_open", "/"),
    ("path_open", "//"),
    ("path_remove_directory", "folder/"),
    ("path_remove_directory", "up/"),
    ("path_symlink", ""),
    *(("path_rename", name) for name in (".", "file/", "folder/..", "link/", "up/")),
}


def listing(raw):
    """The entries of a raw listing: name, whole or cut off."""
    place, names = 0, []
    while place + 24 <= len(raw):
        length = struct.unpack_from("<I", raw, place + 16)[0]
        names.append(raw[place + 24 : place + 24 + length])
        place += 24 + length
    return names


# ---- as wasmtime answers


@pytest.mark.parametrize(("function", "arguments"), ANSWERED_LIKE_WASMTIME)
@pytest.mark.parametrize("at", [APP, DATA, 99, 1])
def test_any_name_is_answered_as_wasmtime_answers(both, function, arguments, at):
    differences = []
    for name in NAMES:
        answers = []
        for guest in both:
            guest.text("new", TEXT + 0x3000)
            answers.append(guest.call(function, *arguments(at, guest.text(name))))
        both_refuse = 0 not in answers and "trap" not in answers
        if answers[0] != answers[1] and not (
            both_refuse and (len(name) > 255 or (function, name) in OTHER_ERRORS)
        ):
            differences.append((name[:30], *answers))
    assert differences == []


BAD_CALLS = [
    *[("path_open", (APP, 0, address, 4, 0, READ, 0, 0, OUT)) for address in (FAR, ALL, END - 2, END)],
    *[("path_open", (APP, 0, TEXT, 4, 0, READ, 0, 0, out)) for out in (FAR, ALL, END - 2, END)],
    ("path_open", (APP, 0, TEXT, 4, 0xFFFF, READ, 0, 0, OUT)),
    ("path_open", (APP, 0, TEXT, 4, 0, READ, 0, 0xFFFF, OUT)),
    *[
        (name, (APP, FAR, 4))
        for name in ("path_create_directory", "path_unlink_file", "path_remove_directory")
    ],
    ("path_filestat_get", (APP, 0, TEXT, 4, FAR)),
    ("path_filestat_get", (APP, 0, FAR, 4, OUT)),
    ("path_readlink", (APP, TEXT, 4, FAR, 100, OUT)),
    ("path_readlink", (APP, TEXT, 4, OUT, ALL, OUT)),
    ("path_rename", (APP, FAR, 4, APP, TEXT, 4)),
    ("path_rename", (APP, TEXT, 4, APP, FAR, 4)),
    ("path_link", (APP, 0, FAR, 4, APP, TEXT, 4)),
    ("path_symlink", (FAR, 4, APP, TEXT, 4)),
    *[
        ("fd_readdir", (APP, *where))
        for where in ((FAR, 100, 0, OUT), (TEXT, 100, 0, FAR), (TEXT, 0, 0, OUT))
    ],
    ("fd_readdir", (APP, TEXT, 4096, (1 << 64) - 1, OUT)),
    *[("fd_readdir", (fd, TEXT, 4096, 0, OUT)) for fd in (0, 1, 99, ALL)],
    *[("fd_close", (fd,)) for fd in (99, ALL, 1 << 31)],
    *[("fd_filestat_set_size", (fd, 1 << 63)) for fd in (0, 1, APP, 99)],
    *[(name, (fd, OUT, 1, OUT + 64)) for name in ("fd_read", "fd_write") for fd in (APP, 99, ALL)],
    *[("fd_pwrite", (fd, OUT, 1, 0, OUT + 64)) for fd in (0, 1, APP, 99)],
    *[("fd_pread", (fd, OUT, 1, 0, OUT + 64)) for fd in (0, 1, APP, 99)],
    ("fd_read", (1, OUT, 1, OUT + 64)),
    ("fd_write", (0, OUT, 1, OUT + 64)),
    ("fd_seek", (0, 0, 0, OUT)),
    ("fd_tell", (1, OUT)),
    ("fd_fdstat_set_flags", (1, 1)),
    ("sock_accept", (APP, 0, OUT)),
    ("sock_recv", (APP, OUT, 1, 0, OUT, OUT)),
    ("sock_send", (APP, OUT, 1, 0, OUT)),
    ("sock_shutdown", (APP, 1)),
    ("random_get", (FAR, 100)),
    ("random_get", (OUT, ALL)),
    ("clock_time_get", (99, 0, OUT)),
    ("poll_oneoff", (TEXT, OUT, 0, OUT)),
]


@pytest.mark.parametrize(("function", "arguments"), BAD_CALLS)
def test_a_bad_call_is_refused_where_wasmtime_refuses_it(both, function, arguments):
    answers = []
    for guest in both:
        guest.text("file")
        guest.put(OUT, struct.pack("<II", TEXT, 4))
        answers.append(guest.call(function, *arguments))
    assert (answers[0] == 0) == (answers[1] == 0)
    assert answers[0] != "trap" or not function.startswith(("fd_", "path_"))


@pytest.mark.parametrize("count", [ALL, 1 << 20, 1025])
@pytest.mark.parametrize("function", ["fd_read", "fd_write"])
def test_more_buffers_than_linux_takes_are_refused(gated, function, count):
    guest = gated()
    stream, other = (0, 1) if function == "fd_read" else (1, 0)
    assert guest.call(function, stream, OUT, count, OUT) == EINVAL
    assert guest.call(function, other, OUT, count, OUT) in (EBADF, EINVAL)
    assert guest.call("fd_write", guest.open("file"), OUT, count, OUT) == EINVAL
    assert guest.call("fd_pwrite", guest.open("file"), OUT, count, 0, OUT) == EINVAL


@pytest.mark.parametrize(
    ("buffers", "count", "out"),
    [(FAR, 1, OUT), (ALL, 1, OUT), (END - 4, 1, OUT), (OUT, 1, FAR), (OUT, 1, END - 2), (OUT, 1, ALL)],
)
def test_streams_refuse_what_is_not_in_the_memory(gated, buffers, count, out):
    guest = gated(stdin=b"abcdef")
    guest.put(OUT, struct.pack("<II", TEXT, 4))
    for function, fd in (("fd_read", 0), ("fd_write", 1), ("fd_write", 2)):
        assert guest.call(function, fd, buffers, count, out) not in (0, "trap")
    assert guest.stdout.text() == ""


@pytest.mark.parametrize("buffer", [(FAR, 100), (TEXT, ALL), (END - 1, 2), (0, END + 1)])
def test_streams_refuse_buffers_that_are_not_in_the_memory(gated, buffer):
    guest = gated(stdin=b"abcdef")
    guest.put(OUT, struct.pack("<II", *buffer))
    for function, fd in (("fd_read", 0), ("fd_write", 1)):
        assert guest.call(function, fd, OUT, 1, OUT + 64) not in (0, "trap")
    assert guest.stdout.text() == ""


def test_a_thousand_buffers_that_overlap_cost_the_host_no_more_than_is_kept(gated):
    guest = gated()
    guest.put(0x8000, struct.pack("<II", 0, END) * 1024)
    assert guest.call("fd_write", 1, 0x8000, 1024, OUT) == 0
    assert len(guest.stdout.text()) <= 100
    assert guest.stdout.truncated


# ---- host-only names


@pytest.mark.parametrize("size", [0, 1, 23, 24, 25, 26, 30, 37, 38, 39, 60, 80, 100, 150, 300, 4096])
def test_a_listing_shows_no_hidden_name_whatever_its_buffer(gated, size):
    for name in (".metadata.json", ".metadata.json.tmp", ".METADATA.JSON", "config.json", ".session"):
        (gated.app / name).write_text(SECRET)
    guest = gated(host_only=("config.json", ".session"))
    cookie, seen = 0, set()
    for _ in range(100):
        assert guest.call("fd_readdir", APP, TEXT, size, cookie, OUT) == 0
        used = guest.number()
        raw = guest.get(TEXT, used)
        for piece in (b"meta", b"META", b"conf", b"sess"):
            assert piece not in raw
        whole = [name for name in listing(raw) if name.strip(b"\0")]
        seen.update(whole)
        place, last = 0, None
        while place + 24 <= len(raw):
            last = struct.unpack_from("<Q", raw, place)[0]
            place += 24 + struct.unpack_from("<I", raw, place + 16)[0]
        if used < size or last is None or last == cookie:
            break
        cookie = last
    if size >= 300:
        assert {b"file", b"folder", b"link"} <= seen


HIDDEN = [
    *(".metadata.json", ".METADATA.JSON", ".Metadata.Json", ".metadata.json.tmp", "./.metadata.json"),
    *(".metadata.json/", ".metadata.json/.", "folder/../.metadata.json", "folder/.metadata.json"),
    *(
        ".metadata.json\0",
        ".metadata.json/x",
        "//.metadata.json",
        ".metadata.\uff4ason",
        ".\u1d50etadata.json",
    ),
    *(".METADATA.JSON~", ".metadata.json\u00e9", "folder//.//.metadata.json", ".metadata\uff0ejson"),
]


@pytest.mark.parametrize("name", HIDDEN)
def test_a_hidden_name_is_answered_by_no_function(gated, name):
    for folder in (gated.app, gated.app / "folder"):
        (folder / ".metadata.json").write_text(SECRET)
    guest = gated()
    for function, arguments in ANSWERED_LIKE_WASMTIME:
        for at in (APP, guest.open("folder", flags=DIRECTORY, rights=READ)):
            guest.text("new", TEXT + 0x3000)
            assert guest.call(function, *arguments(at, guest.text(name))) != 0, function
            if at != APP:
                guest.call("fd_close", at)
    for folder in (gated.app, gated.app / "folder"):
        assert (folder / ".metadata.json").read_text() == SECRET
    assert not any(os.path.lexists(gated.app / entry) for entry in (".metadata.json.tmp", "new"))
    assert guest.gate.denied or "\0" in name


def test_a_link_of_the_host_leads_to_no_hidden_name(gated):
    (gated.app / ".metadata.json").write_text(SECRET)
    (gated.app / ".metadata.json.d").mkdir()
    (gated.app / ".metadata.json.d" / "inner").write_text(SECRET)
    (gated.app / "way").symlink_to(".metadata.json")
    (gated.app / "ways").symlink_to(".metadata.json.d")
    (gated.app / "folder" / "way").symlink_to("../.metadata.json")
    (gated.data / ".metadata.json").write_text(SECRET)
    (gated.data / "sub").mkdir()
    (gated.data / "sub" / "way").symlink_to("../.metadata.json")
    guest = gated()
    folder = guest.open("folder", flags=DIRECTORY, rights=READ)
    data = guest.open("sub", at=DATA, flags=DIRECTORY, rights=READ)
    cases = [
        (APP, "way"),
        (APP, "ways/inner"),
        (APP, "folder/way"),
        (folder, "way"),
        (DATA, "sub/way"),
        (data, "way"),
    ]
    for at, name in cases:
        assert guest.open(name, at=at, rights=READ) == -ENOENT, name
        assert guest.call("path_filestat_get", at, 1, *guest.text(name), OUT) == ENOENT, name
    assert guest.call("path_unlink_file", APP, *guest.text("ways/inner")) == ENOENT
    guest.text("new", TEXT + 0x3000)
    assert guest.call("path_rename", APP, *guest.text("ways/inner"), APP, TEXT + 0x3000, 3) == ENOENT
    assert (
        guest.call("path_rename", APP, *guest.text("file"), APP, *guest.text("ways/new", TEXT + 0x3000))
        == EACCES
    )
    assert sorted(os.listdir(gated.app / ".metadata.json.d")) == ["inner"]


# ---- descriptors


def test_a_closed_stream_whose_number_a_file_takes_is_that_file(gated):
    guest = gated()
    for number in (0, 1, 2):
        assert guest.call("fd_close", number) == 0
    opened = {guest.open(f"new{n}", flags=CREATE) for n in range(3)}
    assert opened == {0, 1, 2}
    assert guest.write(1, b"to the file") == 0
    assert guest.stdout.text() == ""
    assert sum(len((gated.app / f"new{n}").read_bytes()) for n in range(3)) == len(b"to the file")


def test_a_closed_folder_is_gone(gated):
    guest = gated()
    assert guest.call("fd_close", APP) == 0
    assert guest.open("file") == -EBADF
    opened = guest.open("y", at=TMP, flags=CREATE)
    assert opened >= 0
    assert guest.open("file", at=opened) == -ENOTDIR


def test_no_more_files_are_open_than_the_limit_says(gated):
    guest = gated(max_open_files=8)
    opened = [guest.open("file", rights=READ) for _ in range(12)]
    assert opened[8:] == [-EMFILE] * 4
    assert guest.call("fd_close", opened[0]) == 0
    assert guest.open("file", rights=READ) >= 0
    assert guest.open("file", rights=READ) == -EMFILE


def test_an_open_that_cannot_tell_its_number_leaves_nothing_open(gated):
    before = len(os.listdir("/proc/self/fd"))
    guest = gated()
    during = len(os.listdir("/proc/self/fd"))
    assert guest.call("path_open", APP, 0, *guest.text("file"), 0, READ, 0, 0, FAR) == EFAULT
    assert len(os.listdir("/proc/self/fd")) == during
    guest.close()
    assert len(os.listdir("/proc/self/fd")) == before


# ---- the disk


def test_writes_count_by_what_they_write(gated):
    guest = gated(limits=DiskLimits(write_bytes=NODE_BYTES + 100))
    fd = guest.open("new", flags=CREATE)
    assert guest.write(fd, b"x" * 60) == 0
    assert guest.write(fd, b"x" * 41) == ENOSPC
    assert guest.write(fd, b"x" * 40) == 0
    assert guest.write(fd, b"x") == ENOSPC
    assert guest.gate.quota_exceeded
    assert (gated.app / "new").stat().st_size == 100


def test_a_gathered_write_counts_whole(gated):
    guest = gated(limits=DiskLimits(write_bytes=NODE_BYTES + 120))
    fd = guest.open("new", flags=CREATE)
    guest.put(OUT, struct.pack("<IIII", TEXT, 0, TEXT, 50) + struct.pack("<II", TEXT, 50))
    assert guest.call("fd_write", fd, OUT, 3, OUT + 64) == 0
    assert guest.number(OUT + 64) == 100
    guest.put(OUT, struct.pack("<II", TEXT, 21))
    assert guest.call("fd_write", fd, OUT, 1, OUT + 64) == ENOSPC
    guest.put(OUT, struct.pack("<II", TEXT, 20))
    assert guest.call("fd_write", fd, OUT, 1, OUT + 64) == 0


def test_a_hole_counts_as_written_however_it_is_made(gated):
    for make in (
        lambda guest, fd: guest.call("fd_filestat_set_size", fd, 1 << 40),
        lambda guest, fd: guest.write(fd, b"x", name="fd_pwrite", extra=(1 << 40,)),
        lambda guest, fd: guest.call("fd_seek", fd, 1 << 40, 0, OUT) or guest.write(fd, b"x"),
    ):
        guest = gated(limits=DiskLimits(write_bytes=1 << 20))
        fd = guest.open("holes", flags=CREATE | TRUNCATE)
        assert make(guest, fd) == ENOSPC
        assert (gated.app / "holes").stat().st_size == 0


def test_a_hole_counts_after_appending_was_switched_off(gated):
    guest = gated(limits=DiskLimits(write_bytes=1 << 20))
    fd = guest.open("holes", flags=CREATE, fdflags=1)
    assert guest.call("fd_fdstat_set_flags", fd, 0) == 0
    assert guest.call("fd_seek", fd, 1 << 40, 0, OUT) == 0
    assert guest.write(fd, b"x") == ENOSPC
    assert (gated.app / "holes").stat().st_size == 0


def test_every_new_node_counts(gated):
    guest = gated(limits=DiskLimits(write_bytes=3 * NODE_BYTES + 1))
    assert guest.call("path_create_directory", TMP, *guest.text("a")) == 0
    assert guest.call("path_symlink", TEXT, 1, TMP, *guest.text("b", TEXT + 16)) == 0
    assert guest.call("path_link", APP, 0, *guest.text("file"), APP, *guest.text("c", TEXT + 16)) == 0
    assert guest.open("d", flags=CREATE) == -ENOSPC
    assert guest.call("path_create_directory", APP, *guest.text("e")) == ENOSPC


def test_nothing_is_moved_or_linked_from_one_mount_to_another(gated):
    (gated.tmp / "t").write_text("x")
    guest = gated()
    for function, flags in (("path_rename", ()), ("path_link", (0,))):
        for one, name, other in (
            (TMP, "t", APP),
            (APP, "file", TMP),
            (DATA, "known", APP),
            (APP, "file", DATA),
        ):
            guest.text("moved", TEXT + 0x3000)
            assert guest.call(function, one, *flags, *guest.text(name), other, TEXT + 0x3000, 5) == EXDEV
    assert sorted(os.listdir(gated.data)) == ["known"]


# ---- what is neither file nor folder


def test_a_fifo_of_the_host_is_not_opened_and_does_not_block(gated):
    os.mkfifo(gated.app / "pipe")
    (gated.app / "to_pipe").symlink_to("pipe")
    guest = gated()
    for rights in (READ, WRITE, READ | WRITE):
        for name in ("pipe", "to_pipe", "./pipe", "pipe/", "pipe/."):
            assert guest.open(name, rights=rights) < 0
    assert guest.call("path_filestat_get", APP, 0, *guest.text("pipe"), OUT) == 0


# ---- waiting


def subscription(kind=0, clock=1, timeout=0, flags=0, user=7):
    return struct.pack("<QB7xI4xQQH6x", user, kind, clock, timeout, 0, flags)


def event(guest, number=0):
    return struct.unpack("<QHB", guest.get(OUT + 32 * number, 11))


@pytest.mark.parametrize(
    "arguments",
    [
        (FAR, OUT, 1, OUT),
        (TEXT, FAR, 1, OUT),
        (TEXT, OUT, 1, FAR),
        (TEXT, OUT, 0, OUT),
        (TEXT, OUT, ALL, OUT),
        (END - 8, OUT, 1, OUT),
    ],
)
def test_a_wait_for_what_is_not_in_the_memory_is_refused(gated, arguments):
    assert gated().call("poll_oneoff", *arguments) not in (0, "trap")


def test_a_wait_ends_with_its_clock(gated):
    guest = gated()
    guest.put(TEXT, subscription(timeout=20_000_000))
    started = time.monotonic()
    assert guest.call("poll_oneoff", TEXT, OUT, 1, OUT + 64) == 0
    assert time.monotonic() - started >= 0.02
    assert (guest.number(OUT + 64), event(guest)) == (1, (7, 0, 0))


def test_a_wait_for_a_moment_that_is_past_ends_at_once(gated):
    guest = gated()
    guest.put(TEXT, subscription(timeout=1, flags=1))
    assert guest.call("poll_oneoff", TEXT, OUT, 1, OUT + 64) == 0


@pytest.mark.parametrize("kind", [3, 99, 255])
def test_an_unknown_kind_of_wait_is_an_error_and_not_a_hang(gated, kind):
    guest = gated()
    guest.put(TEXT, subscription(kind=kind))
    assert guest.call("poll_oneoff", TEXT, OUT, 1, OUT + 64) in (0, EINVAL)


@pytest.mark.parametrize(("kind", "fd"), [(1, 99), (2, 99), (1, ALL)])
def test_a_wait_for_a_file_that_is_not_open_says_so(gated, kind, fd):
    guest = gated()
    guest.put(TEXT, subscription(kind=kind, clock=fd))
    assert guest.call("poll_oneoff", TEXT, OUT, 1, OUT + 64) == 0
    assert event(guest) == (7, EBADF, kind)


@pytest.mark.parametrize("clock", [9, ALL])
def test_a_wait_for_an_unknown_clock_is_not_a_hang(gated, clock):
    guest = gated()
    guest.put(TEXT, subscription(clock=clock, timeout=1 << 62, flags=1))
    assert guest.call("poll_oneoff", TEXT, OUT, 1, OUT + 64) in (0, EINVAL, "trap")


def test_a_wait_for_centuries_ends_when_it_must(gated):
    guest = gated(deadline=time.monotonic() + 0.2)
    guest.put(TEXT, subscription(timeout=(1 << 64) - 1) * 8)
    assert guest.call("poll_oneoff", TEXT, OUT, 8, OUT + 0x800) == "trap"
    assert guest.ending.stopped_by == "timeout"


# ---- the end


@pytest.mark.parametrize("code", [0, 1, 125, 126, 255, 256, ALL])
def test_an_exit_ends_the_guest_with_its_code(gated, code):
    guest = gated()
    assert guest.call("proc_exit", code) == "trap"
    assert guest.ending.exit_code == code


@pytest.mark.parametrize("length", [4096, 1 << 18, ALL])
def test_a_path_longer_than_any_is_refused_before_it_is_read(gated, length):
    guest = gated()
    for function in ("path_create_directory", "path_unlink_file", "path_remove_directory"):
        assert guest.call(function, APP, TEXT, length) == ENAMETOOLONG
    assert guest.call("path_symlink", TEXT, length, APP, TEXT, 4) == ENAMETOOLONG


# ---- listings


def read_listing(guest, fd, *, cookie=0, size=64):
    """The names in one answer of a listing, and the place where the next one begins."""
    assert guest.call("fd_readdir", fd, TEXT, size, cookie, OUT) == 0
    raw = guest.get(TEXT, guest.number())
    whole = [name for name in listing(raw) if name]
    return whole, cookie + len(whole)


def test_a_listing_goes_on_where_it_was_whatever_is_listed_and_removed_meanwhile(gated):
    for number in range(50):
        (gated.app / "folder" / f"{number:02}").mkdir()
    guest = gated()
    fd, other = (guest.open("folder", flags=DIRECTORY, rights=READ) for _ in range(2))
    names, cookie = read_listing(guest, fd, size=24 + 8)
    while True:
        read_listing(guest, other)
        for name in names[:1]:
            guest.call("path_remove_directory", fd, *guest.text(name))
        more, cookie = read_listing(guest, fd, cookie=cookie, size=24 + 8)
        if not more:
            break
        names = more[:1] + names
    assert sorted(set(names)) == [*(b"%02d" % number for number in range(50)), b"inner"]


def test_a_listing_that_would_fill_the_memory_of_the_host_is_refused(gated, monkeypatch):
    monkeypatch.setattr("sandbox.wasm.listing.MOST_LISTED_BYTES", 5 * (24 + 8 + 8))
    for number in range(10):
        (gated.app / "folder" / f"{number:08}").touch()
    guest = gated()
    fd = guest.open("folder", flags=DIRECTORY, rights=READ)
    assert guest.call("fd_readdir", fd, TEXT, 4096, 0, OUT) == ENOMEM
    before = len(os.listdir("/proc/self/fd"))
    assert guest.call("fd_readdir", fd, TEXT, 4096, 3, OUT) == ENOMEM
    assert len(os.listdir("/proc/self/fd")) == before


def test_listings_that_take_too_much_together_are_read_again(gated, monkeypatch):
    monkeypatch.setattr("sandbox.wasm.gate.MOST_LISTED_BYTES", 300)
    guest = gated()
    folders = [guest.open(".", flags=DIRECTORY, rights=READ) for _ in range(5)]
    for _ in range(2):
        assert {len(read_listing(guest, fd, size=4096)[0]) for fd in folders} == {6}
        assert {len(read_listing(guest, fd, size=4096, cookie=2)[0]) for fd in folders} == {4}


# ---- the report


def rename(guest, old, new, *, at=APP, to=APP):
    return guest.call("path_rename", at, *guest.text(old), to, *guest.text(new, TEXT + 0x3000))


def test_what_cannot_be_told_for_want_of_room_is_not_done(gated, monkeypatch):
    monkeypatch.setattr("sandbox.wasm.journal.MOST_NAME_BYTES", 100)
    (gated.app / "folder" / ("x" * 80)).touch()
    (gated.app / "long").mkdir()
    (gated.app / "long" / ("x" * 101)).touch()
    guest = gated()
    assert rename(guest, "folder", "moved") == ENOSPC
    assert guest.gate.quota_exceeded
    assert sorted(os.listdir(gated.app / "folder")) == ["inner", "x" * 80]
    assert guest.call("path_unlink_file", APP, *guest.text("long/" + "x" * 101)) == 0
    assert guest.gate.journal.deleted() == ["long/" + "x" * 101]
    assert guest.call("path_unlink_file", APP, *guest.text("file")) == ENOSPC
    assert rename(guest, "file", "other") == ENOSPC
    assert guest.open("file") == -ENOSPC
    assert guest.open("new", flags=CREATE) == -ENOSPC
    assert guest.open("file", rights=READ) >= 0
    assert guest.open("new", at=TMP, flags=CREATE) >= 0
    assert guest.open("long/" + "x" * 101, flags=CREATE) == -ENOSPC


def make_deep_folder(guest):
    """The number of a folder that lies deeper than any path that is told."""
    at = APP
    for _ in range(17):
        assert guest.call("path_create_directory", at, *guest.text("d" * 250)) == 0
        below = guest.open("d" * 250, at=at, flags=DIRECTORY, rights=READ)
        if at != APP:
            guest.call("fd_close", at)
        at = below
    return at


def test_what_comes_out_of_an_untold_depth_is_told(gated):
    guest = gated()
    deep = make_deep_folder(guest)
    assert guest.open("f", at=deep, flags=CREATE) >= 0
    assert guest.call("path_create_directory", deep, *guest.text("g")) == 0
    assert guest.open("g/h", at=deep, flags=CREATE) >= 0
    assert guest.gate.journal.created() == []
    assert rename(guest, "f", "f", at=deep) == 0
    assert rename(guest, "g", "g", at=deep) == 0
    assert guest.gate.journal.created() == ["f", "g/h"]
    assert rename(guest, "folder", "folder", to=deep) == 0
    assert guest.gate.journal.deleted() == ["folder/inner"]


# ---- what the host lacks


@pytest.fixture
def no_more_descriptors():
    """Takes every descriptor that this process may still open, but for a few."""
    taken, limits = [], resource.getrlimit(resource.RLIMIT_NOFILE)

    def take(*, but=0):
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 50, limits[1])
        )
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/", os.O_RDONLY))
        for _ in range(but):
            os.close(taken.pop())

    yield take
    for fd in taken:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("left", [0, 1, 2, 3])
def test_a_host_without_descriptors_refuses_and_keeps_none(gated, no_more_descriptors, left):
    (gated.app / "folder" / "a" / "b").mkdir(parents=True)
    guest = gated(limits=DiskLimits(workspace_bytes=1 << 20))
    file, folder = guest.open("file"), guest.open("folder", flags=DIRECTORY, rights=READ)
    no_more_descriptors(but=left)
    for _ in range(5):
        answers = [
            guest.open("folder/a/b/c", flags=CREATE),
            guest.open("folder/a/../a/b/../b", rights=READ),
            guest.write(file, b"more"),
            guest.call("fd_readdir", folder, TEXT, 4096, 0, OUT),
            rename(guest, "folder/a", "folder/a2"),
            rename(guest, "folder/a2", "folder/a"),
            guest.call("path_filestat_get", APP, 1, *guest.text("folder/a/b/../b/x"), OUT),
        ]
        assert "trap" not in answers
        guest.call("fd_close", 8)
        guest.call("fd_close", 9)
    if left == 0:
        assert answers == [-EMFILE, -EMFILE, EMFILE, EMFILE, EMFILE, EMFILE, EMFILE]
    opened = [os.open("/", os.O_RDONLY) for _ in range(left)]
    with pytest.raises(OSError, match="Too many open files"):
        os.open("/", os.O_RDONLY)
    for fd in opened:
        os.close(fd)
    assert guest.open("folder/a/b/d", flags=CREATE) == -EMFILE or left > 2


# ---- marks that are left for others


@pytest.mark.parametrize("name", [".", "known"])
def test_a_change_of_times_in_tmp_is_a_use_of_it(gated, name):
    (gated.tmp / "known").touch()
    for change in (
        lambda guest: guest.call("path_filestat_set_times", TMP, 0, *guest.text(name), 1, 1, 5),
        lambda guest: guest.call("fd_filestat_set_times", guest.open(name, at=TMP, rights=READ), 1, 1, 5),
    ):
        guest = gated()
        assert change(guest) == 0
        assert guest.gate.touched_tmp
    guest = gated()
    assert guest.call("path_filestat_set_times", APP, 0, *guest.text("file"), 1, 1, 5) == 0
    assert not guest.gate.touched_tmp


@pytest.mark.parametrize("name", ["new/.", "new/./.", "to_new"])
def test_a_name_that_must_be_a_folder_is_not_made_a_file(gated, name):
    (gated.app / "to_new").symlink_to("new/")
    guest = gated()
    assert guest.open(name, flags=CREATE) == -ENOENT
    assert not (gated.app / "new").exists()


def test_the_text_of_a_link_counts_as_bytes_of_the_workspace(gated):
    guest = gated(limits=DiskLimits(workspace_bytes=2000))
    guest.put(0x8000, b"x" * 1000)
    answers = [guest.call("path_symlink", 0x8000, 1000, APP, *guest.text(f"to{n}")) for n in range(3)]
    assert answers == [0, ENOSPC, ENOSPC]


def test_a_link_that_takes_the_place_of_a_folder_is_not_measured(tmp_path):
    (tmp_path / "root" / "a" / "b").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    for number in range(9):
        (tmp_path / "b" / f"{number}").touch()
    steps = itertools.count()

    def swap():
        if next(steps) == 2:  # the top and `a` are read, `a/b` is not
            (tmp_path / "root" / "a").rename(tmp_path / "root" / "aside")
            (tmp_path / "root" / "a").symlink_to("..")

    assert measure(str(tmp_path / "root"), swap).files == 2


def test_a_hard_link_counts_as_bytes_of_the_workspace_and_not_as_written(gated):
    (gated.app / "big").write_bytes(b"x" * 1000)
    guest = gated(limits=DiskLimits(workspace_bytes=2500, write_bytes=3 * NODE_BYTES))
    answers = []
    for source, target in (("big", "big2"), ("big", "big3"), ("file", "small")):
        names = (*guest.text(source), APP, *guest.text(target, TEXT + 16))
        answers.append(guest.call("path_link", APP, 0, *names))
    assert answers == [0, ENOSPC, 0]


# ---- names as Linux takes them


@pytest.mark.parametrize("name", ["empty/.", "empty/./", "empty//.//", "to_empty/", "to_empty//"])
def test_a_folder_is_neither_removed_nor_moved_from_inside_or_through_a_link(gated, name):
    (gated.app / "empty").mkdir()
    (gated.app / "to_empty").symlink_to("empty")
    (gated.app / "other").mkdir()
    guest = gated()
    refused = {EBUSY, EINVAL, ENOTDIR}
    assert guest.call("path_remove_directory", APP, *guest.text(name)) in refused
    assert rename(guest, name, "moved") in refused
    assert rename(guest, "other", name) in refused
    assert guest.call("path_filestat_get", APP, 0, *guest.text(name), OUT) == 0
    assert sorted(path.name for path in gated.app.iterdir() if path.is_dir()) == [
        *("empty", "folder", "other", "to_empty")
    ]


def test_a_link_is_followed_unless_a_file_is_to_be_new(gated):
    guest = gated()
    assert guest.open("link", flags=EXCLUSIVE, rights=READ) >= 0
    assert guest.open("link", flags=EXCLUSIVE | CREATE) == -EEXIST
    assert guest.open("dangling", flags=EXCLUSIVE | CREATE) == -EEXIST
    assert guest.open("dangling", flags=CREATE) >= 0
    assert (gated.app / "nowhere").exists()


# ---- anything at all


EDGES = [
    0,
    1,
    2,
    7,
    24,
    99,
    4095,
    4096,
    END - 1,
    END,
    1 << 31,
    ALL,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
]
ODD_NAMES = [
    *NAMES[:24],
    ".metadata.json",
    b"\xff",
    b"bad\xff",
    "new",
    "new/.",
    "loop/x",
    "pipe",
    "../" * 900,
]


def any_arguments(chance, guest, signature):
    """Numbers that mean something now and then: open files, names, lists of buffers, flags."""
    name = chance.choice(ODD_NAMES)
    address, length = guest.text(name)
    guest.put(OUT, struct.pack("<IIII", TEXT, chance.choice([0, 4, 900]), TEXT, chance.choice([0, 1, END])))
    useful = [
        APP,
        TMP,
        DATA,
        6,
        7,
        8,
        address,
        length,
        OUT,
        OUT + 64,
        READ | WRITE,
        CREATE,
        TRUNCATE | CREATE,
    ]
    numbers = [chance.choice(EDGES if chance.random() < 0.3 else useful) for _ in signature]
    place = next((at for at in (1, 2) if signature[at : at + 2] == "ii"), None)
    if place and chance.random() < 0.8:
        numbers[0], numbers[place : place + 2] = chance.choice(useful[:6]), (address, length)
    return numbers


@pytest.mark.parametrize("seed", range(8))
def test_any_numbers_are_answered_and_leave_nothing_open(gated, seed):
    (gated.app / ".metadata.json").write_text(SECRET)
    (gated.app.parent / "outside").write_text(SECRET)
    (gated.app / "loop").symlink_to("loop/..")
    os.mkfifo(gated.app / "pipe")
    chance, calls = random.Random(seed), [*abi.SIGNATURES.items()]
    calls = [call for call in calls if call[0].startswith(("fd_", "path_"))]
    before = len(os.listdir("/proc/self/fd"))
    guest = gated(limits=DiskLimits(write_bytes=1 << 20, workspace_bytes=1 << 18, workspace_files=40))
    for _ in range(3000):
        function, signature = chance.choice(calls)
        if function != "fd_close" or chance.random() < 0.2:
            answer = guest.call(function, *any_arguments(chance, guest, signature))
            assert answer != "trap", (function, guest.ending)
    assert SECRET.encode() not in guest.get(0, END)
    assert len(os.listdir("/proc/self/fd")) <= before + 3 + 8
    guest.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert (gated.app / ".metadata.json").read_text() == SECRET
    assert [path.name for path in gated.data.iterdir()] == ["known"]
    assert sorted(path.name for path in gated.app.parent.iterdir()) == ["app", "data", "outside", "tmp"]
