"""What stops an execution from outside."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

FOREVER = "while True: pass"


def test_an_event_stops_the_code(box, run):
    cancel = threading.Event()
    threading.Timer(0.2, cancel.set).start()
    result = box.execute(FOREVER, cancel=cancel)
    assert (result.stopped_by, result.success, result.exit_code) == ("cancelled", False, 137)
    assert run(box, "print('next')") == "next\n"


def test_an_event_that_is_set_already_stops_the_code_before_it_does_anything(box):
    cancel = threading.Event()
    cancel.set()
    for _ in range(5):
        result = box.execute("open('done', 'w').close()", cancel=cancel)
        assert result.stopped_by == "cancelled"
    assert not (box.workspace / "done").exists()


def test_the_code_cannot_catch_its_stop(box):
    cancel = threading.Event()
    code = f"print(1)\nwhile True:\n    try:\n        {FOREVER}\n    except BaseException:\n        pass"
    result = box.execute(code, cancel=cancel, on_output=lambda *_: cancel.set())
    assert result.stopped_by == "cancelled"


def test_a_timeout_of_the_call_stops_the_code(box):
    result = box.execute(FOREVER, timeout_seconds=0.3)
    assert (result.stopped_by, result.exit_code) == ("timeout", 137)
    assert "Timeout" in result.stderr


def test_an_async_execution_gives_the_result(box):
    result = asyncio.run(box.execute_async("print('async')", args=["a"]))
    assert result.stdout == "async\n"


def test_cancelling_an_async_execution_stops_the_code(box):
    async def main():
        started = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_output(_name, _data):
            loop.call_soon_threadsafe(started.set)

        task = asyncio.create_task(
            box.execute_async(f"print(1)\n{FOREVER}", on_output=on_output, timeout_seconds=600)
        )
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await box.execute_async("print('next')")

    assert asyncio.run(main()).stdout == "next\n"


def test_cancelling_one_async_execution_leaves_others_with_the_same_event_alone(box, make_box):
    other = make_box("other")

    async def main():
        shared = threading.Event()
        first = asyncio.create_task(box.execute_async(FOREVER, cancel=shared, timeout_seconds=600))
        await asyncio.sleep(0.3)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return shared.is_set(), await other.execute_async("print('goes on')", cancel=shared)

    is_set, result = asyncio.run(main())
    assert (is_set, result.stdout) == (False, "goes on\n")


def test_ctrl_c_in_the_waiting_thread_stops_the_code(tmp_path):
    program = f"""
import os, signal, threading
from sandbox import ExecutionPolicy, create_sandbox
policy = ExecutionPolicy(fuel_budget=None, timeout_seconds=None)
box = create_sandbox(workspace={str(tmp_path / "w")!r}, policy=policy)
interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
try:
    box.execute("print(1)\\nwhile True: pass", on_output=lambda n, _: n == "stderr" or interrupt.start())
except KeyboardInterrupt:
    print("interrupted")
print(box.execute("print('next')").stdout)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "interrupted\nnext\n\n"), done.stderr
