"""What callers of `execute` can rely on."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import threading
import time

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


def run(box, code, **options):
    """Run code that must succeed, and give what it printed."""
    result = box.execute(code, **options)
    assert (result.exit_code, result.stopped_by) == (0, None), result.stderr
    return result.stdout


def lists(result):
    return result.files_created, result.files_modified, result.files_deleted


def files_of(box, code):
    result = box.execute(code)
    assert result.success, result.stderr
    return lists(result)


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


def test_a_workspace_may_be_a_string(tmp_path):
    with create_sandbox("python", workspace=str(tmp_path / "a" / "b")) as box:
        assert run(box, "print('here')") == "here\n"
    assert (tmp_path / "a" / "b" / "user_code.py").read_text() == "print('here')"


def test_a_sandbox_can_be_closed_twice_and_then_refuses(make_box):
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


# ---- file lists


def test_a_new_file_is_created_and_modified(box):
    assert files_of(box, "open('new.txt', 'w').write('x')") == (["new.txt"], ["new.txt"], [])


def test_a_touch_creates(box):
    assert files_of(box, "import pathlib; pathlib.Path('t').touch()") == (["t"], ["t"], [])


def test_writing_an_old_file_modifies_it(box):
    (box.workspace / "old").write_text("1")
    for code in (
        "open('old', 'w').write('2')",
        "open('old', 'a').write('2')",
        "open('old', 'r+').write('3')",
    ):
        assert files_of(box, code) == ([], ["old"], [])


def test_emptying_a_file_modifies_it(box):
    for code in ("open('old', 'w').close()", "import os; os.truncate('old', 1)"):
        (box.workspace / "old").write_text("12")
        assert files_of(box, code) == ([], ["old"], [])


def test_reading_and_a_change_of_times_are_in_no_list(box):
    (box.workspace / "old").write_text("1")
    assert files_of(
        box, "import os; open('old').read(); os.utime('old', (1, 2)); open('old', 'a').close()"
    ) == (
        [],
        [],
        [],
    )


def test_folders_are_in_no_list(box):
    code = "import os; os.makedirs('a/b'); os.rename('a', 'c'); os.mkdir('d'); os.rmdir('d')"
    assert files_of(box, code) == ([], [], [])


def test_removing_an_old_file_deletes_it(box):
    (box.workspace / "old").write_text("1")
    assert files_of(box, "import os; os.remove('old')") == ([], [], ["old"])


def test_a_file_made_and_removed_is_in_no_list(box):
    assert files_of(box, "import os; open('t', 'w').write('x'); os.remove('t')") == ([], [], [])


def test_a_file_that_lives_on_without_its_name_is_in_no_list(box):
    code = "import os; f = open('t', 'w'); os.remove('t'); f.write('x'); f.flush(); f.truncate(9)"
    assert files_of(box, code) == ([], [], [])


def test_an_old_file_written_to_after_its_removal_is_deleted(box):
    (box.workspace / "old").write_text("1")
    code = "import os; f = open('old', 'w'); os.remove('old'); f.write('x'); f.close()"
    assert files_of(box, code) == ([], [], ["old"])


def test_an_old_file_removed_and_made_again_is_modified(box):
    (box.workspace / "old").write_text("1")
    assert files_of(box, "import os; os.remove('old'); open('old', 'w').write('2')") == ([], ["old"], [])


def test_temp_and_replace_modifies(box):
    (box.workspace / "old").write_text("1")
    code = "import os; open('old.tmp', 'w').write('2'); os.replace('old.tmp', 'old')"
    assert files_of(box, code) == ([], ["old"], [])


def test_a_write_to_the_file_that_was_replaced_is_not_reported_of_its_successor(box):
    (box.workspace / "old").write_text("1")
    (box.workspace / "new").write_text("2")
    code = "import os; f = open('old', 'r+'); os.replace('new', 'old'); f.write('lost'); f.close()"
    assert files_of(box, code) == ([], ["old"], ["new"])
    assert (box.workspace / "old").read_text() == "2"


def test_a_rename_creates_its_target_and_deletes_its_source(box):
    (box.workspace / "a").write_text("1")
    assert files_of(box, "import os; os.rename('a', 'b')") == (["b"], ["b"], ["a"])


def test_a_rename_there_and_back_modifies(box):
    (box.workspace / "a").write_text("1")
    assert files_of(box, "import os; os.rename('a', 'b'); os.rename('b', 'a')") == ([], ["a"], [])


def test_a_rename_of_a_new_file_creates_only_its_target(box):
    assert files_of(box, "import os; open('a', 'w').close(); os.rename('a', 'b')") == (["b"], ["b"], [])


def test_a_rename_between_two_names_of_one_file_changes_nothing(box):
    (box.workspace / "a").write_text("1")
    os.link(box.workspace / "a", box.workspace / "b")
    assert files_of(box, "import os; os.rename('a', 'b')") == ([], [], [])
    assert sorted(os.listdir(box.workspace)) == ["a", "b", "user_code.py"]


def test_a_rename_of_a_folder_counts_for_every_file_in_it(box):
    for name in ("x", "sub/y"):
        (box.workspace / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (box.workspace / "d" / name).write_text("1")
    targets = ["e/sub/y", "e/x"]
    assert files_of(box, "import os; os.rename('d', 'e')") == (targets, targets, ["d/sub/y", "d/x"])


def test_a_file_open_in_a_renamed_folder_is_reported_under_its_new_name(box):
    code = "import os; os.mkdir('d'); f = open('d/x', 'w'); os.rename('d', 'e'); f.write('1'); f.close()"
    assert files_of(box, code) == (["e/x"], ["e/x"], [])


def test_a_hard_link_is_created(box):
    (box.workspace / "a").write_text("1")
    assert files_of(box, "import os; os.link('a', 'b')") == (["b"], ["b"], [])


def test_a_symlink_is_created_and_a_write_through_it_modifies_its_target(box):
    (box.workspace / "a").write_text("1")
    assert files_of(box, "import os; os.symlink('a', 'l')") == (["l"], ["l"], [])
    assert files_of(box, "open('l', 'w').write('2')") == ([], ["a"], [])
    assert files_of(box, "import os; os.symlink('fresh', 'm'); open('m', 'w').write('2')") == (
        ["fresh", "m"],
        ["fresh", "m"],
        [],
    )
    assert files_of(box, "import os; os.remove('l')") == ([], [], ["l"])


def test_a_write_through_a_linked_folder_counts_where_the_file_is(box):
    (box.workspace / "real").mkdir()
    code = "import os; os.symlink('real', 'way'); open('way/f', 'w').write('1')"
    assert files_of(box, code) == (["real/f", "way"], ["real/f", "way"], [])


def test_a_write_from_an_open_folder_counts_where_the_file_is(box):
    (box.workspace / "d").mkdir()
    code = """
