"""Going back to named states of a session."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys

import pytest

from sandbox import CheckpointUnknown, InvalidCheckpointName, NotStateful
from sandbox.sessions import (
    archive_session,
    checkpoints,
    delete_session_workspace,
    fork_session,
    list_session_files,
    read_session_file,
    read_session_metadata,
    restore_session,
)

WRITE = "open('a.txt', 'w').write({!r})"
CHANGE = "x = 2\nopen('new.txt', 'w').close()\n" + WRITE.format("two")
# Goes back to a checkpoint, or takes it, and is killed at the n-th time that something is renamed.
KILLED = """
import os, sys
from sandbox import get_session_sandbox
act, session_id, root, moment = *sys.argv[1:4], int(sys.argv[4])
box = get_session_sandbox(session_id, workspace_root=root)
rename, renamed = os.rename, []
def rename_or_die(*arguments, **options):
    renamed.append(arguments)
    if len(renamed) == moment:
        os.kill(os.getpid(), 9)
    return rename(*arguments, **options)
os.rename = rename_or_die
getattr(box, act)("first")
"""


@pytest.fixture
def box(stateful):
    box = stateful.new(save_within_seconds=1000)
    box.execute("x = 1\n" + WRITE.format("one"))
    return box


def content(stateful, box, name="a.txt"):
    return read_session_file(box.session_id, name, stateful.root).decode()


def test_interpreter_and_files_go_back_together(stateful, box):
    kept = box.checkpoint("first")
    assert (kept.name, kept.has_interpreter, kept.has_files) == ("first", True, True)
    box.execute("x = 2\ny = 3\nopen('new.txt', 'w').close()\n" + WRITE.format("two"))
    box.restore("first")
    assert box.execute("x, 'y' in globals()").value == "(1, False)"
    assert list_session_files(box.session_id, stateful.root) == ["a.txt", "user_code.py"]
    assert content(stateful, box) == "one"


def test_the_interpreter_alone_goes_back(stateful, box):
    box.checkpoint("first")
    box.execute("x = 2\n" + WRITE.format("two"))
    box.restore("first", files=False)
    assert (box.execute("x").value, content(stateful, box)) == ("1", "two")


def test_a_checkpoint_of_the_interpreter_alone_leaves_the_files(stateful, box):
    kept = box.checkpoint("light", files=False)
    assert (kept.has_interpreter, kept.has_files) == (True, False)
    box.execute("x = 2\n" + WRITE.format("two"))
    box.restore("light")
    assert (box.execute("x").value, content(stateful, box)) == ("1", "two")


def test_a_checkpoint_can_be_gone_back_to_again_and_again(stateful, box):
    box.checkpoint("first")
    for _ in range(3):
        box.execute("x += 10\n" + WRITE.format("changed"))
        box.restore("first")
        assert (box.execute("x").value, content(stateful, box)) == ("1", "one")


def test_going_back_twice_in_a_row_leaves_nothing_behind(stateful, box):
    box.checkpoint("first")
    for _ in range(2):
        box.restore("first")
    assert list((stateful.root / ".state" / box.session_id).rglob(".tmp-*")) == []
    assert box.execute("x").value == "1"


def test_going_back_does_not_change_the_checkpoint(stateful, box):
    box.checkpoint("first")
    box.restore("first")
    box.execute("x = 2\n" + WRITE.format("two") + "\nopen('a.txt', 'a').write('+')")
    box.hibernate()
    box.restore("first")
    assert (box.execute("x").value, content(stateful, box)) == ("1", "one")


def test_a_checkpoint_of_the_same_name_is_replaced(stateful, box):
    box.checkpoint("same")
    box.execute("x = 2")
    box.checkpoint("same")
    box.execute("x = 3")
    box.restore("same")
    assert box.execute("x").value == "2"
    assert [kept.name for kept in box.list_checkpoints()] == ["same"]


def test_checkpoints_are_listed_oldest_first(box):
    assert box.list_checkpoints() == []
    for name in ("b", "a", "c"):
        box.checkpoint(name)
    assert [kept.name for kept in box.list_checkpoints()] == ["b", "a", "c"]


def test_an_unknown_checkpoint_changes_nothing(box):
    box.execute("x = 5")
    with pytest.raises(CheckpointUnknown, match="has no checkpoint 'nothing'; list_checkpoints names them"):
        box.restore("nothing")
    assert box.execute("x").value == "5"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", ".tmp-1", "a" * 65, "a\n", "a\0", "ä", 5, None]
)
def test_names_that_could_lead_elsewhere_are_refused(stateful, box, name):
    box.hibernate()
    before = sorted(stateful.root.rglob("*"))
    for act in (box.checkpoint, box.restore):
        with pytest.raises(InvalidCheckpointName):
            act(name)
    assert sorted(stateful.root.rglob("*")) == before
    assert box.execute("x").value == "1"


def test_a_checkpoint_has_the_turns_that_were_not_saved_yet(stateful, box):
    box.execute("x = 9")
    box.checkpoint("now")
    stateful.lose_memory(box)
    box.execute("x = 0")
    box.restore("now")
    assert box.execute("x").value == "9"


def test_a_checkpoint_waits_for_the_unsaved_turn_of_another_process(stateful, box):
    box.hibernate()
    process = stateful.process_ahead(box.session_id, "x = 'theirs'")
    box.checkpoint("now")
    process.communicate()
    box.execute("x = 'mine'")
    box.restore("now")
    assert box.execute("x").value == "'theirs'"


def test_going_back_is_not_undone_by_the_unsaved_turn_of_another_process(stateful, box):
    box.checkpoint("first")
    box.hibernate()
    then = "print(box.execute('x').value)"
    process = stateful.process_ahead(box.session_id, "x = 'theirs'", then=then)
    box.restore("first")
    assert box.execute("x").value == "1"
    box.hibernate()
    assert process.communicate("\n")[0] == "1\n"


def test_a_session_that_never_ran_goes_back_to_nothing(stateful):
    box = stateful.new()
    kept = box.checkpoint("empty")
    assert (kept.has_interpreter, kept.has_files) == (False, True)
    box.execute("x = 1\nopen('f.txt', 'w').close()")
    box.restore("empty")
    assert list_session_files(box.session_id, stateful.root) == []
    assert box.execute("'x' in globals()").value == "False"


def test_a_plain_session_has_checkpoints_of_its_files(stateful):
    box = stateful.new(stateful=False)
    box.execute(WRITE.format("one"))
    kept = box.checkpoint("first")
    assert (kept.has_interpreter, kept.has_files) == (False, True)
    box.execute(WRITE.format("two"))
    box.restore("first")
    assert content(stateful, box) == "one"
    with pytest.raises(NotStateful):
        box.checkpoint("second", files=False)


def test_links_modes_folders_and_metadata_come_back(stateful, box):
    folder = stateful.root / box.session_id
    box.execute(
        "import os\nos.makedirs('deep/er')\nopen('deep/er/f', 'w').write('f')\nos.symlink('a.txt', 'link')"
    )
    (folder / "a.txt").chmod(0o640)
    (folder / "empty").mkdir(0o750)
    before = read_session_metadata(box.session_id, stateful.root)
    box.checkpoint("first")
    box.execute(
        "import shutil\nshutil.rmtree('deep')\nos.unlink('link')\nos.unlink('a.txt')\nos.rmdir('empty')"
    )
    box.restore("first")
    assert (folder / "deep/er/f").read_text() == "f"
    assert os.readlink(folder / "link") == "a.txt"
    assert (folder / "a.txt").stat().st_mode & 0o777 == 0o640
    assert (folder / "empty").stat().st_mode & 0o777 == 0o750
    after = read_session_metadata(box.session_id, stateful.root)
    assert (after.created_at, after.stateful) == (before.created_at, True)


def test_a_copy_that_fails_leaves_the_files_as_they_are(stateful, box, monkeypatch):
    box.checkpoint("first")
    box.execute(WRITE.format("two"))
    moves = []

    def fail_late(*arguments, **options):
        moves.append(arguments)
        if len(moves) == 3:
            raise OSError(28, "No space left on device")
        return rename(*arguments, **options)

    rename = os.rename
    monkeypatch.setattr(checkpoints.os, "rename", fail_late)
    with pytest.raises(OSError, match="No space left"):
        box.restore("first")
    monkeypatch.undo()
    assert content(stateful, box) == "two"
    folder = stateful.root / ".state" / box.session_id / "checkpoints"
    box.restore("first")
    assert [path.name for path in folder.iterdir() if path.name == "first"] == ["first"]
    assert content(stateful, box) == "one"


def killed_rounds(stateful, session_id, act):
    """Let a process do it and be killed a little later each time, until one gets to its end."""
    for moment in itertools.count(1):
        command = [sys.executable, "-c", KILLED, act, session_id, stateful.root, str(moment)]
        done = subprocess.run([str(word) for word in command], timeout=60)
        assert done.returncode in (0, -signal.SIGKILL)
        yield moment
        if done.returncode == 0:
            return


def seen(stateful, session_id):
    with stateful.get(session_id) as box:
        return box.execute("import os\nx, open('a.txt').read(), os.path.exists('new.txt')").value


def test_going_back_is_whole_wherever_its_process_is_killed(stateful, box):
    box.checkpoint("first")
    box.close()
    found = []
    with stateful.get(box.session_id) as changed:
        changed.execute(CHANGE)
    for _ in killed_rounds(stateful, box.session_id, "restore"):
        found.append(seen(stateful, box.session_id))
        with stateful.get(box.session_id) as again:
            again.execute(CHANGE)
    assert set(found) == {"(2, 'two', True)", "(1, 'one', False)"}
    assert len(found) > 5
    stateful.get(box.session_id).restore("first")
    assert os.listdir(stateful.root / ".state" / box.session_id / "checkpoints") == ["first"]


def test_a_checkpoint_is_the_old_or_the_new_one_wherever_its_process_is_killed(stateful, box):
    box.checkpoint("first")
    box.execute(CHANGE)
    box.close()
    found = []
    for _ in killed_rounds(stateful, box.session_id, "checkpoint"):
        with stateful.get(box.session_id) as again:
            again.restore("first")
        found.append(seen(stateful, box.session_id))
        with stateful.get(box.session_id) as changed:
            changed.execute(CHANGE)
    assert (found[0], found[-1]) == ("(1, 'one', False)", "(2, 'two', True)")
    assert set(found) == {found[0], found[-1]}


def test_a_fork_and_an_archive_of_a_session_that_was_being_taken_back_are_whole(stateful, box, tmp_path):
    box.checkpoint("first")
    box.execute(CHANGE)
    box.close()
    for moment in (3, 4):
        command = [sys.executable, "-c", KILLED, "restore", box.session_id, str(stateful.root), str(moment)]
        assert subprocess.run(command, timeout=60).returncode == -signal.SIGKILL
        if moment == 3:
            (copy,) = fork_session(box.session_id, workspace_root=stateful.root)
        else:
            copy = restore_session(
                archive_session(box.session_id, tmp_path / "put", stateful.root), stateful.root
            )
        assert seen(stateful, copy) == "(1, 'one', False)"


def test_checkpoints_go_with_their_session(stateful, box):
    box.checkpoint("first")
    delete_session_workspace(box.session_id, stateful.root)
    again = stateful.get(box.session_id, stateful=True)
    assert again.list_checkpoints() == []


def test_a_damaged_note_leaves_the_checkpoint_usable(stateful, box):
    box.checkpoint("first")
    note = stateful.root / ".state" / box.session_id / "checkpoints" / "first" / "checkpoint.json"
    note.write_text("{")
    assert [(kept.name, kept.created_at) for kept in box.list_checkpoints()] == [("first", "")]
    box.execute("x = 2")
    box.restore("first")
    assert box.execute("x").value == "1"


def test_going_back_draws_new_randomness(stateful, box):
    box.execute("import random")
    box.checkpoint("first")
    drawn = set()
    for _ in range(3):
        box.restore("first")
        drawn.add(box.execute("random.random()").value)
    assert len(drawn) == 3


def test_events_tell_of_checkpoints(stateful, box):
    box.checkpoint("first")
    box.restore("first")
    told = [(event, fields["name"]) for _, event, fields in stateful.events if "checkpoint" in event]
    assert told == [("session.checkpoint.taken", "first"), ("session.checkpoint.restored", "first")]
