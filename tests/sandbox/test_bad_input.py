"""Bad input ends in a clear error or a result, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile

import pytest

from sandbox import (
    ExecutionPolicy,
    PolicyValidationError,
    PreloadFailed,
    SandboxError,
    WorkspaceUnusable,
    create_sandbox,
    load_policy,
)

# ---- code


def test_empty_code_does_nothing(box):
    for code in ("", "\n\n", "# only words"):
        result = box.execute(code)
        assert (result.success, result.stdout, result.stderr, result.files_created) == (True, "", "", [])


def test_code_with_a_nul_is_a_syntax_error(box):
    result = box.execute("print(1)\0print(2)")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "SyntaxError" in result.stderr
    assert (box.workspace / "user_code.py").read_bytes() == b"print(1)\0print(2)"


def test_code_with_a_lone_surrogate_is_a_syntax_error(box):
    result = box.execute("print('\ud800')")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "SyntaxError" in result.stderr


def test_fifty_megabytes_of_code_run(box):
    comment = "# " + "x" * 98 + "\n"
    result = box.execute(comment * 500_000 + "print('the end')\n")
    assert (result.stdout, result.exit_code) == ("the end\n", 0)
    assert (box.workspace / "user_code.py").stat().st_size > 50_000_000
    assert box.execute("print('next')").stdout == "next\n"
    assert (box.workspace / "user_code.py").read_text() == "print('next')"


def test_more_code_than_the_memory_takes_is_a_stop_by_memory(make_box):
    box = make_box(memory_bytes=64 << 20)
    result = box.execute("x = '" + "x" * 60_000_000 + "'")
    assert (result.stopped_by, result.success) == ("memory", False)
    assert box.execute("print('next')").stdout == "next\n"


def test_code_may_begin_with_the_mark_of_some_editors(box):
    assert box.execute("\ufeffprint('marked')").stdout == "marked\n"


def test_lines_may_end_as_on_other_systems(box):
    assert box.execute("if True:\r\n    print(1)\r\nprint(2)\r\n").stdout == "1\n2\n"


def test_a_coding_line_does_not_change_how_code_is_read(box):
    assert box.execute("# -*- coding: utf-8 -*-\nprint(ascii('é'))").stdout == "'\\xe9'\n"


@pytest.mark.parametrize("code", [None, b"print(1)", 5, ["print(1)"]])
def test_code_that_is_no_text_is_refused(box, code):
    with pytest.raises(TypeError, match="code must be str"):
        box.execute(code)
    with pytest.raises(TypeError, match="code must be str"):
        box.validate_code(code)
    assert not (box.workspace / "user_code.py").exists()


# ---- options


@pytest.mark.parametrize("args", ["text", [1], ["a\0b"], [b"x"], [None]])
def test_arguments_that_are_no_list_of_texts_are_refused(box, args):
    with pytest.raises(TypeError, match="args must be a sequence of str"):
        box.execute("pass", args=args)


@pytest.mark.parametrize("stdin", [5, object(), bytearray(b"x"), ["x"]])
def test_an_input_that_cannot_be_read_is_refused(box, stdin):
    with pytest.raises(TypeError, match="stdin must be"):
        box.execute("pass", stdin=stdin)


@pytest.mark.parametrize("seconds", [0, -1, 0.0, float("nan"), float("-inf")])
def test_a_timeout_that_is_no_time_is_refused(box, seconds):
    with pytest.raises(ValueError, match="timeout_seconds must be more than 0"):
        box.execute("pass", timeout_seconds=seconds)


def test_an_unknown_option_is_refused(box):
    with pytest.raises(TypeError, match="nonsense"):
        box.execute("pass", nonsense=1)


def test_an_input_that_fails_reaches_the_caller(box):
    class Broken:
        def read(self, _size):
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        box.execute("input()", stdin=Broken())
    assert box.execute("print('next')").stdout == "next\n"


# ---- the workspace


def test_a_workspace_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(WorkspaceUnusable, match="it is a file; name a folder"):
        create_sandbox(workspace=tmp_path / "file")
    with pytest.raises(WorkspaceUnusable):
        create_sandbox(workspace=tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "x"


def test_a_workspace_that_vanished_is_refused_and_works_when_it_is_back(box):
    box.execute("pass")
    shutil.rmtree(box.workspace)
    with pytest.raises(WorkspaceUnusable, match="it is gone; create the sandbox again"):
        box.execute("print(1)")
    assert not box.workspace.exists()
    box.workspace.mkdir()
    assert box.execute("print(1)").stdout == "1\n"


def test_a_workspace_that_became_a_file_is_refused(box):
    box.workspace.rmdir()
    box.workspace.write_text("x")
    with pytest.raises(WorkspaceUnusable):
        box.execute("print(1)")
    assert box.workspace.read_text() == "x"
    box.workspace.unlink()


@pytest.mark.parametrize("quota", [None, 1 << 30])
def test_a_workspace_that_vanishes_while_the_code_runs_is_the_codes_affair(make_box, quota):
    box = make_box(workspace_max_bytes=quota)
    result = box.execute(
        "print('go')\nimport time\nfor _ in range(500):\n    time.sleep(0.01)\n    open('x', 'w').close()",
        on_output=lambda *_: shutil.rmtree(box.workspace, ignore_errors=True),
    )
    assert (result.exit_code, result.stopped_by) == (1, None)
    assert "FileNotFoundError" in result.stderr


def test_the_errors_of_a_workspace_are_oserrors_too(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="cannot be used") as caught:
        create_sandbox(workspace=tmp_path / "file")
    assert isinstance(caught.value, SandboxError)
    assert caught.value.path == tmp_path / "file"


UNUSABLE = """
import os, sys
from sandbox import WorkspaceUnusable, create_sandbox
box = create_sandbox(workspace=sys.argv[1])
box.warm_up()
os.chmod(sys.argv[1], int(sys.argv[2], 8))
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    print("ran", box.execute("print(1)"))
except WorkspaceUnusable as error:
    print("refused:", error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody who may not write")
@pytest.mark.parametrize("mode", ["555", "333", "666"])
def test_a_workspace_that_may_not_be_used_is_refused(mode):
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        os.chmod(place, 0o755)
        words = [sys.executable, "-c", UNUSABLE, f"{place}/ws", mode]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert done.stdout.startswith("refused: workspace "), done.stderr[-2000:]
        assert "it must be readable and writable" in done.stdout
        assert os.listdir(f"{place}/ws") == []


READ_ONLY = """
import subprocess, sys
from sandbox import WorkspaceUnusable, create_sandbox
box = create_sandbox(workspace=sys.argv[1])
box.warm_up()
subprocess.run(["mount", "--bind", sys.argv[1], sys.argv[1]], check=True)
subprocess.run(["mount", "-o", "remount,ro,bind", sys.argv[1]], check=True)
try:
    print("ran", box.execute("print(1)"))
except WorkspaceUnusable as error:
    print("refused:", error)
"""


def test_a_read_only_workspace_is_refused(tmp_path):
    (tmp_path / "ws").mkdir()
    can = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    if can.returncode:
        pytest.skip("this system lets nobody mount, so nothing is read-only for root")
    words = ["unshare", "--mount", sys.executable, "-c", READ_ONLY, str(tmp_path / "ws")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.startswith("refused: workspace "), done.stderr[-2000:]


# ---- data


@pytest.mark.parametrize("path", ["/nonexistent/folder", __file__])
def test_data_that_is_no_folder_is_refused(make_box, path):
    box = make_box(mount_data_dir=path)
    for _ in range(2):
        with pytest.raises(PolicyValidationError, match=r"mount_data_dir.*: is no folder that can be read"):
            box.execute("print(1)")
    assert make_box().execute("import os; print(os.listdir('/tmp'))").stdout == "[]\n"


# ---- the policy


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            (name, value)
            for name in ("fuel_budget", "memory_bytes", "max_open_files")
            for value in (0, -1, 1.5, "9", True)
        ),
        *(
            (name, 0)
            for name in ("stdout_max_bytes", "stderr_max_bytes", "workspace_max_bytes", "workspace_max_files")
        ),
        ("disk_write_bytes", -5),
        ("fuel_budget", 1 << 63),
        ("timeout_seconds", 0),
        ("timeout_seconds", float("nan")),
        ("timeout_seconds", float("inf")),
        ("timeout_seconds", "soon"),
        ("memory_bytes", None),
        ("env", {"": "x"}),
        ("env", {"a=b": "x"}),
        ("env", {"a": "x\0"}),
        ("env", {"a": 5}),
        ("env", {"a": "\ud800"}),
        ("env", "text"),
        ("preload", ("not a name",)),
        ("preload", ("os; print(1)",)),
        ("preload", ("",)),
        ("guest_data_path", "data"),
        ("guest_data_path", "/app/data"),
        ("guest_data_path", "/a/../etc"),
        ("guest_data_path", "/"),
        ("guest_data_path", "/x\0y"),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_rule(field, value):
    with pytest.raises(PolicyValidationError) as caught:
        ExecutionPolicy(**{field: value})
    assert caught.value.field.split(".")[0] == field
    assert str(caught.value).startswith(f"policy field '{caught.value.field}' is {caught.value.value!r}: ")
    assert caught.value.rule


def test_an_unknown_field_is_refused_with_the_list_of_fields():
    with pytest.raises(PolicyValidationError, match="there is no such field; the fields are fuel_budget, "):
        ExecutionPolicy(fuel=1)


def test_a_policy_cannot_be_changed():
    with pytest.raises(Exception, match="frozen"):
        ExecutionPolicy().fuel_budget = 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fuel_budget = ", r"policy '.*policy\.toml': the file is not valid TOML"),
        ("fuel_budget = -1", "policy field 'fuel_budget' is -1"),
        ("nonsense = 1", "there is no such field"),
        ("[env]\nA = 1", "policy field 'env.A' is 1"),
    ],
)
def test_a_policy_file_that_is_wrong_is_refused(tmp_path, text, message):
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises(PolicyValidationError, match=message):
        load_policy(tmp_path / "policy.toml")


