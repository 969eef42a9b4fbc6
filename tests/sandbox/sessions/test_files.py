"""The host's file functions, beside a guest that does its worst."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandbox.errors import InvalidSessionPath, WorkspaceUnusable
from sandbox.sessions import (
    SessionUsage,
    create_session_sandbox,
    delete_session_path,
    get_session_sandbox,
    list_session_files,
    make_session,
    read_session_file,
    session_usage,
    write_session_file,
)


@pytest.fixture
def session(tmp_path):
    """A session called `s`, and its folder."""
    return make_session("s", tmp_path)


def test_a_written_file_is_read_back_and_leaves_nothing_else(session, tmp_path):
    write_session_file("s", "a/b/c.bin", b"\0\xff", tmp_path)
    write_session_file("s", Path("text.txt"), "grüße", str(tmp_path))
    assert read_session_file("s", "a/b/c.bin", tmp_path) == b"\0\xff"
    assert read_session_file("s", "./text.txt", tmp_path) == "grüße".encode()
    assert sorted(os.listdir(session)) == [".metadata.json", "a", "text.txt"]
    assert os.listdir(session / "a/b") == ["c.bin"]


def test_what_a_killed_write_left_is_unseen_and_goes_with_the_next(session, tmp_path, killed_at):
    write = "from sandbox import write_session_file; write_session_file('s', 'd/a', b'half', sys.argv[1])"
    killed_at("replace", write, tmp_path)
    assert len(os.listdir(session / "d")) == 1
    assert list_session_files("s", tmp_path) == []
    write_session_file("s", "d/b", b"whole", tmp_path)
    assert os.listdir(session / "d") == ["b"]


def test_a_list_is_sorted_recursive_and_without_folders_links_and_host_only_names(session, tmp_path):
    for path in ("z.txt", "a/deep/x.csv", "a/y.csv"):
        write_session_file("s", path, "x", tmp_path)
    (session / "link").symlink_to("z.txt")
    (session / "empty").mkdir()
    (session / "a" / ".METADATA.json.old").write_text("host")
    assert list_session_files("s", tmp_path) == ["a/deep/x.csv", "a/y.csv", "z.txt"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.csv", ["a/b/deep.csv", "a/mid.csv", "top.csv"]),
        ("a/*.csv", ["a/mid.csv"]),
        ("a/**/*.csv", ["a/b/deep.csv", "a/mid.csv"]),
        ("a/**", ["a/b/deep.csv", "a/b/deep.txt", "a/mid.csv"]),
        ("b/*", ["a/b/deep.csv", "a/b/deep.txt"]),
        ("**/deep.*", ["a/b/deep.csv", "a/b/deep.txt"]),
        ("[tm]*.csv", ["a/mid.csv", "top.csv"]),
        ("top.???", ["top.csv"]),
        ("TOP.csv", []),
    ],
)
def test_a_pattern_begins_at_any_depth(session, tmp_path, pattern, expected):
    for path in ("top.csv", "a/mid.csv", "a/b/deep.csv", "a/b/deep.txt"):
        write_session_file("s", path, "x", tmp_path)
    assert list_session_files("s", tmp_path, pattern=pattern) == expected


def test_a_pattern_of_many_stars_takes_no_longer_for_a_deep_file(session, tmp_path):
    path = "a/" * 60 + "file"
    write_session_file("s", path, "x", tmp_path)
    assert list_session_files("s", tmp_path, pattern="**/a/" * 60 + "file") == [path]
    assert list_session_files("s", tmp_path, pattern="**/a/" * 30 + "other") == []


@pytest.mark.parametrize("pattern", ["../*", "/etc/*", "", ".", "a\0b"])
def test_a_pattern_that_leads_out_is_refused(session, tmp_path, pattern):
    with pytest.raises(InvalidSessionPath):
        list_session_files("s", tmp_path, pattern=pattern)


@pytest.mark.parametrize(
    "name", [".metadata.json", "a/.metadata.json", ".MetaData.JSON", ".metadata.json.next"]
)
def test_a_host_only_name_is_refused_by_every_function(session, tmp_path, name):
    before = (session / ".metadata.json").read_bytes()
    for call in (
        lambda: read_session_file("s", name, tmp_path),
        lambda: write_session_file("s", name, b"", tmp_path),
        lambda: delete_session_path("s", name, tmp_path, recursive=True),
    ):
        with pytest.raises(InvalidSessionPath, match="kept for the host"):
            call()
    assert (session / ".metadata.json").read_bytes() == before


def test_names_that_the_metadata_keeps_for_the_host_are_refused_and_unlisted(tmp_path):
    folder = make_session(
        "h", tmp_path, host_only=("config.json",), fill=lambda at: (at / "config.json").write_text("secret")
    )
    with pytest.raises(InvalidSessionPath, match="kept for the host"):
        read_session_file("h", "Config.json", tmp_path)
    assert list_session_files("h", tmp_path) == []
    box = get_session_sandbox("h", workspace_root=tmp_path)
    assert box.execute("import os; print(os.listdir('.'), os.path.exists('config.json'))").stdout == (
        "['user_code.py'] False\n"
    )
    assert (folder / "config.json").read_text() == "secret"


def test_metadata_that_gives_no_date_still_keeps_names_for_the_host(session, tmp_path):
    (session / ".metadata.json").write_text('{"updated_at": 5, "host_only": ["config.json", 7]}')
    (session / "config.json").write_text("secret")
    with pytest.raises(InvalidSessionPath, match="kept for the host"):
        read_session_file("s", "config.json", tmp_path)
    box = get_session_sandbox("s", workspace_root=tmp_path)
    assert box.execute("import os; print(os.listdir('.'))").stdout == "['user_code.py']\n"


def test_what_is_missing_or_in_the_way_raises_what_the_system_would(session, tmp_path):
    (session / "folder").mkdir()
    (session / "file").write_text("x")
    for missing in ("nothing", "no/thing"):
        with pytest.raises(FileNotFoundError, match=missing):
            read_session_file("s", missing, tmp_path)
        with pytest.raises(FileNotFoundError, match=missing):
            delete_session_path("s", missing, tmp_path)
    with pytest.raises(IsADirectoryError, match="folder"):
        read_session_file("s", "folder", tmp_path)
    with pytest.raises(IsADirectoryError, match="folder"):
        write_session_file("s", "folder", b"x", tmp_path)
    with pytest.raises(NotADirectoryError):
        write_session_file("s", "file/x", b"x", tmp_path)
    with pytest.raises(IsADirectoryError, match="folder"):
        delete_session_path("s", "folder", tmp_path)
    with pytest.raises(FileExistsError, match="file"):
        write_session_file("s", "file", b"new", tmp_path, overwrite=False)
    assert (session / "file").read_text() == "x"
    assert sorted(os.listdir(session)) == [".metadata.json", "file", "folder"]


def test_a_missing_session_is_not_made_by_a_file_function(tmp_path):
    for call in (
        lambda: list_session_files("ghost", tmp_path),
        lambda: read_session_file("ghost", "x", tmp_path),
        lambda: write_session_file("ghost", "x", b"", tmp_path),
        lambda: delete_session_path("ghost", "x", tmp_path),
        lambda: session_usage("ghost", tmp_path),
    ):
        with pytest.raises(FileNotFoundError, match="no such session"):
            call()
    assert os.listdir(tmp_path) == []


def test_a_session_folder_that_is_a_symlink_is_not_used(tmp_path):
    make_session("real", tmp_path / "elsewhere")
    (tmp_path / "fake").symlink_to(tmp_path / "elsewhere" / "real")
    with pytest.raises(WorkspaceUnusable):
        list_session_files("fake", tmp_path)
    with pytest.raises(WorkspaceUnusable):
        get_session_sandbox("fake", workspace_root=tmp_path)


def test_no_function_goes_through_a_symlink(session, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("kept")
    (session / "out").symlink_to(outside)
    (session / "file").symlink_to(outside / "secret")
    for path in ("out/secret", "file"):
        with pytest.raises(InvalidSessionPath, match="symlink"):
            read_session_file("s", path, tmp_path)
    for call in (
        lambda: write_session_file("s", "out/secret", b"overwritten", tmp_path),
        lambda: write_session_file("s", "out/new", b"x", tmp_path),
        lambda: delete_session_path("s", "out/secret", tmp_path),
    ):
        with pytest.raises(InvalidSessionPath, match="symlink"):
            call()
    write_session_file("s", "file", b"mine", tmp_path)
    delete_session_path("s", "out", tmp_path, recursive=True)
    assert (outside / "secret").read_text() == "kept"
    assert os.listdir(outside) == ["secret"]
    assert not (session / "file").is_symlink()


def test_what_is_neither_file_nor_folder_blocks_nobody(session, tmp_path, monkeypatch):
    os.mkfifo(session / "fifo")
    monkeypatch.chdir(session)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    for name in ("fifo", "socket"):
        with pytest.raises(InvalidSessionPath, match="neither a file nor a folder"):
            read_session_file("s", name, tmp_path)
        assert list_session_files("s", tmp_path) == []
        delete_session_path("s", name, tmp_path)


def test_a_folder_is_deleted_with_everything_in_it_and_nothing_it_links_to(session, tmp_path):
    (tmp_path / "kept").write_text("kept")
    write_session_file("s", "d/e/f.txt", "x", tmp_path)
    (session / "d" / "link").symlink_to(tmp_path / "kept")
    delete_session_path("s", "d", tmp_path, recursive=True)
    assert os.listdir(session) == [".metadata.json"]
    assert (tmp_path / "kept").exists()


def test_folders_nested_deeper_than_descriptors_and_paths_reach_can_be_used_and_deleted(session, tmp_path):
    depth = 3000
    fd = os.open(session, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("bottom.txt", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    assert session_usage("s", tmp_path).files == 1
    [path] = list_session_files("s", tmp_path, pattern="bottom.txt")
    assert path.count("/") == depth
    assert read_session_file("s", path, tmp_path) == b""
    delete_session_path("s", "d", tmp_path, recursive=True)
    assert os.listdir(session) == [".metadata.json"]


def test_usage_counts_bytes_files_and_saved_state(session, tmp_path):
    write_session_file("s", "a.txt", b"x" * 1000, tmp_path)
    state = tmp_path / ".state" / "s"
    state.mkdir(parents=True)
    (state / "pages").write_bytes(b"p" * 5000)
    metadata = (session / ".metadata.json").stat().st_size
    assert session_usage("s", tmp_path) == SessionUsage(bytes=6000 + metadata, files=1, state_bytes=5000)


def test_every_call_is_logged_with_path_and_size(session, tmp_path, logger, events):
    write_session_file("s", "a.txt", "four", tmp_path, logger=logger)
    read_session_file("s", "a.txt", tmp_path, logger=logger)
    list_session_files("s", tmp_path, logger=logger)
    delete_session_path("s", "a.txt", tmp_path, logger=logger)
    assert events == [
        ("info", "session.file.written", {"session_id": "s", "path": "a.txt", "size": 4}),
        ("info", "session.file.read", {"session_id": "s", "path": "a.txt", "size": 4}),
        ("info", "session.file.listed", {"session_id": "s", "path": "**", "size": 1}),
        ("info", "session.file.deleted", {"session_id": "s", "path": "a.txt", "size": 4}),
    ]


SWAPPER = """
import os, shutil, time
# The door is in turn a real folder and a symlink out of the workspace.
os.symlink('../outside', 'link')
print('swapping', flush=True)
end = time.monotonic() + 60
while time.monotonic() < end and not os.path.exists('stop'):
    try:
        os.makedirs('door', exist_ok=True)
        open('door/secret', 'w').write('inside')
        shutil.rmtree('door')
        os.rename('link', 'door')
        os.rename('door', 'link')
    except OSError:
        pass