import os
folder = os.open('d', os.O_RDONLY)
os.close(os.open('f', os.O_WRONLY | os.O_CREAT, dir_fd=folder))
os.mkdir('sub', dir_fd=folder)
os.close(os.open('sub/g', os.O_WRONLY | os.O_CREAT, dir_fd=folder))
os.rename('f', 'sub/../h', src_dir_fd=folder, dst_dir_fd=folder)
"""
    assert files_of(box, code) == (["d/h", "d/sub/g"], ["d/h", "d/sub/g"], [])


def test_paths_in_the_lists_are_plain(box):
    code = """
import os
os.makedirs('a/b'); os.chdir('a')
open('./b/../x', 'w').close()
os.chdir('/app')
open('//app/./a//y', 'w').close()
open('a/é', 'w').close()
"""
    assert files_of(box, code)[0] == ["a/x", "a/y", "a/é"]


def test_the_code_itself_is_in_no_list(box):
    assert files_of(box, "open('user_code.py', 'a').write('#')") == ([], [], [])
    assert files_of(box, "import os; os.remove('user_code.py')") == ([], [], [])


def test_a_file_of_that_name_elsewhere_is_listed(box):
    code = "import os; os.mkdir('d'); open('d/user_code.py', 'w').close()"
    assert files_of(box, code)[0] == ["d/user_code.py"]


def test_what_happens_in_tmp_is_in_no_list(box):
    assert files_of(box, "open('/tmp/x', 'w').write('1'); import os; os.rename('/tmp/x', '/tmp/y')") == (
        [],
        [],
        [],
    )


def test_nothing_is_moved_or_linked_between_tmp_and_the_workspace(box):
    code = """
