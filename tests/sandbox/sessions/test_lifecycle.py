"""Sessions across threads, processes and crashes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandbox.errors import InvalidSessionId, SandboxClosed, SessionInUse, WorkspaceUnusable
from sandbox.sessions import (
    create_session_sandbox,
    delete_session_workspace,
    get_session_sandbox,
    list_sessions,
    make_session,
    prune_sessions,
    read_session_metadata,
    repair_session_metadata,
)
from sandbox.sessions.layout import is_canonical_uuid

DEADLINE_SECONDS = 120
# The whole figure of rounds takes minutes; `make soak` asks for it.
KILL_ROUNDS = int(os.environ.get("SESSION_KILL_ROUNDS", "24"))


def spawn(code, *words, cwd):
    return subprocess.Popen([sys.executable, "-c", code, *map(str, words)], cwd=cwd, stdout=subprocess.PIPE)


def finish(processes):
    outputs = [process.communicate(timeout=DEADLINE_SECONDS)[0].decode() for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return outputs


def assert_whole(folder):
    metadata = json.loads((folder / ".metadata.json").read_text())
    assert metadata["session_id"] == folder.name
    assert read_session_metadata(folder.name, folder.parent) is not None


CREATE_MANY = """
import sys
from sandbox.sessions.creation import make_session
from sandbox.sessions.layout import new_session_id
for _ in range(int(sys.argv[1])):
    print(make_session(new_session_id(), "root").name)
"""


def test_a_thousand_creations_from_eight_processes_give_a_thousand_whole_sessions(tmp_path):
    outputs = finish([spawn(CREATE_MANY, 125, cwd=tmp_path) for _ in range(8)])
    ids = {line for output in outputs for line in output.split()}
    assert len(ids) == 1000
    assert {path.name for path in (tmp_path / "root").iterdir()} == ids
    for session_id in ids:
        assert_whole(tmp_path / "root" / session_id)


def test_getting_one_missing_session_from_many_threads_makes_one(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        boxes = list(pool.map(lambda _: get_session_sandbox("one", workspace_root=tmp_path), range(32)))
    assert {box.workspace for box in boxes} == {tmp_path / "one"}
    assert os.listdir(tmp_path) == ["one"]
    assert_whole(tmp_path / "one")


def test_a_bad_id_or_runtime_touches_no_disk(tmp_path):
    root = tmp_path / "root"
    for call in (
        lambda: get_session_sandbox("a/b", workspace_root=root),
        lambda: make_session("..", root),
        lambda: get_session_sandbox(7, workspace_root=root),
    ):
        with pytest.raises(InvalidSessionId):
            call()
    with pytest.raises(ValueError, match="Unsupported runtime: ruby"):
        create_session_sandbox("ruby", workspace_root=root)
    with pytest.raises(ValueError, match="Unsupported runtime: ruby"):
        get_session_sandbox("fine", "ruby", workspace_root=root)
    with pytest.raises(InvalidSessionId, match="must not contain path separators"):
        delete_session_workspace("../x", root)
    assert not root.exists()


def test_a_folder_that_cannot_be_filled_leaves_nothing(tmp_path):
    def fill(folder):
        (folder / "half").write_text("x")
        raise RuntimeError("no templates")

    with pytest.raises(RuntimeError, match="no templates"):
        make_session("s", tmp_path, fill=fill)
    assert os.listdir(tmp_path) == []


def test_an_id_that_is_taken_is_refused_even_by_an_empty_folder(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(FileExistsError, match="taken"):
        make_session("taken", tmp_path)
    assert os.listdir(tmp_path) == ["taken"]
    assert os.listdir(tmp_path / "taken") == []


def test_a_closed_sandbox_does_not_execute_and_its_session_stays(tmp_path):
    session_id, box = create_session_sandbox(workspace_root=tmp_path)
    with box:
        assert box.validate_code("x = 1")
        assert not box.validate_code("x =")
    box.close()
    with pytest.raises(SandboxClosed):
        box.execute("pass")
    assert_whole(tmp_path / session_id)


def test_a_session_is_used_wherever_the_process_goes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    session_id, box = create_session_sandbox()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert box.execute("open('here.txt', 'w')").success
    assert (tmp_path / "workspace" / session_id / "here.txt").exists()


def test_a_sandbox_of_a_deleted_session_says_so(tmp_path):
    session_id, box = create_session_sandbox(workspace_root=tmp_path)
    delete_session_workspace(session_id, tmp_path)
    with pytest.raises(WorkspaceUnusable, match="the session was deleted"):
        box.execute("pass")
    assert os.listdir(tmp_path) == []


def test_two_executions_share_a_session_and_a_deletion_waits_for_neither(tmp_path):
    session_id, box = create_session_sandbox(workspace_root=tmp_path)
    both = threading.Barrier(3)
    stop = threading.Event()

    def run(_):
        first = []
        return box.execute(
            "print('up', flush=True)\nimport time\nwhile True: time.sleep(0.01)",
            on_output=lambda *_: first or (first.append(1), both.wait(60)),
            cancel=stop,
        )

    with ThreadPoolExecutor(2) as pool:
        running = pool.map(run, range(2))
        both.wait(60)
        with pytest.raises(SessionInUse, match=f"session {session_id} is in use"):
            delete_session_workspace(session_id, tmp_path)
        assert list_sessions(tmp_path)[0].state == "in_use"
        stop.set()
        assert [result.stopped_by for result in running] == ["cancelled", "cancelled"]
    assert list_sessions(tmp_path)[0].state == "idle"
    delete_session_workspace(session_id, tmp_path)


EXECUTE_FOR_EVER = """
import sys
from sandbox.sessions import get_session_sandbox
box = get_session_sandbox(sys.argv[1], workspace_root=".")
box.execute("print('up', flush=True)\\nimport time\\nwhile True: time.sleep(0.01)",
            on_output=lambda *_: print("up", flush=True), timeout_seconds=200)
