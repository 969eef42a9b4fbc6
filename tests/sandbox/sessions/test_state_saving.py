"""When turns are on disk, and what a kill, a full disk or another process does to them."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sandbox import ExecutionPolicy, PythonSandbox, delete_session_workspace, tree
from sandbox.errors import SessionInUse
from sandbox.sessions import live, prune_sessions, residents
from sandbox.sessions.lifecycle import make_session
from sandbox.sessions.live import NEVER
from sandbox.sessions.statefolder import StateFolder

# A process that takes turns until it is killed, and says when each has its result.
COUNT = """
box = get_session_sandbox(session_id, workspace_root=root{options})
for number in range(1, 10_000):
    result = box.execute(f"n = {{number}}\\nlog.append({{number}})")
    print(number, result.state, flush=True)
"""


def is_saved(stateful, box):
    return stateful.state_file(box).exists() and not stateful.live(box).is_ahead


def killed_after(process, line):
    """Read until the process has said so, then kill it; the last line that it said."""
    said = ""
    for said in process.stdout:
        if said.split()[0] == line:
            break
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read().splitlines()
    process.wait()
    process.stdin.close()
    process.stdout.close()
    return rest[-1] if rest else said


def test_a_turn_is_on_disk_within_the_bound(stateful):
    box = stateful.new(save_within_seconds=0.2)
    assert box.execute("x = 1").state == "live"
    stateful.wait_until(lambda: is_saved(stateful, box), "the save")
    stateful.lose_memory(box)
    assert box.execute("x").value == "1"


def test_steady_use_does_not_put_a_save_off(stateful):
    box = stateful.new(save_within_seconds=0.3)
    box.execute("x = 0")
    began = time.monotonic()
    while not stateful.state_file(box).exists():
        box.execute("x += 1")
        assert time.monotonic() - began < 30, "turn after turn, and nothing was saved"


def test_a_long_turn_does_not_hold_up_the_save_of_the_one_before(stateful):
    box = stateful.new(save_within_seconds=0.2)
    box.execute("x = 1")
    seen = []

    def wait_for_save(*_):
        stateful.wait_until(lambda: stateful.state_file(box).exists(), "the save of the first turn")
        seen.append(True)

    box.execute("print('on', flush=True)\nx = 2", on_output=wait_for_save)
    assert seen == [True]
    box.hibernate()
    assert box.execute("x").value == "2"


def test_with_no_time_to_lose_each_turn_is_saved_before_its_result(stateful):
    box = stateful.new(save_within_seconds=0)
    for number in range(3):
        assert box.execute(f"x = {number}").state == "saved"
        stateful.lose_memory(box)
    assert box.execute("x").value == "2"


def test_twenty_hibernations_lose_nothing(stateful):
    box = stateful.new()
    box.execute("kept, table = [], {}")
    for number in range(20):
        code = (
            f"kept.append({number})\ntable[{number}] = 'v' * {number}\nopen('{number}.txt', 'w').write('f')"
        )
        box.execute(code)
        box.hibernate()
        assert not stateful.live(box).is_live
    assert box.execute("kept == list(range(20)) and table == {n: 'v' * n for n in kept}").value == "True"
    assert box.execute("import os\nsum(os.path.exists(f'{n}.txt') for n in range(20))").value == "20"


def test_a_session_that_is_closed_or_hibernated_is_out_of_memory(stateful):
    box = stateful.new(save_within_seconds=1000)
    box.execute("x = 1")
    box.hibernate()
    assert (stateful.live(box).is_live, stateful.live(box).is_ahead) == (False, False)
    box.execute("x += 1")
    box.close()
    assert (stateful.live(box).is_live, stateful.live(box).is_ahead) == (False, False)
    assert stateful.get(box.session_id).execute("x").value == "2"


def test_a_process_that_ends_saves_its_last_turn(stateful):
    box = stateful.new()
    stateful.run(
        box.session_id,
        "get_session_sandbox(session_id, workspace_root=root, save_within_seconds=1000).execute('x = 1')",
    )
    assert box.execute("x").value == "1"


def test_a_process_that_ends_cancels_its_turn_and_keeps_the_one_before(stateful):
    box = stateful.new()
    stateful.run(
        box.session_id,
        """
