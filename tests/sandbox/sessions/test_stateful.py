"""Turns of a session whose variables persist."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sandbox import ExecutionPolicy, NotStateful, PolicyValidationError, SandboxClosed, SandboxResult
from sandbox.errors import WorkspaceUnusable
from sandbox.sessions import (
    delete_session_workspace,
    get_session_sandbox,
    list_session_files,
    read_session_metadata,
)
from sandbox.sessions.lifecycle import make_session

LOOP = "x = 'changed'\nopen('left.txt', 'w').close()\nwhile True: pass"


def test_variables_imports_and_functions_survive_from_turn_to_turn(stateful):
    box = stateful.new()
    box.execute("import math\nradius = 2\ndef area(): return math.pi * radius ** 2")
    assert box.execute("round(area(), 2)").value == "12.57"


def test_a_turn_is_live_and_a_plain_execution_has_no_state(stateful, box):
    assert stateful.new().execute("1").state == "live"
    plain = box.execute("1 + 1")
    assert (plain.value, plain.state) == (None, None)


def test_an_exception_leaves_what_ran_before_it(stateful):
    box = stateful.new()
    failed = box.execute("x = 1\nx = 2\n1 / 0\nx = 3")
    assert (failed.exit_code, failed.state, failed.value) == (1, "live", None)
    assert failed.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert box.execute("x").value == "2"


def test_a_syntax_error_changes_nothing(stateful):
    box = stateful.new()
    box.execute("x = 1")
    failed = box.execute("x = 2\nx = = 3")
    assert (failed.exit_code, failed.stderr.splitlines()[-1]) == (1, "SyntaxError: invalid syntax")
    assert box.execute("x").value == "1"


def test_a_traceback_shows_lines_of_an_earlier_turn(stateful):
    box = stateful.new()
    box.execute("def fail():\n    raise ValueError('as asked')")
    trace = box.execute("fail()").stderr
    assert 'File "<turn 2>", line 1, in <module>' in trace
    assert "File \"<turn 1>\", line 2, in fail\n    raise ValueError('as asked')" in trace


@pytest.mark.parametrize(
    ("policy", "stopped_by"),
    [
        ({"timeout_seconds": 0.3}, "timeout"),
        ({"fuel_budget": 50_000_000}, "fuel"),
        ({"memory_bytes": 80 << 20}, "memory"),
    ],
)
def test_a_limit_rolls_the_interpreter_back_and_leaves_the_files(stateful, policy, stopped_by):
    box = stateful.new(policy=ExecutionPolicy(**policy))
    box.execute("x = ['kept']")
    code = LOOP if stopped_by != "memory" else LOOP.replace("while True: pass", "y = bytearray(200 << 20)")
    stopped = box.execute(code)
    assert (stopped.stopped_by, stopped.state, stopped.success) == (stopped_by, "rolled_back", False)
    assert box.execute("x").value == "['kept']"
    assert "left.txt" in list_session_files(box.session_id, stateful.root)


def test_a_roll_back_goes_to_the_turn_before_whether_it_is_saved_or_not(stateful):
    box = stateful.new(save_within_seconds=1000)
    box.execute("x = 1")
    assert not stateful.state_file(box).exists()
    assert box.execute(LOOP, timeout_seconds=0.2).state == "rolled_back"
    assert box.execute("x").value == "1"
    box.hibernate()
    assert stateful.state_file(box).exists()
    assert box.execute(LOOP, timeout_seconds=0.2).state == "rolled_back"
    assert box.execute("x").value == "1"


def test_the_first_turn_rolls_back_to_nothing(stateful):
    box = stateful.new()
    assert box.execute(LOOP, timeout_seconds=0.2).state == "rolled_back"
    assert box.execute("'x' in globals()").value == "False"


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", "2"),
        ("x = 5\nx", "5"),
        ("x = 5", None),
        ("None", None),
        ("print('said')", None),
        ("'a\\nb'", "'a\\nb'"),
        ("'text'; ", "'text'"),
        ("'\\ud800'", "'\\ud800'"),
        ("", None),
        ("# nothing", None),
        ("for i in range(3): i", None),
    ],
)
def test_the_value_of_a_last_expression_is_told(stateful, code, value):
    result = stateful.new().execute(code)
    assert (result.value, result.exit_code) == (value, 0)
    assert SandboxResult.model_validate_json(result.model_dump_json()) == result


def test_a_value_is_bounded(stateful):
    value = stateful.new().execute("'x' * 1_000_000").value
    assert value == "'" + "x" * 9_999 + "..."


def test_a_value_is_bounded_whatever_the_code_does_to_the_driver(stateful):
    box = stateful.new()
    box.execute("import _sandbox_driver\n_sandbox_driver.MOST_VALUE_CHARACTERS = 10**9")
    assert len(box.execute("'x' * 500_000").value) == 10_003


def test_underscore_is_the_last_value(stateful):
    box = stateful.new()
    box.execute("6 * 7")
    box.execute("None")
    assert box.execute("_ + 1").value == "43"


def test_a_value_whose_repr_raises_is_a_traceback(stateful):
    box = stateful.new()
    box.execute("class Bad:\n    def __repr__(self): raise KeyError('no')\nbad = Bad()")
    result = box.execute("bad")
    assert (result.value, result.exit_code, result.state) == (None, 1, "live")
    assert result.stderr.splitlines()[-1] == "KeyError: 'no'"


def test_sys_exit_ends_the_turn_and_not_the_session(stateful):
    box = stateful.new()
    left = box.execute("x = 1\nimport sys\nsys.exit(3)\nx = 2")
    assert (left.exit_code, left.state, left.success) == (3, "live", False)
    assert box.execute("x").value == "1"


def test_leaving_the_interpreter_itself_rolls_back(stateful):
    box = stateful.new()
    box.execute("x = 1")
    left = box.execute("x = 2\nimport os\nos._exit(7)")
    assert (left.exit_code, left.stopped_by, left.state) == (7, None, "rolled_back")
    assert box.execute("x").value == "1"


def test_a_stack_that_is_too_deep_does_not_end_the_session(stateful):
    box = stateful.new()
    box.execute("x = 1\nimport sys")
    deep = "sys.setrecursionlimit(10**9)\nf = lambda: f()\nf()"
    assert box.execute(deep).success is False
    assert box.execute("x").value == "1"


def test_input_that_a_turn_did_not_read_is_not_the_next_ones(stateful):
    box = stateful.new()
    assert box.execute("input()", stdin="first\nrest\n").value == "'first'"
    assert box.execute("input()", stdin="second\n").value == "'second'"


def test_a_session_knows_that_it_is_stateful(stateful):
    box = stateful.new()
    box.execute("x = 1")
    assert read_session_metadata(box.session_id, stateful.root).stateful is True
    again = stateful.get(box.session_id)
    assert (again.is_stateful, again.execute("x").value) == (True, "1")


def test_a_plain_session_becomes_stateful_when_asked(stateful):
    make_session("plain", stateful.root)
    assert stateful.get("plain").is_stateful is False
    assert stateful.get("plain", stateful=True).execute("x = 1").state == "live"
    assert stateful.get("plain").execute("x").value == "1"


def test_a_plain_handle_on_a_stateful_session_runs_in_fresh_interpreters(stateful):
    box = stateful.new()
    box.execute("x = 1\nopen('file.txt', 'w').write('seen')")
    plain = stateful.get(box.session_id, stateful=False)
    result = plain.execute("print('x' in globals(), open('file.txt').read())")
    assert (result.stdout, result.state) == ("False seen\n", None)
    assert box.execute("x").value == "1"
    with pytest.raises(NotStateful, match="keeps files only; open it with stateful=True for this"):
        plain.hibernate()


def test_options_of_stateful_sessions_are_refused_by_others(stateful):
    make_session("plain", stateful.root)
    with pytest.raises(NotStateful):
        stateful.get("plain", fresh_interpreter=True)
    with pytest.raises(ValueError, match="save_within_seconds is -1: it must be 0 or more"):
        stateful.get("plain", stateful=True, save_within_seconds=-1)


@pytest.mark.parametrize("saved", [False, True])
def test_a_fresh_interpreter_forgets_the_variables_and_keeps_the_files(stateful, saved):
    box = stateful.new()
    box.execute("x = 1\nopen('kept.txt', 'w').close()")
    if saved:
        box.hibernate()
    fresh = stateful.get(box.session_id, fresh_interpreter=True)
    assert fresh.execute("import os\n'x' in globals(), os.path.exists('kept.txt')").value == "(False, True)"
    assert box.execute("'x' in globals()").value == "False"


def test_two_handles_share_one_interpreter(stateful):
    one = stateful.new()
    other = stateful.get(one.session_id)
    one.execute("x = object()\nkept = id(x)")
    assert other.execute("id(x) == kept").value == "True"


def test_each_handle_has_its_own_limits_on_the_same_interpreter(stateful):
    lax = stateful.new()
    lax.execute("x = 1\nimport os")
    strict = stateful.get(
        lax.session_id, policy=ExecutionPolicy(fuel_budget=50_000_000, env={"WHO": "strict"})
    )
    assert strict.execute("x, os.environ.get('WHO')").value == "(1, 'strict')"
    assert strict.execute("while True: pass").stopped_by == "fuel"
    assert lax.execute("sum(range(3_000_000)) > 0, x, os.environ.get('WHO')").value == "(True, 1, None)"


def test_memory_that_a_handle_does_not_allow_is_not_filled_in(stateful):
    box = stateful.new()
    box.execute("big = bytearray(100 << 20)")
    small = stateful.get(box.session_id, policy=ExecutionPolicy(memory_bytes=64 << 20))
    with pytest.raises(PolicyValidationError, match="the saved interpreter alone needs"):
        small.execute("1")
    assert box.execute("len(big)").value == str(100 << 20)


def test_the_output_callback_may_raise_and_the_turn_is_undone(stateful):
    box = stateful.new()
    box.execute("x = 1")

    def refuse(stream, data):
        raise LookupError("not wanted")

    with pytest.raises(LookupError, match="not wanted"):
        box.execute("x = 2\nprint('out', flush=True)", on_output=refuse)
    assert box.execute("x").value == "1"


def test_cancelling_a_turn_rolls_it_back(stateful):
    box = stateful.new()
    box.execute("x = 1")
    cancel = threading.Event()
    stopped = box.execute(
        "x = 2\nprint('on', flush=True)\nwhile True: pass",
        cancel=cancel,
        on_output=lambda *_: cancel.set(),
    )
    assert (stopped.stopped_by, stopped.state) == ("cancelled", "rolled_back")
    assert box.execute("x").value == "1"


def test_cancelling_the_task_of_an_asynchronous_turn_rolls_it_back(stateful):
    box = stateful.new()
    box.execute("x = 1")

    async def cancel_when_it_runs():
        running, loop = asyncio.Event(), asyncio.get_running_loop()
        heard = lambda *_: loop.call_soon_threadsafe(running.set)  # noqa: E731 - one expression
        turn = box.execute_async("x = 2\nprint('on', flush=True)\nwhile True: pass", on_output=heard)
        task = asyncio.ensure_future(turn)
        await running.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel_when_it_runs())
    assert box.execute("x").value == "1"


def test_threads_on_one_session_take_turns(stateful):
    box = stateful.new()
    box.execute("n = 0")
    code = "seen = n\nfor _ in range(20000): pass\nn = seen + 1"
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: box.execute(code), range(24)))
    assert {result.state for result in results} == {"live"}
    assert box.execute("n").value == "24"


def test_sessions_run_side_by_side(stateful):
    boxes = [stateful.new() for _ in range(8)]
    meeting = threading.Barrier(8, timeout=60)

    def turn(number):
        # Each turn waits, in the middle of its code, until all eight have come as far.
        return boxes[number].execute(
            f"x = {number}\nprint('here', flush=True)\nx", on_output=lambda *_: meeting.wait()
        )

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(turn, range(8)))
    assert [result.value for result in results] == [str(number) for number in range(8)]


def test_the_files_of_each_turn_are_told(stateful):
    box = stateful.new()
    first = box.execute("f = open('a.txt', 'w')\nf.write('1')\nf.flush()")
    second = box.execute("f.write('2')\nf.close()\nopen('b.txt', 'w').close()")
    assert (first.files_created, first.files_modified) == (["a.txt"], ["a.txt"])
    assert (second.files_created, second.files_modified) == (["b.txt"], ["a.txt", "b.txt"])


def test_code_is_checked_without_a_turn(stateful):
    box = stateful.new()
    box.execute("x = 1")
    assert (box.validate_code("x = 2"), box.validate_code("x = = 2")) == (True, False)
    assert box.execute("x").value == "1"


def test_a_closed_sandbox_refuses_turns_and_leaves_the_state(stateful):
    box = stateful.new()
    box.execute("x = 1")
    box.close()
    box.close()
    with pytest.raises(SandboxClosed):
        box.execute("x")
    assert stateful.get(box.session_id).execute("x").value == "1"


def test_a_deleted_session_ends_with_its_variables(stateful):
    box = stateful.new()
    box.execute("x = 1")
    delete_session_workspace(box.session_id, stateful.root)
    with pytest.raises(WorkspaceUnusable, match="the session was deleted"):
        box.execute("x")
    again = stateful.get(box.session_id, stateful=True)
    assert again.execute("'x' in globals()").value == "False"
    assert box.execute("'x' in globals()").value == "False"


def test_a_session_cannot_be_deleted_in_the_middle_of_a_turn(stateful):
    from sandbox import SessionInUse

    box, refused = stateful.new(), []

    def delete(*_):
        with pytest.raises(SessionInUse):
            delete_session_workspace(box.session_id, stateful.root)
        refused.append(True)

    assert box.execute("print('on', flush=True)\n1", on_output=delete).value == "1"
    assert refused == [True]


def test_time_goes_on_and_the_monotonic_clock_never_goes_back(stateful):
    box = stateful.new()
    box.execute("import time\nclock, wall = [time.monotonic()], [time.time()]")
    for _ in range(5):
        box.hibernate()
        box.execute("clock.append(time.monotonic())\nwall.append(time.time())")
    assert box.execute("clock == sorted(clock) and len(set(clock)) == 6").value == "True"
    assert box.execute("wall == sorted(wall)").value == "True"
    assert abs(float(box.execute("time.time()").value) - time.time()) < 60


def test_sleeping_works_after_a_hibernation(stateful):
    box = stateful.new()
    box.execute("import time\nbegan = time.monotonic()\ntime.sleep(0.01)")
    box.hibernate()
    assert box.execute("a = time.monotonic()\ntime.sleep(0.05)\ntime.monotonic() - a >= 0.05").value == "True"


def test_the_folder_that_the_code_is_in_and_its_environment_survive(stateful):
    box = stateful.new()
    box.execute("import os\nos.mkdir('sub')\nos.chdir('sub')\nos.environ['MINE'] = '1'")
    box.hibernate()
    assert box.execute("os.getcwd(), os.environ['MINE']").value == "('/app/sub', '1')"
    box.execute("open('here.txt', 'w').close()")
    assert "sub/here.txt" in list_session_files(box.session_id, stateful.root)


@pytest.mark.parametrize(
    "use", ["f.read()", "f.write('x'); f.flush()", "os.read(fd, 1)", "os.write(fd, b'x')"]
)
def test_a_file_held_open_over_a_hibernation_is_an_error_and_no_other_file(stateful, use):
    box = stateful.new()
    box.execute("import os\nf = open('old.txt', 'w+')\nfd = f.fileno()")
    box.hibernate()
    others = box.execute(
        "others = [open(f'new{i}.txt', 'w+') for i in range(4)]\nfd in [o.fileno() for o in others]"
    )
    assert others.value == "False"
    result = box.execute(use)
    assert result.stderr.splitlines()[-1].partition(":")[0] in {"OSError", "ValueError", "IsADirectoryError"}
    assert result.state == "live"
    assert box.execute("[os.stat(f'new{i}.txt').st_size for i in range(4)]").value == "[0, 0, 0, 0]"
    closed = box.execute("try: f.close()\nexcept OSError: pass\nopen('after.txt', 'w').write('fine')")
    assert closed.value == "4"


def test_a_folder_held_open_over_a_hibernation_shows_no_other_folder(stateful):
    box = stateful.new()
    box.execute("import os\nfd = os.open('.', os.O_RDONLY)\nopen('mine.txt', 'w').close()")
    assert box.execute("os.stat('mine.txt', dir_fd=fd).st_size").value == "0"
    box.hibernate()
    for name in ("mine.txt", "python315.zip"):
        for use in (f"os.stat({name!r}, dir_fd=fd).st_size", f"os.open({name!r}, os.O_RDONLY, dir_fd=fd)"):
            assert box.execute(use).stderr.splitlines()[-1].startswith("OSError: [Errno 8] Bad file"), use
    assert box.execute("os.open('new.txt', os.O_WRONLY | os.O_CREAT, dir_fd=fd)").exit_code == 1
    assert list_session_files(box.session_id, stateful.root) == ["mine.txt", "user_code.py"]


def test_a_session_is_made_stateful_by_its_own_id(stateful):
    box = get_session_sandbox("by-name", workspace_root=stateful.root, stateful=True)
    box.execute("x = 1")
    box.close()
    assert stateful.get("by-name").execute("x").value == "1"