import os, shutil
open('/tmp/x', 'w').write('1')
for act in (os.rename, os.replace, os.link):
    try:
        act('/tmp/x', '/app/y')
    except OSError as error:
        print(error.strerror)
print(shutil.move('/tmp/x', '/app/z'))
"""
    result = box.execute(code)
    assert result.stdout.splitlines() == ["Cross-device link"] * 3 + ["/app/z"]
    assert lists(result) == (["z"], ["z"], [])


def test_a_failed_execution_has_its_lists_too(box):
    result = box.execute("open('a', 'w').write('x'); 1 / 0")
    assert (result.exit_code, result.files_created) == (1, ["a"])


def test_a_name_that_is_no_utf_8_does_not_spoil_the_result(box):
    folder = os.fsencode(box.workspace) + b"/d"
    os.mkdir(folder)
    with open(folder + b"/\xff\xfe", "wb"):
        pass
    result = box.execute("import os; os.rename('d', 'e')")
    assert result.success
    assert result.files_created == ["e/\ufffd\ufffd"]
    assert SandboxResult.model_validate_json(result.model_dump_json()) == result


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


def test_an_unclosed_output_is_flushed(box):
    result = box.execute("import sys; sys.stdout.write('a'); sys.stderr.write('b')")
    assert (result.stdout, result.stderr) == ("a", "b")


def test_output_that_is_no_utf_8_is_shown_with_replacements(box):
    result = box.execute("import os; os.write(1, b'a\\xffb'); os.write(2, b'\\x80')")
    assert (result.stdout, result.stderr) == ("a\ufffdb", "\ufffd")


def test_a_megabyte_of_output_comes_back_whole(box):
    assert run(box, "print('x' * 1_000_000)") == "x" * 1_000_000 + "\n"


# ---- the world of the code


def test_the_code_is_main(box):
    assert run(box, "print(__name__, __file__); import __main__; print(__main__.__dict__ is globals())") == (
        "__main__ /app/user_code.py\nTrue\n"
    )


def test_main_starts_empty(box):
    names = run(box, "print(sorted(k for k in dir() if not k.startswith('__')))")
    assert names == "[]\n"


def test_the_working_directory_is_the_workspace(box):
    (box.workspace / "f").write_text("x")
    assert run(box, "import os; print(os.getcwd(), sorted(os.listdir()))") == "/app ['f', 'user_code.py']\n"


def test_a_module_of_the_workspace_can_be_imported(box):
    (box.workspace / "mine.py").write_text("VALUE = 41")
    (box.workspace / "package").mkdir()
    (box.workspace / "package" / "__init__.py").write_text("from .part import n")
    (box.workspace / "package" / "part.py").write_text("n = 1")
    assert run(box, "import mine, package; print(mine.VALUE + package.n)") == "42\n"


def test_a_module_written_by_the_code_can_be_imported(box):
    assert run(box, "open('later.py', 'w').write('n = 7'); import later; print(later.n)") == "7\n"


def test_a_module_that_changed_is_seen_as_it_is_now(box):
    for n in range(3):
        (box.workspace / "mine.py").write_text(f"VALUE = {n}")
        assert run(box, "import mine; print(mine.VALUE)") == f"{n}\n"


def test_variables_do_not_persist_and_files_do(box):
    run(box, "x = 1; import builtins; builtins.y = 2; open('f', 'w').write('kept')")
    result = box.execute("print(open('f').read(), hasattr(__builtins__, 'y')); x")
    assert result.stdout == "kept False\n"
    assert "NameError: name 'x' is not defined" in result.stderr


def test_arguments_arrive(box):
    args = ["a b", "", "é", "--flag=1"]
    assert run(box, "import sys; print(sys.argv)", args=args) == repr(["/app/user_code.py", *args]) + "\n"


def test_the_environment_is_the_policy_and_nothing_of_the_host(make_box, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_HOST", "s3cret")
    box = make_box(env={"MINE": "1", "LC_ALL": "C"})
    env = json.loads(run(box, "import os, json; print(json.dumps(dict(os.environ)))"))
    assert "s3cret" not in str(env)
    assert (env["MINE"], env["LC_ALL"], env["PYTHONUTF8"], env["PYTHONIOENCODING"]) == (
        "1",
        "C",
        "1",
        "utf-8",
    )
    assert not set(env) - {
        *("MINE", "LC_ALL", "PYTHONUTF8", "PYTHONIOENCODING", "HOME", "TMPDIR", "MPLBACKEND", "MPLCONFIGDIR"),
    }


def test_an_environment_does_not_stay_for_the_next(make_box):
    run(make_box(env={"MINE": "1"}), "import os; os.environ['OTHER'] = '2'")
    assert (
        run(make_box(), "import os; print(os.environ.get('MINE'), os.environ.get('OTHER'))") == "None None\n"
    )


def test_data_is_read_only(make_box, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "d.txt").write_text("known")
    box = make_box(mount_data_dir=tmp_path / "data")
    code = """
