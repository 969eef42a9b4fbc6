"""What a guest that calls the raw functions may put on the disk."""

from __future__ import annotations

import itertools
import struct

from sandbox.wasm.quota import NODE_BYTES, DiskLimits, measure

TEXT, OUT = 0x1000, 0x2000
CREATE, TRUNCATE = 1, 8
APP, TMP = 3, 4
ENOSPC = 51


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
