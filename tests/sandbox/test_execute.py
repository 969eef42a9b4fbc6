"""What callers of `execute` can rely on."""

from __future__ import annotations

import json

import pytest

from sandbox import (
    ExecutionPolicy,
    PythonSandbox,
    SandboxClosed,
    SandboxLogger,
    SandboxResult,
    create_sandbox,
)

FOREVER = "while True: pass"


# ---- creating


def test_an_unknown_runtime_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"^Unsupported runtime: ruby$"):
        create_sandbox("ruby", workspace=tmp_path)


def test_the_default_workspace_is_a_folder_named_workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with create_sandbox() as box:
        assert str(box.workspace) == "workspace"
        assert box.execute("open('f', 'w').close()").workspace_path == str(tmp_path / "workspace")
    assert (tmp_path / "workspace" / "f").exists()


def test_a_workspace_may_be_a_string(tmp_path, run):
    with create_sandbox("python", workspace=str(tmp_path / "a" / "b")) as box:
        assert run(box, "print('here')") == "here\n"
    assert (tmp_path / "a" / "b" / "user_code.py").read_text() == "print('here')"


def test_a_sandbox_can_be_closed_twice_and_then_refuses(make_box, run):
    box = make_box()
    run(box, "print(1)")
    box.close()
    box.close()
    with pytest.raises(SandboxClosed):
        box.execute("print(1)")
    with pytest.raises(SandboxClosed):
        box.validate_code("1")


def test_a_sandbox_is_a_context_manager(tmp_path):
    with create_sandbox(workspace=tmp_path) as box:
        assert isinstance(box, PythonSandbox)
    with pytest.raises(SandboxClosed):
        box.execute("")


# ---- the result


def test_a_result_survives_json(box):
    result = box.execute("import sys; open('a', 'w').write('x'); print('é'); sys.exit(3)")
    assert SandboxResult.model_validate_json(result.model_dump_json()) == result
    assert json.loads(result.model_dump_json())["files_created"] == ["a"]


def test_a_result_tells_what_was_used(box):
    result = box.execute("print('x')")
    assert result.fuel_consumed > 10_000
    assert result.memory_used_bytes > 1 << 20
    assert result.duration_ms > 0
    assert result.metadata == {"runtime": "python"}


def test_an_unmetered_execution_has_no_fuel_figure(make_box):
    result = make_box(fuel_budget=None).execute("print('x')")
    assert (result.stdout, result.fuel_consumed) == ("x\n", None)


def test_a_limit_of_memory_shows_what_was_used(box):
    small = box.execute("pass").memory_used_bytes
    large = box.execute("x = bytearray(100 << 20)").memory_used_bytes
    assert large - small >= 90 << 20


# ---- how it ends


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("import sys; sys.exit()", 0),
        ("import sys; sys.exit(None)", 0),
        ("import sys; sys.exit(0)", 0),
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit(256)", 256),
        ("import sys; sys.exit(-1)", -1),
        ("import sys; sys.exit(True)", 1),
        ("raise SystemExit(5)", 5),
        ("import sys; sys.exit('words')", 1),
        ("exit(4)", 4),
        ("import os; os._exit(0)", 0),
        ("import os; os._exit(1)", 1),
        ("import os; os._exit(126)", 126),
        ("import os; os._exit(255)", 255),
        ("1 / 0", 1),
        ("def broken(:", 1),
        ("raise KeyboardInterrupt", 1),
        ("raise BaseException('x')", 1),
    ],
)
def test_the_exit_code_is_what_the_code_says(box, code, exit_code):
    result = box.execute(code)
    assert (result.exit_code, result.stopped_by, result.success) == (exit_code, None, exit_code == 0)


def test_the_words_of_an_exit_go_to_stderr(box):
    assert box.execute("import sys; sys.exit('words')").stderr == "words\n"


def test_an_abort_is_a_trap(box):
    result = box.execute("import os; print('before', flush=True); os.abort()")
    assert (result.stopped_by, result.exit_code, result.stdout) == ("trap", 134, "before\n")
    assert result.stderr.startswith("Trap: ")


def test_a_traceback_names_the_code_and_nothing_of_the_driver(box):
    result = box.execute("def f():\n    return 1 / 0\n\nf()\n")
    assert result.stdout == ""
    assert result.stderr == (
        "Traceback (most recent call last):\n"
        '  File "/app/user_code.py", line 4, in <module>\n'
        "    f()\n"
        "    ~^^\n"
        '  File "/app/user_code.py", line 2, in f\n'
        "    return 1 / 0\n"
        "           ~~^~~\n"
        "ZeroDivisionError: division by zero\n"
    )


