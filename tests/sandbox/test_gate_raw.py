"""The gate from a guest that calls the raw functions with anything."""

from __future__ import annotations

import os
import random
import struct

import pytest

from sandbox.wasm import abi
from sandbox.wasm.quota import DiskLimits

TEXT, OUT = 0x1000, 0x2000
END = 4 << 16  # of the memory
FAR = 0xFFFF_FFF0
ALL = 0xFFFF_FFFF
CREATE, DIRECTORY, EXCLUSIVE, TRUNCATE = 1, 2, 4, 8
READ, WRITE = 1 << 1, 1 << 6
APP, TMP, DATA = 3, 4, 5
EACCES, EBADF, EINVAL, ENAMETOOLONG, ENOENT = 2, 8, 28, 37, 44
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
