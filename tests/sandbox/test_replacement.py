"""Files that take another's place in one step, and what killed writers leave of them."""

from __future__ import annotations

import os
from threading import Barrier, Thread

import pytest

from sandbox import tree
from sandbox.replacement import replacing

WRITE = """
from sandbox import tree
from sandbox.replacement import replacing
with tree.closing_fd(tree.open_folder(sys.argv[1])) as folder:
    with replacing("target", folder, ".writing-", overwrite=sys.argv[2] == "overwrite") as fd:
        os.write(fd, b"of the killed")
"""


@pytest.fixture
def folder_fd(tmp_path):
    with tree.closing_fd(tree.open_folder(tmp_path)) as fd:
        yield fd


def write(folder_fd, content, **options):
    with replacing("target", folder_fd, ".writing-", **options) as fd:
        os.write(fd, content)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_a_killed_writer_left_goes_with_the_next_write(tmp_path, folder_fd, killed_at):
    killed_at("replace", WRITE, tmp_path, "overwrite")
    assert contents(tmp_path) == {".writing-0": b"of the killed"}
    write(folder_fd, b"new")
    assert contents(tmp_path) == {"target": b"new"}


def test_a_writer_killed_after_its_file_appeared_costs_nobody_the_file(tmp_path, folder_fd, killed_at):
    killed_at("unlink", WRITE, tmp_path, "keep")
    assert contents(tmp_path) == {".writing-0": b"of the killed", "target": b"of the killed"}
    with pytest.raises(FileExistsError):
        write(folder_fd, b"new", overwrite=False)
    assert contents(tmp_path) == {"target": b"of the killed"}


def test_what_a_living_writer_writes_is_left_alone(tmp_path, folder_fd):
    with replacing("slow", folder_fd, ".writing-") as fd:
        os.write(fd, b"half")
        with replacing("other", folder_fd, ".writing-"):
            write(folder_fd, b"new")
        assert contents(tmp_path) == {".writing-0": b"half", "other": b"", "target": b"new"}
    assert contents(tmp_path) == {"slow": b"half", "other": b"", "target": b"new"}


def test_leftovers_go_from_before_and_behind_a_living_writer(tmp_path, folder_fd):
    for number in (0, 2, 3):
        (tmp_path / f".writing-{number}").write_bytes(b"left")
    (tmp_path / ".writing-1").mkdir()
    write(folder_fd, b"new")
    write(folder_fd, b"new")
    assert {path.name for path in tmp_path.iterdir()} == {"target", ".writing-1"}


def test_nothing_but_a_file_is_taken_for_a_leftover(tmp_path, folder_fd):
    (tmp_path / "elsewhere").write_bytes(b"kept")
    (tmp_path / ".writing-0").symlink_to("elsewhere")
    os.mkfifo(tmp_path / ".writing-1")
    write(folder_fd, b"new")
    assert (tmp_path / "elsewhere").read_bytes() == b"kept"
    assert (tmp_path / ".writing-0").is_symlink()
    assert (tmp_path / ".writing-1").is_fifo()


def test_many_writers_at_once_all_succeed_and_leave_nothing(tmp_path, folder_fd):
    start = Barrier(8)

    def write_often():
        start.wait()
        for _ in range(50):
            write(folder_fd, b"whole")

    writers = [Thread(target=write_often) for _ in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert contents(tmp_path) == {"target": b"whole"}
