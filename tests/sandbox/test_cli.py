"""The `sandbox` command, run as a person runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sandbox import ExecutionPolicy, SandboxResult

COMMAND = str(Path(sys.executable).with_name("sandbox"))
DEADLINE_SECONDS = 240  # the first run on a machine compiles the guest


@pytest.fixture
def sandbox(tmp_path):
    def run(*words, stdin=b"", **environment):
        return subprocess.run(
            [COMMAND, *map(str, words)],
            input=stdin,
            capture_output=True,
            cwd=tmp_path,
            env={**os.environ, **environment},
            timeout=DEADLINE_SECONDS,
        )

    return run


def start(tmp_path, *words, **options):
    return subprocess.Popen(
        [COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, **options
    )


def sentence(done):
    """The one line on stderr."""
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_code_on_the_command_line_runs(sandbox):
    done = sandbox("run", "-c", "print(6 * 7)")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"42\n", b"")


def test_a_file_runs_with_the_arguments_after_the_dashes(sandbox, tmp_path):
    (tmp_path / "code.py").write_text("import sys; print(sys.argv[1:])")
    done = sandbox("run", "code.py", "--", "-x", "--json", "a b")
    assert done.stdout == b"['-x', '--json', 'a b']\n"


def test_arguments_go_to_code_on_the_command_line_too(sandbox):
    assert sandbox("run", "-c", "import sys; print(sys.argv[1:])", "--", "--a").stdout == b"['--a']\n"


def test_a_dash_reads_the_code_from_stdin(sandbox):
    done = sandbox("run", "-", "--", "a", stdin=b"import sys; print(sys.argv[1], repr(sys.stdin.read()))")
    assert done.stdout == b"a ''\n"


def test_stdin_reaches_the_code(sandbox):
    assert sandbox("run", "-c", "print(input()[::-1])", stdin=b"abc\n").stdout == b"cba\n"


def test_a_file_is_read_in_the_encoding_that_it_declares(sandbox, tmp_path):
    (tmp_path / "code.py").write_bytes("# coding: latin-1\nprint('\xe9')".encode("latin-1"))
    assert sandbox("run", "code.py").stdout.decode() == "é\n"


def test_the_exit_code_is_the_guests(sandbox):
    assert sandbox("run", "-c", "import sys; sys.exit(7)").returncode == 7


def test_an_uncaught_exception_is_the_guests_traceback_and_exit_code_1(sandbox):
    done = sandbox("run", "-c", "1/0")
    assert done.returncode == 1
    assert done.stderr.decode().endswith("ZeroDivisionError: division by zero\n")


def test_files_land_in_the_workspace(sandbox, tmp_path):
    sandbox("run", "-c", "open('out.txt', 'w').write('x')", "--workspace", "here")
    assert (tmp_path / "here" / "out.txt").read_text() == "x"


def test_a_data_folder_can_be_read_and_not_written(sandbox, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("hello")
    code = "print(open('/data/a.txt').read())\ntry: open('/data/b', 'w')\nexcept OSError: print('refused')"
    assert sandbox("run", "-c", code, "--data", "in").stdout == b"hello\nrefused\n"
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["a.txt"]


def test_json_is_the_whole_result(sandbox):
    done = sandbox("run", "-c", "print(1); open('a', 'w').write('x')", "--json")
    result = SandboxResult.model_validate_json(done.stdout)
    assert (result.success, result.stdout, result.files_created) == (True, "1\n", ["a"])
    assert done.stderr == b""


def test_preloaded_modules_are_there(sandbox):
    code = "import sys; print('json' in sys.modules, 'csv' in sys.modules)"
    assert sandbox("run", "-c", code, "--preload", "json,csv").stdout == b"True True\n"


def test_a_preload_that_the_guest_lacks_is_one_sentence(sandbox):
    done = sandbox("run", "-c", "1", "--preload", "nowhere")
    assert done.returncode == 1
    assert "cannot preload 'nowhere'" in sentence(done)


TIMED_OUT = (124, "sandbox: stopped after 0.5 s; allow more with --timeout")
OUT_OF_FUEL = (137, "sandbox: stopped after 50000000 instructions; allow more with --fuel")
OUT_OF_MEMORY = (137, "sandbox: stopped at 67108864 bytes of memory; allow more with --memory")
STOPS = {
    ("while True: pass", "--timeout", "0.5"): TIMED_OUT,
    ("import time; time.sleep(99)", "--timeout", "0.5"): TIMED_OUT,
    ("while True: pass", "--fuel", "5e7"): OUT_OF_FUEL,
    ("x = bytearray(10**9)", "--memory", "64M"): OUT_OF_MEMORY,
}


@pytest.mark.parametrize(("given", "expected"), STOPS.items(), ids=lambda value: str(value[0]))
def test_a_limit_has_its_exit_code_and_a_note(sandbox, given, expected):
    code, *limit = given
    done = sandbox("run", "-c", code, *limit)
    assert (done.returncode, done.stderr.decode().splitlines()[-1]) == expected
    assert b"event=" not in done.stderr


def test_output_past_the_limit_is_dropped_with_a_note(sandbox, tmp_path):
    (tmp_path / "policy.toml").write_text("stdout_max_bytes = 1000")
    done = sandbox("run", "-c", "print('x' * 5000)", "--policy", "policy.toml")
    assert sentence(done) == "sandbox: stdout past 1000 bytes was dropped"


def test_output_arrives_while_the_code_runs(tmp_path):
    code = "import time\nprint('first', flush=True)\ntime.sleep(60)"
    process = start(tmp_path, "run", "-c", code)
    try:
        assert process.stdout.readline() == b"first\n"
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(60)", "input()"])
def test_a_signal_stops_the_guest(tmp_path, code, number):
    process = start(tmp_path, "run", "-c", f"print('on', flush=True)\n{code}", stdin=subprocess.PIPE)
    with process:
        assert process.stdout.readline() == b"on\n"
        process.send_signal(number)
        assert process.wait(timeout=30) == 128 + number  # its stdin stays open until it has ended
        assert process.communicate() == (b"", b"sandbox: stopped on request\n")


def test_a_reader_that_goes_away_stops_the_guest(tmp_path):
    process = start(tmp_path, "run", "-c", "while True: print('x' * 1000, flush=True)")
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(timeout=30) == 130
    assert process.stderr.read() == b"sandbox: stopped on request\n"
    process.stderr.close()


def test_closed_streams_are_no_obstacle(tmp_path):
    code = "import sys; print(1); print(2, file=sys.stderr); print(repr(sys.stdin.read())); sys.exit(5)"
    command = f"'{COMMAND}' run -c '{code}' <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], cwd=tmp_path, timeout=DEADLINE_SECONDS).returncode == 5


def in_shell(command, tmp_path, **environment):
    return subprocess.run(
        ["sh", "-c", command.format(sandbox=f"'{COMMAND}'")],
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, **environment},
        timeout=DEADLINE_SECONDS,
    )


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("{sandbox} run - <&-", "cannot read -: stdin is closed; see `sandbox run --help`"),
        (
            "{sandbox} repl <&-",
            "stdin is closed, so there are no statements to read; see `sandbox repl --help`",
        ),
    ],
)
def test_code_that_should_come_from_a_closed_stdin_is_one_sentence(tmp_path, command, said):
    done = in_shell(command, tmp_path)
    assert (done.returncode, sentence(done)) == (2, f"sandbox: {said}")
    assert os.listdir(tmp_path) == []


def test_output_that_cannot_be_written_is_a_failure(tmp_path):
    done = in_shell("{sandbox} run -c 'print(1)' >/dev/full", tmp_path)
    assert (done.returncode, sentence(done)) == (1, "sandbox: No space left on device")


@pytest.mark.parametrize("command", ["run -c 'print(\"é\")'", "repl"])
def test_code_is_utf_8_where_the_locale_knows_no_letters(tmp_path, command):
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = in_shell(f"echo 'print(\"é\")' | {{sandbox}} {command}", tmp_path, **ascii_only)
    assert (done.returncode, done.stdout.decode()) == (0, "é\n")


WRONG_USAGE = {
    ("run",): "name a FILE, or give the code with -c CODE, or - to read it from stdin",
    ("run", "missing.py"): "cannot read missing.py: No such file or directory",
    ("run", "."): "cannot read .: Is a directory",
    ("run", "-c", "1", "--memory", "much"): "'much' is not a size, such as 256M or 1G",
    ("run", "-c", "1", "--fuel", "a lot"): "'a lot' is not a whole number such as 5e6, or none",
    ("run", "-c", "1", "--timeout", "soon"): "'soon' is not a number of seconds, or none",
    (
        "run",
        "-c",
        "1",
        "--timeout",
        "0",
    ): "policy field 'timeout_seconds' is 0.0: Input should be greater than 0",
    ("run", "-c", "1", "--data", "nowhere"): "nowhere is not a folder",
    ("run", "-c", "1", "--policy", "nowhere"): "there is no policy file nowhere",
    ("policy", "show", "--policy", "nowhere"): "there is no policy file nowhere",
    ("dance",): "No such command 'dance'",
    ("run", "--zzz"): "No such option: --zzz",
}


@pytest.mark.parametrize(("words", "said"), WRONG_USAGE.items(), ids=map(" ".join, WRONG_USAGE))
def test_wrong_usage_is_one_sentence_and_exit_code_2(sandbox, words, said):
    done = sandbox(*words)
    assert (done.returncode, done.stdout) == (2, b"")
    command = " ".join(["sandbox", *(word for word in words if word in {"run", "policy", "show"})])
    assert sentence(done) == f"sandbox: {said}; see `{command} --help`"


def test_a_source_that_is_not_text_is_one_sentence(sandbox, tmp_path):
    (tmp_path / "code.py").write_bytes(b"\xff\xfe")
    done = sandbox("run", "code.py")
    assert done.returncode == 2
    assert sentence(done).startswith("sandbox: cannot read code.py as Python source:")


def test_a_policy_with_a_wrong_field_is_one_sentence(sandbox, tmp_path):
    (tmp_path / "policy.toml").write_text("fuel = 3")
    done = sandbox("run", "-c", "1", "--policy", "policy.toml")
    assert done.returncode == 2
    assert sentence(done).startswith(
        "sandbox: policy field 'fuel' is 3: there is no such field; the fields are"
    )


def test_a_workspace_that_is_a_file_is_one_sentence(sandbox, tmp_path):
    (tmp_path / "taken").write_text("")
    done = sandbox("run", "-c", "1", "--workspace", "taken")
    assert (done.returncode, done.stdout) == (1, b"")
    assert sentence(done).startswith("sandbox: workspace taken cannot be used: it is a file")


def test_a_missing_guest_is_one_sentence(sandbox, tmp_path):
    done = sandbox("run", "-c", "1", SANDBOX_GUEST=str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert sentence(done) == (
        f"sandbox: there is no guest at {tmp_path / 'nowhere'}; correct SANDBOX_GUEST, or unset it"
    )


def test_an_unusable_cache_is_one_note_and_no_obstacle(sandbox, tmp_path):
    (tmp_path / "cache").write_text("")
    guest = str(tmp_path / "nowhere")
    done = sandbox("run", "-c", "1", SANDBOX_CACHE=str(tmp_path / "cache"), SANDBOX_GUEST=guest)
    first, second = done.stderr.decode().splitlines()
    assert first.startswith(f"sandbox: cache.unusable {tmp_path / 'cache'}: ")
    assert second.startswith(f"sandbox: there is no guest at {guest}")


def test_the_policy_that_is_shown_can_be_given_back(sandbox, tmp_path):
    (tmp_path / "policy.toml").write_text("memory_bytes = 1000000\n[env]\nNAME = 'x \"y\"'\n")
    shown = sandbox("policy", "show", "--policy", "policy.toml").stdout.decode()
    assert ExecutionPolicy(**tomllib.loads(shown)) == ExecutionPolicy(
        memory_bytes=1_000_000, env={"NAME": 'x "y"'}
    )


def test_the_policy_can_be_shown_as_json(sandbox):
    shown = json.loads(sandbox("policy", "show", "--json").stdout)
    assert ExecutionPolicy(**shown) == ExecutionPolicy()


def test_warmup_says_that_everything_is_ready(sandbox):
    done = sandbox("warmup", "--preload", "json")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().startswith("metered, with json: ready, starts in ")


def test_doctor_shows_everything_it_looked_at(sandbox):
    done = sandbox("doctor", "--json")
    findings = json.loads(done.stdout)
    assert list(findings) == ["Python", "wasmtime", "guest", "cache", "images", "kernel", "tmux"]
    assert findings["kernel"]["memfd_create"] in (True, False)
    table = sandbox("doctor", COLUMNS="120").stdout.decode()
    assert all(name in table for name in findings)
    assert done.returncode == 0


def test_doctor_names_the_guests_packages_and_the_images(sandbox):
    sandbox("warmup", "--preload", "json")
    findings = json.loads(sandbox("doctor", "--json").stdout)
    assert findings["guest"]["version"].startswith("3.")
    assert "pandas" in findings["guest"]["packages"]
    assert findings["images"]


def test_doctor_fetches_nothing(sandbox, tmp_path):
    done = sandbox("doctor", "--json", SANDBOX_CACHE=str(tmp_path / "empty"), SANDBOX_GUEST="")
    assert json.loads(done.stdout)["guest"] == {"version": None}
    assert list((tmp_path / "empty").iterdir()) == []


def test_version_and_help_are_printed(sandbox):
    assert sandbox("--version").stdout.startswith(b"sandbox ")
    assert b"Exit codes" in sandbox("run", "--help").stdout