"""


def test_another_process_that_executes_protects_a_session_until_it_dies(tmp_path):
    session_id, _ = create_session_sandbox(workspace_root=tmp_path)
    process = spawn(EXECUTE_FOR_EVER, session_id, cwd=tmp_path)
    try:
        assert process.stdout.readline() == b"up\n"
        with pytest.raises(SessionInUse):
            delete_session_workspace(session_id, tmp_path)
        assert prune_sessions(0, tmp_path).skipped_sessions == [session_id]
    finally:
        process.kill()
        process.communicate()
    assert prune_sessions(0, tmp_path).deleted_sessions == [session_id]


def test_one_of_many_concurrent_deletions_logs_it_and_none_fails(tmp_path, logger, events):
    make_session("s", tmp_path)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: delete_session_workspace("s", tmp_path, logger), range(16)))
    assert events.names() == ["session.deleted"]


def test_deletion_takes_the_saved_state_along_and_a_new_session_begins_without(tmp_path):
    state = tmp_path / ".state" / "s"
    make_session("s", tmp_path)
    (state / "generation").mkdir(parents=True)
    delete_session_workspace("s", tmp_path)
    assert not state.exists()
    (state / "orphan").mkdir(parents=True)
    make_session("s", tmp_path)
    assert not state.exists()


def test_a_prune_sweeps_what_the_dead_left_and_nothing_of_the_living(tmp_path):
    make_session("alive", tmp_path)
    for name in (".tmp-dead", ".trash-dead", ".state/orphan", ".state/.trash-x", ".state/alive"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "file").write_text("x")
    swept = []

    def fill(folder):
        prune_sessions(24, tmp_path)
        swept.extend(sorted(os.listdir(tmp_path)))
        (folder / "made").write_text("while a prune ran")

    made = make_session("made", tmp_path, fill=fill)
    assert [name for name in swept if not name.startswith(".tmp-")] == [".state", "alive"]
    assert os.listdir(tmp_path / ".state") == ["alive"]
    assert (made / "made").read_text() == "while a prune ran"


def test_a_dry_run_sweeps_nothing(tmp_path):
    (tmp_path / ".trash-dead").mkdir()
    prune_sessions(24, tmp_path, dry_run=True)
    assert os.listdir(tmp_path) == [".trash-dead"]


REFRESH_MANY = """
import os, sys
from sandbox.events import SandboxLogger
from sandbox import tree
from sandbox.sessions import metadata
fd = tree.open_folder(sys.argv[1])
for _ in range(int(sys.argv[2])):
    print(metadata.update(fd, sys.argv[1], {}))
