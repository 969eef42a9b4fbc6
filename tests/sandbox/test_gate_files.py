"""Files and folders, from a guest that calls the raw functions."""

from __future__ import annotations

import contextlib
import os
import resource

import pytest

from sandbox.wasm.quota import DiskLimits

TEXT, OUT = 0x1000, 0x2000
FAR = 0xFFFF_FFF0
CREATE, DIRECTORY, EXCLUSIVE = 1, 2, 4
READ, WRITE = 1 << 1, 1 << 6
APP, TMP, DATA = 3, 4, 5
EBADF, EBUSY, EEXIST, EFAULT, EINVAL = 8, 10, 20, 21, 28
EMFILE, ENOENT, ENOSPC, ENOTDIR, EXDEV = 33, 44, 51, 54, 75


def rename(guest, old, new, *, at=APP, to=APP):
    return guest.call("path_rename", at, *guest.text(old), to, *guest.text(new, TEXT + 0x3000))


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


# ---- names


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


def test_a_fifo_of_the_host_is_not_opened_and_does_not_block(gated):
    os.mkfifo(gated.app / "pipe")
    (gated.app / "to_pipe").symlink_to("pipe")
    guest = gated()
    for rights in (READ, WRITE, READ | WRITE):
        for name in ("pipe", "to_pipe", "./pipe", "pipe/", "pipe/."):
            assert guest.open(name, rights=rights) < 0
    assert guest.call("path_filestat_get", APP, 0, *guest.text("pipe"), OUT) == 0


@pytest.mark.parametrize("name", ["new/.", "new/./.", "to_new"])
def test_a_name_that_must_be_a_folder_is_not_made_a_file(gated, name):
    (gated.app / "to_new").symlink_to("new/")
    guest = gated()
    assert guest.open(name, flags=CREATE) == -ENOENT
    assert not (gated.app / "new").exists()


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


# ---- what is told of them


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
