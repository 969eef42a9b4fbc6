"""Forks and checkpoints on the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from sandbox.sessions import create_session_sandbox, get_session_sandbox, read_session_metadata


@pytest.fixture
def session(tmp_path):
    """A stateful session with a variable and a file, and a way to ask and to command."""
    session_id, box = create_session_sandbox(workspace_root=tmp_path, stateful=True)
    box.execute("x = 1\nopen('f.txt', 'w').write('one')")
    box.close()
    return session_id


@pytest.fixture
def command(tmp_path):
    def run(*words):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                "from sandbox.cli import main; main()",
                "session",
                *words,
                "--root",
                tmp_path,
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture
def value(tmp_path):
    def ask(session_id, code):
        with get_session_sandbox(session_id, workspace_root=tmp_path) as box:
            return box.execute(code).value

    return ask


def test_a_session_is_made_stateful(command, tmp_path):
    code, output, _ = command("create", "--stateful")
    assert code == 0
    assert read_session_metadata(output.strip(), tmp_path).stateful is True


def test_forks_are_made_and_named(command, session, value):
    code, output, errors = command("fork", session, "-n", "2")
    assert (code, errors, len(output.splitlines())) == (0, "", 2)
    assert [value(new, "x") for new in output.splitlines()] == ["1", "1"]
    _, output, _ = command("fork", session, "--json")
    (new,) = json.loads(output)
    assert value(new, "open('f.txt').read()") == "'one'"


def test_a_session_goes_back_to_a_checkpoint(command, session, value):
    assert command("checkpoint", session, "first") == (0, "first: interpreter and files\n", "")
    assert value(session, "x = 2\nopen('f.txt', 'w').write('two')\nx") == "2"
    assert command("rollback", session, "first") == (0, f"{session} is as it was at first\n", "")
    assert value(session, "x, open('f.txt').read()") == "(1, 'one')"


def test_the_interpreter_alone_goes_back(command, session, value):
    assert command("checkpoint", session, "light", "--no-files") == (0, "light: interpreter\n", "")
    value(session, "x = 2\nopen('f.txt', 'w').write('two')")
    code, output, _ = command("rollback", session, "light", "--no-files", "--json")
    assert (code, json.loads(output)) == (0, {"session_id": session, "checkpoint": "light"})
    assert value(session, "x, open('f.txt').read()") == "(1, 'two')"


def test_checkpoints_are_listed(command, session):
    command("checkpoint", session, "one")
    command("checkpoint", session, "two", "--no-files", "--json")
    _, output, _ = command("checkpoints", session, "--json")
    held = [(one["name"], one["has_interpreter"], one["has_files"]) for one in json.loads(output)]
    assert held == [("one", True, True), ("two", True, False)]
    code, output, _ = command("checkpoints", session)
    assert (code, [line.split()[0] for line in output.splitlines()]) == (0, ["checkpoint", "one", "two"])


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["fork", "missing"], 1, "there is no such session"),
        (["checkpoint", "missing", "a"], 1, "there is no such session"),
        (["rollback", "{session}", "nothing"], 1, "has no checkpoint 'nothing'"),
        (["checkpoint", "{session}", "../up"], 1, "invalid checkpoint name '../up'"),
        (["fork", "{session}", "-n", "0"], 2, "greater than or equal to 1"),
        (["rollback", "{session}"], 2, "Missing argument 'NAME'"),
        (["checkpoints", "../up"], 1, "invalid session id"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(command, session, words, code, reason):
    returned, output, errors = command(*(word.format(session=session) for word in words))
    assert (returned, output, len(errors.splitlines())) == (code, "", 1)
    assert reason in errors