def test_a_policy_file_is_laid_over_the_defaults(tmp_path):
    (tmp_path / "policy.toml").write_text("fuel_budget = 5\n[env]\nA = 'b'")
    policy = load_policy(tmp_path / "policy.toml")
    assert (policy.fuel_budget, policy.env["A"], policy.env["PYTHONUTF8"]) == (5, "b", "1")
    assert policy.memory_bytes == 512 << 20
    assert load_policy(tmp_path / "missing.toml") == ExecutionPolicy()


def test_less_memory_than_the_interpreter_needs_is_refused(make_box):
    box = make_box(memory_bytes=1 << 20)
    with pytest.raises(PolicyValidationError, match="this interpreter alone needs") as caught:
        box.execute("print(1)")
    assert (caught.value.field, caught.value.value) == ("memory_bytes", 1 << 20)


def test_limits_past_what_a_machine_has_are_no_limits(make_box):
    box = make_box(
        memory_bytes=1 << 70,
        disk_write_bytes=1 << 90,
        stdout_max_bytes=1 << 90,
        max_open_files=1 << 90,
        workspace_max_bytes=1 << 90,
        timeout_seconds=1e300,
        fuel_budget=(1 << 63) - 1,
    )
    assert box.execute("open('f', 'w').write('x'); print(1)").stdout == "1\n"


def test_an_unknown_module_to_preload_is_named(tmp_path):
    policy = ExecutionPolicy(preload=("json", "no_such_module"))
    for _ in range(2):
        with create_sandbox(workspace=tmp_path, policy=policy) as box, pytest.raises(PreloadFailed) as caught:
            box.execute("print(1)")
        assert caught.value.module == "no_such_module"
        assert "cannot preload 'no_such_module': ModuleNotFoundError" in str(caught.value)


def test_a_guest_that_is_none_is_refused(tmp_path):
    for name, content in (("empty.wasm", b""), ("text.wasm", b"words"), ("cut.wasm", b"\0asm\1\0\0\0\6\x7f")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SandboxError):
            create_sandbox(workspace=tmp_path / "w", wasm_binary_path=tmp_path / name).execute("print(1)")
    with pytest.raises(FileNotFoundError):
        create_sandbox(workspace=tmp_path / "w", wasm_binary_path=tmp_path / "missing.wasm").execute(
            "print(1)"
        )
