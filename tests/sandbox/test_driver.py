"""The driver's functions, under plain CPython."""

from __future__ import annotations

import importlib.util
import marshal
import os
import random
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

DRIVER = Path(__file__).resolve().parents[2] / "src/sandbox/guests/driver/driver.py"


@pytest.fixture
def driver():
    spec = importlib.util.spec_from_file_location("driver_under_test", DRIVER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (None, 0),
        (0, 0),
        (7, 7),
        (-1, -1),
        (256, 256),
        (True, 1),
        (2**31 - 1, 2**31 - 1),
        (2**31, 0),
        (2**40 + 5, 5),
        ("words", 1),
        ([1], 1),
    ],
)
def test_an_exit_code_is_what_sys_exit_means(driver, code, expected, capsys):
    assert driver.exit_code(code) == expected
    assert capsys.readouterr().err == (f"{code}\n" if isinstance(code, str | list) else "")


def test_an_exit_text_that_cannot_be_printed_is_an_exit_code_still(driver):
    class Silent:
        def __str__(self):
            raise ValueError

    assert driver.exit_code(Silent()) == 1


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("pass", (0, 0)),
        ("raise SystemExit(4)", (4, 0)),
        ("1 / 0", (1, 0)),
        ("raise MemoryError", (1, 1)),
        ("raise KeyboardInterrupt", (1, 0)),
        ("raise BaseException", (1, 0)),
    ],
)
def test_whatever_the_code_raises_becomes_a_code_and_flags(driver, action, expected, capsys):
    code = compile(action, "user_code.py", "exec")
    assert driver.guarded(partial(exec, code, {})) == expected
    assert "driver" not in capsys.readouterr().err


def test_a_traceback_has_no_frames_of_the_driver(driver, capsys):
    code = compile("def f():\n    1 / 0\nf()", "user_code.py", "exec")
    driver.guarded(partial(exec, code, {}))
    shown = capsys.readouterr().err
    assert shown.count("File ") == 2
    assert shown.startswith("Traceback")


def test_an_exception_hook_that_fails_falls_back(driver, monkeypatch, capsys):
    def hook(*_):
        raise LookupError

    monkeypatch.setattr(sys, "excepthook", hook)
    driver.guarded(lambda: exec("1 / 0", {}))
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_main_is_fresh(driver, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    main = driver.fresh_main()
    assert sys.modules["__main__"] is main
    assert {name for name in vars(main) if not name.startswith("__")} == set()
    assert (main.__name__, main.__file__) == ("__main__", "/app/user_code.py")


@pytest.mark.parametrize(("code", "expected"), [(b"x = 1", 0), (b"x = = 1", 1), (b"a\0b", 1), (b"\xff", 1)])
def test_a_check_compiles_and_does_not_run(driver, code, expected):
    assert driver.check({"code": code})[0] == expected


def test_the_environment_becomes_exactly_what_the_job_says(driver, monkeypatch):
    monkeypatch.setattr(os, "environ", {"OLD": "1", "KEPT": "2"})
    driver.set_environment({"KEPT": "3", "NEW": "4"})
    assert os.environ == {"KEPT": "3", "NEW": "4"}


def test_randomness_is_renewed(driver, monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    drawn = set()
    for _ in range(3):
        random.seed(1)
        driver.renew({"env": None})
        drawn.add(random.random())
    assert len(drawn) == 3


def test_the_code_gets_its_arguments(driver, monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    driver.set_streams({"args": ["a", "b c"], "streaming": False})
    assert sys.argv == ["/app/user_code.py", "a", "b c"]


def test_a_job_is_served_with_its_exit_code(driver):
    assert driver.serve(marshal.dumps({"kind": "check", "code": b"x = = 1"}, 2)) == (1, False)


def test_what_an_exit_code_cannot_say_is_reported(driver):
    reported = []
    driver.host_call = reported.append
    driver.JOBS["answer"] = lambda _job: (0, 2, "a \ud800")
    assert driver.serve(marshal.dumps({"kind": "answer"}, 2)) == (0, False)
    driver.JOBS["answer"] = lambda _job: (-1, 0, "")
    driver.serve(marshal.dumps({"kind": "answer"}, 2))
    assert reported == [b"R\0\0\0\0\x02a \\ud800", b"R\xff\xff\xff\xff\0"]


def test_without_a_host_there_is_no_channel(driver):
    with pytest.raises(NotImplementedError):
        driver.host_call(b"D")


def test_the_last_output_that_is_lost_is_an_exit_code():
    program = f"""
import sys, importlib.util
spec = importlib.util.spec_from_file_location("d", {str(DRIVER)!r})
d = importlib.util.module_from_spec(spec); spec.loader.exec_module(d)
class Full:
    def flush(self): raise OSError
out, sys.stdout = sys.stdout, Full()
codes = d.finish(0), d.finish(3)
sys.stdout = out
print(codes)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "(120, 3)\n"