import os
print(open('/data/d.txt').read(), os.listdir('/data'))
def attempt(act, *args):
    try:
        act(*args)
        print('done', args)
    except OSError:
        pass
attempt(open, '/data/d.txt', 'w')
attempt(open, '/data/d.txt', 'a')
attempt(open, '/data/d.txt', 'r+')
attempt(open, '/data/new', 'w')
attempt(os.remove, '/data/d.txt')
attempt(os.rename, '/data/d.txt', '/data/e')
attempt(os.rename, '/data/d.txt', '/app/e')
attempt(os.rename, '/app/user_code.py', '/data/e')
attempt(os.link, '/data/d.txt', '/app/linked')
attempt(os.link, '/app/user_code.py', '/data/linked')
attempt(os.symlink, 'd.txt', '/data/s')
attempt(os.mkdir, '/data/sub')
attempt(os.utime, '/data/d.txt', (1, 1))
attempt(os.truncate, '/data/d.txt', 0)
"""
    before = (tmp_path / "data" / "d.txt").stat()
    assert run(box, code) == "known ['d.txt']\n"
    assert os.listdir(tmp_path / "data") == ["d.txt"]
    assert (tmp_path / "data" / "d.txt").read_text() == "known"
    assert (tmp_path / "data" / "d.txt").stat().st_mtime_ns == before.st_mtime_ns


def test_data_can_be_seen_at_another_path(make_box, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "d").write_text("x")
    box = make_box(mount_data_dir=tmp_path / "data", guest_data_path="/sets/one")
    assert run(box, "print(open('/sets/one/d').read())") == "x\n"


def test_without_data_there_is_an_empty_folder_that_stays_empty(box):
    assert run(box, "import os; print(os.listdir('/data'))") == "[]\n"
    assert box.execute("open('/data/x', 'w')").exit_code == 1
    assert run(box, "import os; print(os.listdir('/data'))") == "[]\n"


def test_tmp_is_empty_each_time_and_private(box):
    for way in ("open('/tmp/a', 'w').close()", "os.mkdir('/tmp/b')", "os.symlink('x', '/tmp/c')", "pass"):
        assert run(box, f"import os; print(os.listdir('/tmp')); {way}") == "[]\n"
    assert (
        run(box, "import tempfile; f = tempfile.NamedTemporaryFile(); print(f.name.startswith('/tmp/'))")
        == "True\n"
    )
    assert not (box.workspace / "tmp").exists()


@pytest.mark.parametrize(
    "make",
    [
        "open('/tmp/x', 'w')",
        "os.open('/tmp/x', os.O_CREAT | os.O_RDONLY)",
        "os.open('x', os.O_CREAT | os.O_WRONLY, dir_fd=os.open('/tmp', os.O_RDONLY))",
        "os.mkdir('/tmp/x')",
        "os.symlink('nowhere', '/tmp/x')",
        "os.symlink('new', '/tmp/x'); open('/tmp/x', 'w')",
        "open('/tmp/x', 'w'); os.link('/tmp/x', '/tmp/y'); os.remove('/tmp/x')",
        "os.mkdir('/tmp/x'); os.rename('/tmp/x', '/tmp/y')",
    ],
)
def test_tmp_is_empty_after_a_guest_that_left_something_there_in_any_way(box, make):
    for _ in range(2):
        result = box.execute(f"import os\nprint(os.listdir('/tmp'))\n{make}")
        assert (result.stdout, result.exit_code) == ("[]\n", 0), result.stderr


def test_tmp_is_empty_after_a_guest_that_was_stopped(box):
    for code in (
        "open('/tmp/a', 'w').close(); import os; os.abort()",
        "open('/tmp/a', 'w').close(); import os; os._exit(1)",
    ):
        box.execute(code)
        assert run(box, "import os; print(os.listdir('/tmp'))") == "[]\n"


@pytest.mark.parametrize(
    "expression",
    [
        "random.random()",
        "random.getrandbits(64)",
        "random.Random().random()",
        "random.SystemRandom().random()",
        "uuid.uuid4()",
        "uuid.uuid1().clock_seq, uuid.uuid4()",
        "secrets.token_hex()",
        "os.urandom(8)",
        "tempfile.mktemp()",
    ],
)
def test_two_executions_share_no_randomness(box, expression):
    code = f"import os, random, secrets, tempfile, uuid; print({expression})"
    assert len({run(box, code) for _ in range(4)}) > 1


def test_two_executions_share_no_randomness_of_numpy(make_box):
    box = make_box(preload=("numpy",))
    for expression in (
        "numpy.random.random()",
        "numpy.random.default_rng().random()",
        "numpy.random.RandomState().random()",
    ):
        assert run(box, f"import numpy; print({expression})") != run(
            box, f"import numpy; print({expression})"
        )


def test_seeded_randomness_repeats(make_box):
    box = make_box(preload=("numpy",))
    code = (
        "import random, numpy as n; random.seed(1); n.random.seed(1); print(random.random(), n.random.rand())"
    )
    assert run(box, code) == run(box, code)


def test_preloaded_modules_are_there_and_not_in_main(make_box):
    box = make_box(preload=("numpy",))
    assert run(box, "import sys; print('numpy' in sys.modules, 'numpy' in dir())") == "True False\n"


def test_the_clock_goes_on(box):
    now = time.time()
    told = float(run(box, "import time; print(time.time())"))
    assert abs(told - now) < 60
    assert (
        run(box, "import time; a = time.monotonic(); time.sleep(0.01); print(time.monotonic() - a >= 0.01)")
        == "True\n"
    )


# ---- input


@pytest.mark.parametrize("stdin", ["zwei\nä\n", "zwei\nä\n".encode(), io.BytesIO("zwei\nä\n".encode())])
def test_input_may_be_text_bytes_or_a_stream(box, stdin):
    assert (
        run(box, "print(ascii(input())); import sys; print(ascii(sys.stdin.read()))", stdin=stdin)
        == "'zwei'\n'\\xe4\\n'\n"
    )


def test_without_input_there_is_an_end_of_file(box):
    result = box.execute("input()")
    assert result.stderr.endswith("EOFError: EOF when reading a line\n")


def test_input_may_be_a_file_and_starts_where_its_reader_is(box, tmp_path):
    (tmp_path / "in").write_bytes(b"header\nbody\n")
    with (tmp_path / "in").open("rb") as stream:
        assert stream.readline() == b"header\n"
        assert run(box, "print(input())", stdin=stream) == "body\n"


def test_input_may_be_a_pipe_that_fills_while_the_code_runs(box):
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb", buffering=0) as sink:

        def answer(_name, data):
            if data.startswith(b"more?"):
                sink.write(b"yes\n")
            elif data.startswith(b"got"):
                sink.close()

        code = "print('more?'); print('got', input())\ntry: input()\nexcept EOFError: print('end')"
        assert run(box, code, stdin=source, on_output=answer) == "more?\ngot yes\nend\n"


def test_input_may_have_a_large_descriptor_number(box):
    import fcntl
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    reading, writing = os.pipe()
    try:
        far = fcntl.fcntl(reading, fcntl.F_DUPFD_CLOEXEC, 2000)
        with os.fdopen(far, "rb") as source:
            os.write(writing, b"here\n")
            assert run(box, "print(input())", stdin=source) == "here\n"
    finally:
        os.close(reading)
        os.close(writing)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_ten_megabytes_of_input_arrive(box):
    code = "import sys, hashlib; d = sys.stdin.buffer.read(); print(len(d), hashlib.md5(d).hexdigest())"
    import hashlib

    data = bytes(range(256)) * 40_000
    assert run(box, code, stdin=data) == f"{len(data)} {hashlib.md5(data).hexdigest()}\n"


# ---- output while it runs


def test_output_comes_in_order_and_is_in_the_result_too(box):
    seen = []
    code = "import sys\nfor n in range(3):\n    print(n)\n    print(-n, file=sys.stderr)"
    result = box.execute(code, on_output=lambda name, data: seen.append((name, data)))
    assert b"".join(data for name, data in seen if name == "stdout") == result.stdout.encode() == b"0\n1\n2\n"
    assert [name for name, _ in seen] == ["stdout", "stderr"] * 3
    assert {type(data) for _, data in seen} == {bytes}


def test_output_comes_while_the_code_runs(box):
    cancel = threading.Event()
    result = box.execute(f"print('started')\n{FOREVER}", on_output=lambda *_: cancel.set(), cancel=cancel)
    assert (result.stdout, result.stopped_by) == ("started\n", "cancelled")


def test_an_exception_of_the_callback_reaches_the_caller(box):
    def fail(_name, _data):
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        box.execute("print(1)\nwhile True: print(2)", on_output=fail)
    assert run(box, "print('next')") == "next\n"


def test_a_callback_may_execute_code_itself(box, make_box):
    other, inner = make_box("other"), []
    result = box.execute(
        "print('outer')", on_output=lambda *_: inner.append(other.execute("print('inner')").stdout)
    )
    assert (result.stdout, inner) == ("outer\n", ["inner\n"])


# ---- stopping


def test_an_event_stops_the_code(box):
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


def test_nothing_goes_to_the_streams_of_the_host(box, capfd):
    box.execute("import sys; print('out'); print('err', file=sys.stderr); 1 / 0")
    assert capfd.readouterr() == ("", "")


def test_a_name_of_the_host_that_is_no_utf8_can_be_used_but_not_made(box):
    (box.workspace / os.fsdecode(b"caf\xe9")).write_text("from the host")
    result = box.execute("""
import os
name = next(name for name in os.listdir('.') if name.startswith('caf'))
print(ascii(name), open(name).read())
open(name, 'a').write('!')
try:
    open(b'new\\xe9', 'w')
except OSError as error:
    print(error.strerror)
""")
    assert result.stdout == "'caf\\udce9' from the host\nIllegal byte sequence\n", result.stderr
    assert (result.files_created, result.files_modified) == ([], ["caf\ufffd"])
