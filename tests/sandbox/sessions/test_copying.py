"""Files and folders carried between host and session."""

from __future__ import annotations

import os

import pytest

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


def test_what_is_missing_says_so(session, tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"):
        copy_into_session("s", tmp_path / "nothing", "x", tmp_path / "root")
    with pytest.raises(FileNotFoundError, match="the session has no such file"):
        copy_out_of_session("s", "nothing", tmp_path / "x", tmp_path / "root")
    with pytest.raises(InvalidSessionPath):
        copy_out_of_session("s", "../x", tmp_path / "x", tmp_path / "root")
