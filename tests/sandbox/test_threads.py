"""Many threads at once: every result belongs to its own caller."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sandbox.wasm import threads

THREADS = 8
ROUNDS = 500 if os.environ.get("SANDBOX_SOAK") else 15

# What a program does, and how it ends: its mark is a text that no other execution has.
PROGRAMS = {
    "prints": ("print(MARK)", 0, None),
    "fails": ("print(MARK); raise ValueError(MARK)", 1, None),
    "exits": ("import sys; print(MARK); sys.exit(17)", 17, None),
    "exits hard": ("import os; print(MARK, flush=True); os._exit(23)", 23, None),
    "sleeps": ("import time; time.sleep(0.01); print(MARK)", 0, None),
    "floods": ("import os; print(MARK, flush=True)\nfor _ in range(20): os.write(1, b'x' * 50_000)", 0, None),
    "traps": ("import os; print(MARK, flush=True); os.abort()", 134, "trap"),
    "runs out of fuel": ("print(MARK, flush=True)\nwhile True: pass", 137, "fuel"),
    "takes all memory": ("print(MARK, flush=True); x = bytearray(1 << 30)", 1, "memory"),
    "reads its input": ("print(MARK); assert input() == MARK", 0, None),
    "writes a file": ("open('mine', 'w').write(MARK); print(open('mine').read())", 0, None),
    "uses tmp": (
        "import os; assert not os.listdir('/tmp'); open('/tmp/x', 'w').write(MARK); print(MARK)",
        0,
        None,
    ),
}


def round_of(box, thread, number):
    """One execution of one thread, and everything that is wrong with its result."""
    name = list(PROGRAMS)[(thread * 5 + number) % len(PROGRAMS)]
    code, exit_code, stopped_by = PROGRAMS[name]
    mark, heard = f"mark-{thread}-{number}-{name}", []
    result = box.execute(
        f"MARK = {mark!r}\n{code}",
        stdin=mark,
        args=[mark],
        on_output=lambda stream, data: heard.append(data) if stream == "stdout" else None,
    )
    wrong = []
    if not result.stdout.startswith(mark) or b"".join(heard).decode() != result.stdout:
        wrong.append(("output", result.stdout[:80]))
    if (result.exit_code, result.stopped_by) != (exit_code, stopped_by):
        wrong.append(("ending", result.exit_code, result.stopped_by, result.stderr[-300:]))
    if result.files_created not in ([], ["mine"]) or result.workspace_path != str(box.workspace):
        wrong.append(("files", result.files_created))
    if (box.workspace / "mine").exists() and name == "writes a file":
        wrong += [("content",)] if (box.workspace / "mine").read_text() != mark else []
        (box.workspace / "mine").unlink()
    return [(name, *item) for item in wrong]


def all_rounds(make_box, rounds):
    boxes = [make_box(f"w{n}", fuel_budget=200_000_000, stdout_max_bytes=10_000) for n in range(THREADS)]
    gate = threading.Barrier(THREADS)

    def work(thread):
        gate.wait()
        return [item for number in range(rounds) for item in round_of(boxes[thread], thread, number)]

    with ThreadPoolExecutor(THREADS) as pool:
        return [item for found in pool.map(work, range(THREADS)) for item in found]


@pytest.mark.timeout(3600 if os.environ.get("SANDBOX_SOAK") else 300)
def test_every_result_belongs_to_its_own_caller(make_box):
    assert all_rounds(make_box, ROUNDS) == []


@pytest.mark.timeout(3600 if os.environ.get("SANDBOX_SOAK") else 300)
def test_every_result_belongs_to_its_own_caller_however_threads_are_switched(make_box):
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        assert all_rounds(make_box, max(5, ROUNDS // 3)) == []
    finally:
        sys.setswitchinterval(before)


def test_one_sandbox_may_be_used_by_many_threads(make_box):
    box = make_box()

    def work(number):
        result = box.execute(f"open('f{number}', 'w').write('{number}'); print({number})")
        return result.stdout, result.files_created

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(work, range(40))) == [(f"{n}\n", [f"f{n}"]) for n in range(40)]


def test_an_exception_of_one_callback_stays_with_its_caller(make_box):
    box = make_box()

    class Mine(Exception):
        pass

    def work(number):
        def fail(_stream, _data):
            raise Mine(number)

        if number % 2:
            return box.execute(f"print({number})").stdout
        try:
            box.execute("print('x')\nwhile True: pass", on_output=fail)
        except Mine as error:
            return error.args
        return "nothing was raised"

    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(work, range(40)))
    assert found == [f"{n}\n" if n % 2 else (n,) for n in range(40)]


def test_a_first_execution_in_many_threads_at_once_prepares_once(make_box):
    boxes = [make_box(f"w{n}", guest_data_path="/other/data") for n in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(lambda box: box.execute("print('first')").stdout, boxes))
    assert results == ["first\n"] * THREADS
    assert len({id(box.warm_up()) for box in boxes}) == 1


def test_closing_while_others_run_lets_them_finish(make_box):
    box, started = make_box(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            box.execute,
            "print(1)\nimport time; time.sleep(0.3); print(2)",
            on_output=lambda *_: started.set(),
        )
        started.wait(60)
        box.close()
        assert running.result(60).stdout == "1\n2\n"


def test_a_task_that_was_abandoned_has_no_afterwards():
    worker, done = threads._Worker(), []
    abandoned, following = threads.Task(lambda: done.append("run")), threads.Task(lambda: None)
    abandoned.abandon()
    worker.give(abandoned, lambda: done.append("afterwards"))
    worker.give(following, lambda: None)
    following.wait()
    assert done == []
