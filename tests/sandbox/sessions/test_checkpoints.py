"""Going back to named states of a session."""

from __future__ import annotations

import os

import pytest

from sandbox import CheckpointUnknown, InvalidCheckpointName, NotStateful
from sandbox.sessions import (
    checkpoints,
    delete_session_workspace,
    list_session_files,
    read_session_file,
    read_session_metadata,
)

WRITE = "open('a.txt', 'w').write({!r})"


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
