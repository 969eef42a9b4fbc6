"""Files and folders carried between host and session."""

from __future__ import annotations

import os

import pytest

from sandbox import tree
from sandbox.errors import InvalidSessionPath
from sandbox.sessions import copy_into_session, copy_out_of_session, list_session_files, make_session


@pytest.fixture
def session(tmp_path):
    return make_session("s", tmp_path / "root")


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("a")
    (folder / "sub" / "b.bin").write_bytes(b"b" * 3_000_000)
    (folder / "link").symlink_to("/etc/passwd")
    (folder / ".metadata.json").write_text("{}")
    return folder


def test_a_folder_goes_in_and_out_without_links_and_host_only_names(session, source, tmp_path):
    heard = []
    result = copy_into_session("s", source, "in/deep", tmp_path / "root", progress=heard.append)
    assert (result.files, result.bytes) == (["a.txt", "sub/b.bin"], 3_000_001)
    assert result.left_out == [".metadata.json", "link"]
    assert sum(heard) == 3_000_001
    assert list_session_files("s", tmp_path / "root") == ["in/deep/a.txt", "in/deep/sub/b.bin"]
    out = copy_out_of_session("s", "in/deep", tmp_path / "new" / "out", tmp_path / "root")
    assert out.files == result.files
    assert (tmp_path / "new/out/sub/b.bin").read_bytes() == b"b" * 3_000_000


def test_a_file_goes_in_under_its_own_name_and_out_under_another(session, source, tmp_path):
    assert copy_into_session("s", source / "a.txt", workspace_root=tmp_path / "root").files == ["a.txt"]
    copy_out_of_session("s", "a.txt", tmp_path / "copy.txt", tmp_path / "root")
    assert (tmp_path / "copy.txt").read_text() == "a"
    assert sorted(os.listdir(session)) == [".metadata.json", "a.txt"]


def test_the_whole_workspace_comes_out_without_what_the_guest_links_to(session, tmp_path):
    (session / "x").write_text("x")
    (session / "passwd").symlink_to("/etc/passwd")
    result = copy_out_of_session("s", None, tmp_path / "all", tmp_path / "root")
    assert (result.files, result.left_out) == (["x"], [".metadata.json", "passwd"])
    assert os.listdir(tmp_path / "all") == ["x"]


def test_what_is_there_is_kept_where_overwriting_is_not_wanted(session, source, tmp_path):
    (session / "a.txt").write_text("mine")
    with pytest.raises(FileExistsError):
        copy_into_session("s", source / "a.txt", workspace_root=tmp_path / "root", overwrite=False)
    assert (session / "a.txt").read_text() == "mine"
    assert sorted(os.listdir(session)) == [".metadata.json", "a.txt"]


def test_a_file_of_the_host_is_kept_where_overwriting_is_not_wanted(session, source, tmp_path):
    (session / "a.txt").write_text("the session's")
    with pytest.raises(FileExistsError):
        copy_out_of_session("s", "a.txt", source / "a.txt", tmp_path / "root", overwrite=False)
    assert (source / "a.txt").read_text() == "a"
    assert sorted(os.listdir(source)) == [".metadata.json", "a.txt", "link", "sub"]


def test_what_a_killed_copy_left_goes_with_the_next(session, source, tmp_path, killed_at):
    copy_into_session("s", source / "a.txt", None, tmp_path / "root")
    copy = "from sandbox import copy_out_of_session; copy_out_of_session('s', 'a.txt', *sys.argv[1:])"
    killed_at("replace", copy, tmp_path / "out" / "a.txt", tmp_path / "root")
    assert len(os.listdir(tmp_path / "out")) == 1
    copy_out_of_session("s", "a.txt", tmp_path / "out" / "b.txt", tmp_path / "root")
    assert os.listdir(tmp_path / "out") == ["b.txt"]


def test_no_copy_goes_through_a_symlink_in_the_session(session, source, tmp_path):
    (tmp_path / "outside").mkdir()
    (session / "out").symlink_to(tmp_path / "outside")
    with pytest.raises(InvalidSessionPath, match="symlink"):
        copy_into_session("s", source, "out/x", tmp_path / "root")
    with pytest.raises(InvalidSessionPath, match="symlink"):
        copy_out_of_session("s", "out", tmp_path / "stolen", tmp_path / "root")
    assert os.listdir(tmp_path / "outside") == []


def test_a_deep_copy_takes_as_many_steps_as_there_are_folders(session, tmp_path, monkeypatch):
    depth, opened, real_open = 1500, [], os.open
    fd = os.open(session, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        above, fd = fd, os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(above)
    os.close(os.open("bottom.txt", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    monkeypatch.setattr(os, "open", lambda *given, **named: opened.append(1) or real_open(*given, **named))
    copied = copy_out_of_session("s", None, tmp_path / "out", tmp_path / "root")
    assert copied.files == ["d/" * depth + "bottom.txt"]
    assert len(opened) < 10 * depth
    with tree.closing_fd(tree.open_folder(tmp_path)) as fd:
        tree.remove_contents(fd)  # too deep for what cleans up after tests


def test_branches_of_every_depth_are_copied_to_their_places(session, tmp_path):
    paths = ["a/b/c/d/1", "a/b/2", "a/e/f/3", "a/4", "g/5", "g/h/i/6", "7"]
    for path in paths:
        (tmp_path / "source" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / path).write_text(path)
    copy_into_session("s", tmp_path / "source", "in", tmp_path / "root")
    copied = copy_out_of_session("s", "in", tmp_path / "out", tmp_path / "root")
    assert copied.files == sorted(paths)
    assert {path: (tmp_path / "out" / path).read_text() for path in paths} == {path: path for path in paths}


def test_a_folder_that_is_moved_away_under_a_copy_is_made_again(session, tmp_path):
    for path in ("top/a/1", "top/a/b/2", "top/c/3", "top/c/d/4"):
        (tmp_path / "source" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / path).write_text(path)
    moved = []

    def move_away(_count):
        """After each file, as a guest may do."""
        if (session / "in/top").exists():
            (session / "in/top").rename(session / f"moved-{len(moved)}")
            moved.append(1)

    copy_into_session("s", tmp_path / "source", "in", tmp_path / "root", progress=move_away)
    found = {path.name: path.read_text() for path in session.rglob("[1234]")}
    assert found == {"1": "top/a/1", "2": "top/a/b/2", "3": "top/c/3", "4": "top/c/d/4"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root", "source"]
    assert not (session / "c").exists()


def test_the_whole_workspace_goes_into_the_folder_one_is_in(session, source, tmp_path, monkeypatch):
    copy_into_session("s", source / "a.txt", None, tmp_path / "root")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert copy_out_of_session("s", None, ".", tmp_path / "root").files == ["a.txt"]
    assert os.listdir() == ["a.txt"]
    with pytest.raises(IsADirectoryError):
        copy_out_of_session("s", "a.txt", ".", tmp_path / "root")


def test_what_is_missing_says_so(session, tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"):
        copy_into_session("s", tmp_path / "nothing", "x", tmp_path / "root")
    with pytest.raises(FileNotFoundError, match="the session has no such file"):
        copy_out_of_session("s", "nothing", tmp_path / "x", tmp_path / "root")
    with pytest.raises(InvalidSessionPath):
        copy_out_of_session("s", "../x", tmp_path / "x", tmp_path / "root")