print('done')
"""


def test_a_guest_that_swaps_a_folder_for_a_symlink_never_leads_the_host_outside(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("OUTSIDE")
    session_id, box = create_session_sandbox(workspace_root=tmp_path)
    started = threading.Event()
    options = {"on_output": lambda stream, data: started.set(), "timeout_seconds": 90}
    pool = ThreadPoolExecutor(1)
    guest = pool.submit(box.execute, SWAPPER, **options)
    guest.add_done_callback(lambda _: started.set())
    assert started.wait(60)
    seen = set()
    for number in range(2000):
        seen.add(_outcome(lambda: read_session_file(session_id, "door/secret", tmp_path)))
        seen.add(_outcome(lambda: write_session_file(session_id, "door/secret", b"inside", tmp_path)))
        if number % 20 == 0:
            seen.add(_outcome(lambda: list_session_files(session_id, tmp_path) and None))
            seen.add(_outcome(lambda: delete_session_path(session_id, "door/x", tmp_path)))
    write_session_file(session_id, "stop", b"", tmp_path)
    assert guest.result(120).stdout == "swapping\ndone\n"
    pool.shutdown()
    assert {b"inside", InvalidSessionPath} <= seen
    assert seen <= {b"inside", b"", None, InvalidSessionPath, FileNotFoundError}
    assert (outside / "secret").read_text() == "OUTSIDE"
    assert os.listdir(outside) == ["secret"]


def _outcome(call):
    try:
        return call()
    except (OSError, ValueError) as error:
        return type(error)
