"""The world that the code finds: its folders, its environment, its clock and its chance."""

from __future__ import annotations

import json
import os
import time

import pytest


def test_the_code_is_main(box, run):
    assert run(box, "print(__name__, __file__); import __main__; print(__main__.__dict__ is globals())") == (
        "__main__ /app/user_code.py\nTrue\n"
    )


def test_main_starts_empty(box, run):
    names = run(box, "print(sorted(k for k in dir() if not k.startswith('__')))")
    assert names == "[]\n"


def test_the_working_directory_is_the_workspace(box, run):
    (box.workspace / "f").write_text("x")
    assert run(box, "import os; print(os.getcwd(), sorted(os.listdir()))") == "/app ['f', 'user_code.py']\n"


def test_a_module_of_the_workspace_can_be_imported(box, run):
    (box.workspace / "mine.py").write_text("VALUE = 41")
    (box.workspace / "package").mkdir()
    (box.workspace / "package" / "__init__.py").write_text("from .part import n")
    (box.workspace / "package" / "part.py").write_text("n = 1")
    assert run(box, "import mine, package; print(mine.VALUE + package.n)") == "42\n"


def test_a_module_written_by_the_code_can_be_imported(box, run):
    assert run(box, "open('later.py', 'w').write('n = 7'); import later; print(later.n)") == "7\n"


def test_a_module_that_changed_is_seen_as_it_is_now(box, run):
    for n in range(3):
        (box.workspace / "mine.py").write_text(f"VALUE = {n}")
        assert run(box, "import mine; print(mine.VALUE)") == f"{n}\n"


def test_variables_do_not_persist_and_files_do(box, run):
    run(box, "x = 1; import builtins; builtins.y = 2; open('f', 'w').write('kept')")
    result = box.execute("print(open('f').read(), hasattr(__builtins__, 'y')); x")
    assert result.stdout == "kept False\n"
    assert "NameError: name 'x' is not defined" in result.stderr


def test_arguments_arrive(box, run):
    args = ["a b", "", "é", "--flag=1"]
    assert run(box, "import sys; print(sys.argv)", args=args) == repr(["/app/user_code.py", *args]) + "\n"


def test_the_environment_is_the_policy_and_nothing_of_the_host(make_box, monkeypatch, run):
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


def test_an_environment_does_not_stay_for_the_next(make_box, run):
    run(make_box(env={"MINE": "1"}), "import os; os.environ['OTHER'] = '2'")
    assert (
        run(make_box(), "import os; print(os.environ.get('MINE'), os.environ.get('OTHER'))") == "None None\n"
    )


def test_data_is_read_only(make_box, tmp_path, run):
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


def test_data_can_be_seen_at_another_path(make_box, tmp_path, run):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "d").write_text("x")
    box = make_box(mount_data_dir=tmp_path / "data", guest_data_path="/sets/one")
    assert run(box, "print(open('/sets/one/d').read())") == "x\n"


def test_without_data_there_is_an_empty_folder_that_stays_empty(box, run):
    assert run(box, "import os; print(os.listdir('/data'))") == "[]\n"
    assert box.execute("open('/data/x', 'w')").exit_code == 1
    assert run(box, "import os; print(os.listdir('/data'))") == "[]\n"


def test_tmp_is_empty_each_time_and_private(box, run):
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


def test_tmp_is_empty_after_a_guest_that_was_stopped(box, run):
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
def test_two_executions_share_no_randomness(box, expression, run):
    code = f"import os, random, secrets, tempfile, uuid; print({expression})"
    assert len({run(box, code) for _ in range(4)}) > 1


def test_two_executions_share_no_randomness_of_numpy(make_box, run):
    box = make_box(preload=("numpy",))
    for expression in (
        "numpy.random.random()",
        "numpy.random.default_rng().random()",
        "numpy.random.RandomState().random()",
    ):
        assert run(box, f"import numpy; print({expression})") != run(
            box, f"import numpy; print({expression})"
        )


def test_seeded_randomness_repeats(make_box, run):
    box = make_box(preload=("numpy",))
    code = (
        "import random, numpy as n; random.seed(1); n.random.seed(1); print(random.random(), n.random.rand())"
    )
    assert run(box, code) == run(box, code)


def test_preloaded_modules_are_there_and_not_in_main(make_box, run):
    box = make_box(preload=("numpy",))
    assert run(box, "import sys; print('numpy' in sys.modules, 'numpy' in dir())") == "True False\n"


def test_the_clock_goes_on(box, run):
    now = time.time()
    told = float(run(box, "import time; print(time.time())"))
    assert abs(told - now) < 60
    assert (
        run(box, "import time; a = time.monotonic(); time.sleep(0.01); print(time.monotonic() - a >= 0.01)")
        == "True\n"
    )
