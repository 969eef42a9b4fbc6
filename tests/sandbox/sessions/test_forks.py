"""Sessions that go on from where another one is."""

from __future__ import annotations

import os
import time

import pytest

from sandbox import ExecutionPolicy, InvalidSessionId
from sandbox.errors import WorkspaceUnusable
from sandbox.sessions import (
    create_session_sandbox,
    delete_session_workspace,
    fork_session,
    forks,
    list_session_files,
    list_sessions,
    make_session,
    read_session_metadata,
    saved,
    statefolder,
)

DRAW = """
import random, uuid, secrets
(random.random(), uuid.uuid4().hex, secrets.token_hex(), random.Random().random())
"""


@pytest.fixture
def box(stateful):
    box = stateful.new(save_within_seconds=1000)
    box.execute("x = [1]\nopen('a.txt', 'w').write('one')")
    return box


def fork(stateful, box, count=1):
    return [stateful.get(new) for new in fork_session(box.session_id, count, stateful.root)]


def test_a_fork_has_the_files_and_the_variables(stateful, box):
    (other,) = fork(stateful, box)
    assert other.session_id != box.session_id
    assert other.execute("x, open('a.txt').read()").value == "([1], 'one')"


def test_forks_share_no_writes(stateful, box):
    one, other = fork(stateful, box, 2)
    one.execute("x.append(2)\nopen('a.txt', 'a').write('+one')")
    other.execute("x.append(3)\nopen('a.txt', 'w').write('other')")
    box.execute("x.append(4)\nimport os\nos.unlink('a.txt')")
    for session in (box, one, other):
        session.hibernate()
    assert [session.execute("x").value for session in (box, one, other)] == ["[1, 4]", "[1, 2]", "[1, 3]"]
    read = "import os\nopen('a.txt').read() if os.path.exists('a.txt') else None"
    assert [session.execute(read).value for session in (one, other, box)] == ["'one+one'", "'other'", None]


def test_forks_draw_different_randomness(stateful, box):
    box.execute(DRAW)
    sessions = [box, *fork(stateful, box, 3)]
    drawn = [session.execute(DRAW).value for session in sessions]
    assert len(set(drawn)) == 4
    for place in range(4):
        assert len({eval(values)[place] for values in drawn}) == 4


def test_forks_draw_different_numbers_with_numpy(stateful):
    box = stateful.new(policy=ExecutionPolicy(preload=("numpy",)))
    box.execute("import numpy as np\nnp.random.rand()")
    draw = "(float(np.random.default_rng().random()), float(np.random.rand()))"
    drawn = [eval(session.execute(draw).value) for session in [box, *fork(stateful, box, 2)]]
    assert [len({values[place] for values in drawn}) for place in range(2)] == [3, 3]


def test_a_fork_knows_where_it_comes_from(stateful, box):
    (other,) = fork(stateful, box)
    found = read_session_metadata(other.session_id, stateful.root).as_json()
    assert (found["stateful"], found["forked_from"]) == (True, box.session_id)
    assert found["session_id"] == other.session_id


def test_a_session_that_never_ran_can_be_forked(stateful):
    box = stateful.new()
    (other,) = fork(stateful, box)
    assert (other.is_stateful, other.execute("x = 1\nx").value) == (True, "1")


def test_a_plain_session_can_be_forked(stateful):
    session_id, plain = create_session_sandbox(workspace_root=stateful.root)
    plain.execute("open('a.txt', 'w').write('one')")
    (new,) = fork_session(session_id, workspace_root=stateful.root)
    other = stateful.get(new)
    assert (other.is_stateful, other.execute("print(open('a.txt').read())").stdout) == (False, "one\n")
    assert not (stateful.root / ".state" / new).exists()


def test_a_hibernated_session_can_be_forked(stateful, box):
    box.close()
    (other,) = fork(stateful, box)
    assert other.execute("x").value == "[1]"


def test_a_fork_of_a_fork_goes_on(stateful, box):
    (one,) = fork(stateful, box)
    one.execute("x.append(2)")
    (two,) = fork(stateful, one)
    assert two.execute("x").value == "[1, 2]"
    assert read_session_metadata(two.session_id, stateful.root).forked_from == one.session_id


def test_a_fork_outlives_its_origin(stateful, box):
    (other,) = fork(stateful, box)
    delete_session_workspace(box.session_id, stateful.root)
    assert other.execute("x, open('a.txt').read()").value == "([1], 'one')"