def test_a_syntax_error_shows_its_line(box):
    stderr = box.execute("x = (\n").stderr
    assert '  File "/app/user_code.py", line 1\n' in stderr
    assert stderr.endswith("SyntaxError: '(' was never closed\n")
    assert "driver" not in stderr


def test_a_chained_traceback_has_no_frames_of_the_driver(box):
    stderr = box.execute("try:\n    1 / 0\nexcept Exception:\n    raise ValueError('v')").stderr
    assert stderr.count("user_code.py") == 2
    assert "driver" not in stderr
    assert "During handling of the above exception" in stderr


def test_an_excepthook_is_called(box):
    result = box.execute("import sys; sys.excepthook = lambda *a: print('hook', a[0].__name__); 1 / 0")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "hook ZeroDivisionError\n", "")


def test_exit_functions_run_in_order_and_after_an_error_too(box):
    code = "import atexit; atexit.register(print, 'one'); atexit.register(print, 'two'); print('body'); "
    assert box.execute(code).stdout == "body\ntwo\none\n"
    assert box.execute(code + "1 / 0").stdout == "body\ntwo\none\n"
    assert box.execute(code + "exit(3)").stdout == "body\ntwo\none\n"


def test_a_syntax_warning_is_shown(box):
    result = box.execute("print(1 is 1)")
    assert (result.exit_code, result.stdout) == (0, "True\n")
    assert "/app/user_code.py:1: SyntaxWarning" in result.stderr


# ---- validation


def test_validation_compiles_and_never_runs(box):
    assert box.validate_code("open('made', 'w').write('x'); print(1)") is True
    assert not (box.workspace / "made").exists()
    assert not (box.workspace / "user_code.py").exists()


@pytest.mark.parametrize("code", ["def f(:", "x = = 1", "a\0b", "\ud800", "return 1", "(" * 500])
def test_validation_refuses_what_does_not_compile(box, code):
    assert box.validate_code(code) is False


@pytest.mark.parametrize(
    "code", ["", "x = 1", "print('é')", "match x:\n    case 1: pass", "import nothing_here"]
)
def test_validation_accepts_what_compiles(box, code):
    assert box.validate_code(code) is True


# ---- logging


class Log:
    def __init__(self):
        self.events = []

    def _note(self, event, **fields):
        self.events.append((event, fields))

    debug = info = warning = error = _note


def test_an_execution_is_logged_from_start_to_end(tmp_path):
    log = Log()
    with create_sandbox(workspace=tmp_path, logger=SandboxLogger(log)) as box:
        box.execute("open('a', 'w').close()")
    start, end = [(name, fields) for name, fields in log.events if name.startswith("execution.")]
    assert start[0] == "execution.start"
    assert start[1] == {
        "runtime": "python",
        "fuel_budget": 100_000_000_000,
        "memory_bytes": 512 << 20,
        "workspace": str(tmp_path),
    }
    assert end[0] == "execution.complete"
    assert set(end[1]) == {
        *("success", "exit_code", "duration_ms", "fuel_consumed", "memory_used_bytes", "stopped_by"),
        *("files_created_count", "files_modified_count"),
    }
    assert (end[1]["success"], end[1]["files_created_count"], end[1]["files_modified_count"]) == (True, 1, 1)


@pytest.mark.parametrize(
    ("code", "event"),
    [
        (FOREVER, "security.timeout"),
        ("x = bytearray(1 << 30)", "security.memory_limit"),
        ("import os\nfor _ in range(9):\n    os.path.exists('.metadata.json')", "security.path_denied"),
        (
            "for n in range(9):\n    try: open(str(n), 'w').write('x' * 99999)\n    except OSError: pass",
            "security.quota_exceeded",
        ),
    ],
)
def test_what_a_limit_stopped_is_logged_once(tmp_path, code, event):
    log = Log()
    policy = ExecutionPolicy(timeout_seconds=2.0, disk_write_bytes=200_000)
    with create_sandbox(workspace=tmp_path, logger=SandboxLogger(log), policy=policy) as box:
        box.execute(code)
    assert [name for name, _ in log.events if name.startswith("security.")] == [event]


def test_fuel_that_ran_out_is_logged(tmp_path):
    log = Log()
    with create_sandbox(
        workspace=tmp_path, logger=SandboxLogger(log), policy=ExecutionPolicy(fuel_budget=50_000_000)
    ) as box:
        box.execute(FOREVER)
    assert "security.fuel_exhausted" in [name for name, _ in log.events]