"""


def test_refreshes_from_many_processes_are_all_different_and_lose_no_field(tmp_path):
    folder = make_session("s", tmp_path)
    note = folder / ".metadata.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"owner": "ann"}))
    outputs = finish([spawn(REFRESH_MANY, "s", 200, cwd=tmp_path) for _ in range(4)])
    stamps = [line for output in outputs for line in output.split()]
    assert len(set(stamps)) == 800
    assert all(output.split() == sorted(output.split()) for output in outputs)
    metadata = json.loads(note.read_text())
    assert (metadata["updated_at"], metadata["owner"]) == (max(stamps), "ann")
    assert sorted(os.listdir(folder)) == [".metadata.json"]


def test_repair_keeps_what_it_can_read_and_sets_the_corrupt_file_aside(tmp_path):
    folder = make_session("s", tmp_path)
    broken = '{"session_id": "other", "created_at": "2020-01-01T00:00:00Z", "updated_at": 5, "owner": "ann"}'
    (folder / ".metadata.json").write_text(broken)
    repaired = repair_session_metadata("s", tmp_path)
    assert (repaired.session_id, repaired.created_at) == ("s", "2020-01-01T00:00:00Z")
    assert read_session_metadata("s", tmp_path) == repaired
    assert repaired.model_extra == {"owner": "ann"}
    assert (folder / ".metadata.json.corrupt").read_text() == broken


def test_repair_leaves_valid_metadata_alone(tmp_path):
    note = make_session("s", tmp_path) / ".metadata.json"
    before = note.read_bytes()
    repair_session_metadata("s", tmp_path)
    assert note.read_bytes() == before


LIVE_A_LIFE = """
import random, sys
from sandbox.sessions import create_session_sandbox, delete_session_workspace, get_session_sandbox
from sandbox.sessions import prune_sessions, write_session_file
# Each act is told before it begins, so that whoever outlives this process knows what was asked for.
random.seed(sys.argv[1])
mine = []
print("up", flush=True)
while True:
    act = random.choice(["create", "create", "execute", "execute", "delete", "prune"])
    if act == "create":
        session_id, _ = create_session_sandbox(workspace_root=".")
        print("made", session_id, flush=True)
        write_session_file(session_id, "kept.txt", session_id, ".")
        print("kept", session_id, flush=True)
        mine.append(session_id)
    elif act == "execute" and mine:
        get_session_sandbox(random.choice(mine), workspace_root=".").execute("open('n', 'a').write('x')")
    elif act == "delete" and len(mine) > 2:
        gone = mine.pop(random.randrange(len(mine)))
        print("gone", gone, flush=True)
        delete_session_workspace(gone, ".")
    elif act == "prune":
        prune_sessions(24, ".")
"""


def test_a_process_killed_at_any_moment_leaves_whole_sessions_and_loses_none(tmp_path, aged_session):
    rng = random.Random(7)
    told = {}
    for number in range(KILL_ROUNDS):
        aged_session(48, tmp_path, data="old")
        told |= live_and_die(tmp_path, number, rng.uniform(0.0, 0.3))
        assert_no_half_session(tmp_path, told)
        prune_sessions(24, tmp_path)
        assert all(is_canonical_uuid(name) for name in os.listdir(tmp_path)), os.listdir(tmp_path)
    assert prune_sessions(0, tmp_path).errors == {}
    assert os.listdir(tmp_path) == []


def live_and_die(root, seed, seconds):
    """What a life told before it was killed: sessions by the last word about them."""
    process = spawn(LIVE_A_LIFE, seed, cwd=root)
    assert process.stdout.readline() == b"up\n"
    time.sleep(seconds)  # the moment of death, not something waited for
    os.kill(process.pid, signal.SIGKILL)
    lines = process.communicate()[0].decode().splitlines()
    return {session_id: word for word, session_id in (line.split() for line in lines if line.count(" ") == 1)}


def assert_no_half_session(root, told):
    for folder in root.iterdir():
        if is_canonical_uuid(folder.name):
            assert_whole(folder)
    for session_id, word in told.items():
        if word == "kept" and len(session_id) == 36:
            assert (root / session_id / "kept.txt").read_text() == session_id


def test_the_example_of_the_layout_is_what_is_on_disk(tmp_path):
    session_id, box = create_session_sandbox(workspace_root=tmp_path)
    box.execute("open('data.txt', 'w').write('x')")
    assert sorted(os.listdir(tmp_path)) == [session_id]
    assert sorted(os.listdir(tmp_path / session_id)) == [".metadata.json", "data.txt", "user_code.py"]
    assert Path(tmp_path, session_id).stat().st_mode & 0o777 == 0o700


def test_pruning_everything_all_the_time_harms_no_execution(tmp_path):
    done = threading.Event()
    problems = []

    def prune_all():
        while not done.is_set():
            problems.extend(prune_sessions(0, tmp_path).errors.items())

    def live(_):
        outcomes = []
        for _ in range(10):
            _, box = create_session_sandbox(workspace_root=tmp_path)
            try:
                result = box.execute("import os; open('a', 'w').write('x'); print(os.listdir('.'))")
                outcomes.append((result.success, "a" in result.stdout))
            except WorkspaceUnusable:
                outcomes.append("pruned before it began")
        return outcomes

    pruner = threading.Thread(target=prune_all)
    pruner.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            outcomes = [outcome for each in pool.map(live, range(4)) for outcome in each]
    finally:
        done.set()
        pruner.join()
    assert set(outcomes) <= {(True, True), "pruned before it began"}
    assert problems == []
    prune_sessions(0, tmp_path)
    assert os.listdir(tmp_path) == []