def test_links_modes_and_times_come_along_and_nothing_is_followed(stateful, box, tmp_path):
    folder = stateful.root / box.session_id
    (tmp_path / "secret").write_text("secret")
    (folder / "out").symlink_to(tmp_path / "secret")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "sub").mkdir(0o750)
    (folder / "a.txt").chmod(0o640)
    os.utime(folder / "a.txt", (1_000_000, 2_000_000))
    os.mkfifo(folder / "pipe")
    (new,) = fork_session(box.session_id, workspace_root=stateful.root)
    copy = stateful.root / new
    assert (os.readlink(copy / "out"), os.readlink(copy / "dangling")) == (
        str(tmp_path / "secret"),
        "nowhere",
    )
    info = (copy / "a.txt").stat()
    assert (info.st_mode & 0o777, info.st_mtime) == (0o640, 2_000_000)
    assert (copy / "sub").stat().st_mode & 0o777 == 0o750
    assert not (copy / "pipe").exists()
    assert (copy / "a.txt").stat().st_ino != (folder / "a.txt").stat().st_ino


def test_names_that_are_kept_from_the_guest_stay_so(stateful):
    box = stateful.new(host_only=["secret.txt"])
    (stateful.root / box.session_id / "secret.txt").write_text("secret")
    (other,) = fork(stateful, box)
    assert other.execute("import os\nos.listdir()").value == "['user_code.py']"
    assert "secret.txt" not in list_session_files(other.session_id, stateful.root)


def test_a_fork_waits_for_the_unsaved_turn_of_another_process(stateful, box):
    box.hibernate()
    process = stateful.process_ahead(box.session_id, "x = 'theirs'")
    (other,) = fork(stateful, box)
    process.communicate()
    assert other.execute("x").value == "'theirs'"


def test_a_file_system_without_hard_links_gets_copies(stateful, box, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(statefolder.os, "link", refuse)
    (other,) = fork(stateful, box)
    assert other.execute("x").value == "[1]"
    box.checkpoint("first")
    box.execute("x = 2")
    box.restore("first")
    assert box.execute("x").value == "[1]"


def test_a_fork_that_fails_leaves_none_behind(stateful, box, monkeypatch):
    made = []

    def fail_at_the_third(*arguments):
        if len(made) == 2:
            raise OSError(28, "No space left on device")
        made.append(arguments)
        return clone(*arguments)

    clone = forks.clone_contents
    monkeypatch.setattr(forks, "clone_contents", fail_at_the_third)
    with pytest.raises(OSError, match="No space left"):
        fork_session(box.session_id, 3, stateful.root)
    assert [session.session_id for session in list_sessions(stateful.root)] == [box.session_id]
    assert sorted(path.name for path in (stateful.root / ".state").iterdir()) == [".images", box.session_id]


@pytest.mark.parametrize("count", [0, -1])
def test_a_count_below_one_is_refused(stateful, box, count):
    with pytest.raises(ValueError, match="it must be 1 or more"):
        fork_session(box.session_id, count, stateful.root)


def test_what_is_no_session_cannot_be_forked(stateful):
    with pytest.raises(InvalidSessionId):
        fork_session("../x", workspace_root=stateful.root)
    with pytest.raises(WorkspaceUnusable):
        fork_session("missing", workspace_root=stateful.root)
    assert not (stateful.root / "missing").exists()


def test_the_clock_of_a_fork_goes_on(stateful, box):
    box.execute("import time\nt = time.monotonic()")
    (other,) = fork(stateful, box)
    assert other.execute("time.monotonic() > t").value == "True"
    assert abs(float(other.execute("time.time()").value) - time.time()) < 60


def test_a_legacy_session_can_be_forked(stateful):
    make_session("legacy", stateful.root)
    (stateful.root / "legacy" / ".metadata.json").unlink()
    (stateful.root / "legacy" / "f.txt").write_text("f")
    (new,) = fork_session("legacy", workspace_root=stateful.root)
    assert list_session_files(new, stateful.root) == ["f.txt"]


def test_forks_in_the_same_process_expand_nothing(stateful, box, monkeypatch):
    def refuse(_data):
        raise AssertionError("a save was read again")

    monkeypatch.setattr(saved, "decode", refuse)
    assert [other.execute("x").value for other in fork(stateful, box, 2)] == ["[1]", "[1]"]


def test_forks_are_read_from_disk_where_there_is_no_room_to_keep_them(stateful, box, monkeypatch):
    monkeypatch.setattr(statefolder, "MOST_SHARED_BYTES", 0)
    (other,) = fork(stateful, box)
    assert len(statefolder._shared_saves) == 0
    assert other.execute("x").value == "[1]"