import threading
box = get_session_sandbox(session_id, workspace_root=root, save_within_seconds=1000)
box.execute("x = 1")
on = threading.Event()
loop = "x = 2\\nprint('on', flush=True)\\nwhile True: pass"
turn = lambda: box.execute(loop, on_output=lambda *_: on.set())
threading.Thread(target=turn, daemon=True).start()
on.wait()
""",
    )
    assert box.execute("x").value == "1"


def test_each_process_sees_the_turns_of_the_other(stateful):
    box = stateful.new(save_within_seconds=0.3)
    box.execute("x = 0")
    process = stateful.process(
        box.session_id,
        """
box = get_session_sandbox(session_id, workspace_root=root, save_within_seconds=0.3)
for _ in sys.stdin:
    print(box.execute("x += 1\\nx").value, flush=True)
""",
    )
    seen = []
    for _ in range(6):  # within the bound, so that each turn finds the other process ahead of the disk
        process.stdin.write("\n")
        process.stdin.flush()
        seen.append(process.stdout.readline().strip())
        seen.append(box.execute("x += 1\nx").value)
    process.communicate()
    assert seen == [str(number) for number in range(1, 13)]


def test_a_turn_does_not_wait_for_ever_for_another_process(stateful, monkeypatch):
    monkeypatch.setattr(live, "LOCK_WAIT_SECONDS", 0.2)
    box = stateful.new()
    process = stateful.process_ahead(box.session_id, "x = 1", save_within=1000)
    with pytest.raises(SessionInUse):
        box.execute("x")
    process.communicate()
    assert box.execute("x").value == "1"


def test_after_a_kill_every_turn_that_was_saved_is_there(stateful):
    box = stateful.new(save_within_seconds=0)
    box.execute("n, log = 0, []")
    process = stateful.process(box.session_id, COUNT.format(options=", save_within_seconds=0"))
    last, state = killed_after(process, "25").split()
    assert state == "saved"
    n = int(box.execute("n").value)
    assert n in {int(last), int(last) + 1}  # the kill may come between the save and the word of it
    assert box.execute("log == list(range(1, n + 1))").value == "True"


@pytest.mark.parametrize("turns", ["1", "7", "60", "400"])
def test_a_kill_at_any_moment_leaves_a_whole_state(stateful, turns):
    box = stateful.new(save_within_seconds=0)
    box.execute("n, log = 0, []")
    process = stateful.process(box.session_id, COUNT.format(options=", save_within_seconds=0.05"))
    killed_after(process, turns)
    assert box.execute("log == list(range(1, n + 1))").value == "True"
    assert box.execute("log.append(n + 1)\nlog[-1] == n + 1").value == "True"


def test_what_a_killed_save_left_goes_with_the_next(stateful):
    box = stateful.new(save_within_seconds=0)
    box.execute("x = 1")
    folder = stateful.state_file(box).parent
    before = sorted(os.listdir(folder))
    deadly = "import os\nos.replace = lambda *_, **__: os.kill(os.getpid(), 9)\nbox.hibernate()"
    process = stateful.process_ahead(box.session_id, "x = 2", save_within=1000, then=deadly)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert len(os.listdir(folder)) == len(before) + 1
    assert box.execute("x += 2\nx").value == "3"
    assert sorted(os.listdir(folder)) == before


def test_the_longest_unused_is_hibernated_when_there_are_too_many(stateful, bounds):
    bounds.most = 3
    boxes = [stateful.new() for _ in range(5)]
    for number, box in enumerate(boxes):
        box.execute(f"x = {number}")
        stateful.wait_until(lambda b=box: not stateful.live(b)._in_turn, "the end of the turn")
    boxes[2].execute("x")
    stateful.wait_until(lambda: sum(stateful.live(box).is_live for box in boxes) <= 3, "hibernation")
    assert [stateful.live(box).is_live for box in boxes] == [False, False, True, True, True]
    assert [box.execute("x").value for box in boxes] == ["0", "1", "2", "3", "4"]


def test_the_longest_unused_is_hibernated_when_memory_is_short(stateful, bounds):
    bounds.most_bytes = 25 << 20
    boxes = [stateful.new() for _ in range(4)]
    for box in boxes:
        box.execute("import os\nx = os.urandom(10 << 20)")
    stateful.wait_until(lambda: sum(stateful.live(box).bytes for box in boxes) <= 25 << 20, "hibernation")
    assert stateful.live(boxes[-1]).is_live
    assert not stateful.live(boxes[0]).is_live
    assert [box.execute("len(x)").value for box in boxes] == [str(10 << 20)] * 4


def test_no_more_interpreters_start_than_the_bound_allows(stateful, bounds):
    bounds.most = 2
    boxes = [stateful.new() for _ in range(6)]
    for _ in range(3):
        for box in boxes:
            box.execute("x = 1")
            assert sum(stateful.live(one).is_live for one in boxes) <= 4  # turns may just be ending
    stateful.wait_until(lambda: sum(stateful.live(one).is_live for one in boxes) <= 2, "hibernation")


def test_a_session_in_a_turn_is_not_hibernated(stateful, bounds):
    busy, others = stateful.new(), [stateful.new() for _ in range(3)]
    bounds.most = 1
    done = []

    def meanwhile(*_):
        done.extend(box.execute("x = 1").state for box in others)

    assert busy.execute("x = 5\nprint('on', flush=True)\nx", on_output=meanwhile).value == "5"
    assert done == ["live"] * 3
    assert busy.execute("x").value == "5"


def test_what_waits_to_be_written_is_bounded(stateful, monkeypatch):
    monkeypatch.setattr(residents, "MOST_AHEAD", 2)
    boxes = [stateful.new(save_within_seconds=1000) for _ in range(6)]
    for box in boxes:
        box.execute("x = 1")
    stateful.wait_until(lambda: sum(stateful.live(box).is_ahead for box in boxes) <= 2, "saves")
    assert [box.execute("x").value for box in boxes] == ["1"] * 6


def test_a_deleted_session_is_not_written_again(stateful):
    box = stateful.new(save_within_seconds=0.3)
    box.execute("x = 1")
    held = stateful.live(box)
    stateful.run(box.session_id, "delete_session_workspace(session_id, root)")
    stateful.wait_until(lambda: held.due == NEVER and not held.is_ahead, "the saver's look")
    assert not stateful.state_file(box).exists()


def test_a_session_that_another_process_made_again_has_nothing_of_the_old_one(stateful):
    box = stateful.new(save_within_seconds=1000)
    box.execute("secret = 1")
    made_again = (
        "delete_session_workspace(session_id, root)\n"
        "box = get_session_sandbox(session_id, workspace_root=root, stateful=True)\n"
    )
    for use in ("", "box.execute('fresh = 1')\nbox.close()\n"):
        stateful.run(box.session_id, made_again + use)
        stateful.live(box).save()
        result = box.execute("'secret' in globals(), 'fresh' in globals()")
        assert result.value == f"(False, {bool(use)})"
        box.execute("secret = 1")


def test_a_pruned_session_is_not_written_again(stateful):
    box = stateful.new(save_within_seconds=1000)
    box.execute("x = 1")
    assert prune_sessions(0, stateful.root).deleted_sessions == [box.session_id]
    box.close()
    assert not (stateful.root / box.session_id).exists()
    assert not stateful.state_file(box).exists()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, with little room."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root may mount a file system")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("within", [0, 0.1])
def test_a_full_disk_keeps_the_session_in_memory_and_says_so(stateful, small_disk, within):
    stateful.root = small_disk
    box = stateful.new(save_within_seconds=0)
    assert box.execute("x = 1").state == "saved"
    box = stateful.get(box.session_id, save_within_seconds=within)
    filler = small_disk / "filler"
    free = os.statvfs(small_disk).f_bavail * 4096
    filler.write_bytes(os.urandom(max(0, free - (1 << 20))))
    assert box.execute("import os\nx, y = 2, os.urandom(4 << 20)").state == "live"
    stateful.wait_until(lambda: stateful.events.fields("session.state.failed"), "the log entry")
    assert "No space left on device" in stateful.events.fields("session.state.failed")[0]["error"]
    assert box.execute("x").value == "2"
    assert list(stateful.state_file(box).parent.glob(".tmp-*")) == []
    filler.unlink()
    stateful.wait_until(lambda: is_saved(stateful, box), "the save after room was made")
    stateful.lose_memory(box)
    assert box.execute("x, len(y)").value == f"(2, {4 << 20})"


def test_the_saver_goes_on_after_a_disk_that_refused(stateful, small_disk):
    good = stateful.new(save_within_seconds=0.1)
    stateful.root, root = small_disk, stateful.root
    bad = stateful.new(save_within_seconds=0.1)
    bad.execute("x = 1")
    (small_disk / "filler").write_bytes(bytes(os.statvfs(small_disk).f_bavail * 4096))
    bad.execute("import os\ny = os.urandom(8 << 20)")
    stateful.wait_until(lambda: stateful.events.fields("session.state.failed"), "the log entry")
    stateful.root = root
    good.execute("x = 1")
    stateful.wait_until(lambda: is_saved(stateful, good), "a save on the other disk")
    (small_disk / "filler").unlink()
    bad.close()


def test_live_sessions_hold_few_descriptors(stateful):
    boxes = [stateful.new(save_within_seconds=0) for _ in range(12)]
    for box in boxes:
        box.execute("x = 1")
    before = len(os.listdir("/proc/self/fd"))
    more = [stateful.new(save_within_seconds=0) for _ in range(12)]
    for box in more:
        box.execute("x = 1")
    settled = lambda: not any(stateful.live(box)._in_turn for box in more)  # noqa: E731 - one expression
    stateful.wait_until(settled, "the end of the turns")
    assert len(os.listdir("/proc/self/fd")) - before <= 2


def test_other_limits_apply_from_the_next_turn_on_and_nothing_is_lost(stateful):
    box = stateful.new(save_within_seconds=1000)
    box.execute("x = [1]")
    other = stateful.get(box.session_id, policy=ExecutionPolicy(timeout_seconds=5), save_within_seconds=1000)
    for number in range(2, 6):
        (other if number % 2 else box).execute(f"x.append({number})")
    assert box.execute("x").value == "[1, 2, 3, 4, 5]"


def test_deleting_waits_for_nobody_and_leaves_no_memory_behind(stateful):
    box = stateful.new(save_within_seconds=1000)
    box.execute("x = 1")
    delete_session_workspace(box.session_id, stateful.root)
    assert (stateful.live(box).is_live, stateful.live(box).is_ahead) == (False, False)


def test_opening_many_sessions_from_many_threads_gives_each_its_own(stateful):
    for number in range(8):
        make_session(f"s-{number}", stateful.root)
    values = {}

    def use(number):
        box = stateful.get(f"s-{number}", stateful=True)
        box.execute(f"x = {number}")
        box.hibernate()
        values[number] = box.execute("x").value

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == {number: str(number) for number in range(8)}


def test_many_threads_under_pressure_lose_no_turn(stateful, bounds):
    bounds.most = 3
    boxes = [stateful.new(save_within_seconds=0.05) for _ in range(6)]
    for box in boxes:
        box.execute("n = 0")

    def work(seed):
        draw = random.Random(seed)
        for _ in range(25):
            box = draw.choice(boxes)
            act = draw.random()
            if act < 0.1:
                box.hibernate()
            elif act < 0.15:
                box.checkpoint(f"c{seed}", files=False)
            assert box.execute("n += 1").exit_code == 0

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert sum(int(box.execute("n").value) for box in boxes) == 6 * 25


def test_a_save_into_a_folder_that_is_gone_ends(tmp_path):
    folder = StateFolder(tmp_path, "gone")
    folder.make()
    with tree.closing_fd(tree.open_folder(folder.path)) as fd:
        shutil.rmtree(folder.path)
        with pytest.raises(FileNotFoundError):
            folder._keep_image(PythonSandbox(workspace=tmp_path / "ws").warm_up(), fd)
