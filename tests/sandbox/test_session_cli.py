"""The `sandbox session` command, run as a person or a script runs it."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.cli import app, run_app
from sandbox.sessions.locks import using

COMMAND = str(Path(sys.executable).with_name("sandbox"))
DEADLINE_SECONDS = 240  # the first run on a machine compiles the guest


@pytest.fixture
def session(tmp_path, monkeypatch, capfd):
    """Runs `sandbox session ...` in this process, to save the start; gives exit code, stdout and stderr."""

    def run(*words, stdin=""):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["sandbox", "session", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = run_app(app, "sandbox")
        return code, *capfd.readouterr()

    return run


@pytest.fixture
def made(session):
    return session("create")[1].strip()


def test_a_session_is_made_used_and_deleted(session, tmp_path):
    code, session_id, errors = session("create")
    session_id = session_id.strip()
    assert (code, errors) == (0, "")
    assert (tmp_path / "workspace" / session_id / ".metadata.json").is_file()
    assert session("exec", session_id, "-c", "open('n', 'w').write('7')") == (0, "", "")
    assert session("exec", session_id, "-", stdin="print(open('n').read())") == (0, "7\n", "")
    (tmp_path / "code.py").write_text("import sys; print(sys.argv[1:])")
    assert session("exec", session_id, "code.py", "--", "-x", "y") == (0, "['-x', 'y']\n", "")
    assert session("files", session_id) == (0, "n\nuser_code.py\n", "")
    assert session("delete", session_id, "--dry-run") == (0, f"would delete {session_id}\n", "")
    assert session("delete", session_id) == (0, "", "")
    assert os.listdir(tmp_path / "workspace") == []
    assert session("delete", session_id) == (0, "", "")


def test_the_guests_exit_code_is_the_commands(session, made):
    assert session("exec", made, "-c", "raise SystemExit(3)")[0] == 3
    assert session("exec", made, "-c", "1/0")[0] == 1
    code, _, errors = session("exec", made, "--timeout", "0.2", "-c", "while True: pass")
    assert (code, errors) == (124, "sandbox: stopped after 0.2 s; allow more with --timeout\n")


def test_a_result_as_json_names_its_session(session, made):
    code, output, _ = session("exec", made, "--json", "-c", "print(1)")
    assert code == 0
    assert json.loads(output)["metadata"] == {"runtime": "python", "session_id": made}


def test_executing_does_not_make_a_session_of_a_mistyped_id(session, tmp_path):
    code, output, errors = session("exec", "mistyped", "-c", "pass")
    assert (code, output) == (1, "")
    assert errors == "sandbox: there is no such session: 'workspace/mistyped'\n"
    assert not (tmp_path / "workspace").exists()


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("show", "../x"), 1, "must not contain path separators"),
        (("delete", "fine", "no/pe"), 1, "must not contain path separators"),
        (("files", "ghost"), 1, "there is no such session"),
        (("prune", "--older-than", "24"), 1, "workspace"),
        (("prune", "--older-than", "-1"), 2, "zero or more"),
        (("prune", "--max-total", "much"), 2, "is not a size"),
        (("prune", "--older-than", "soon"), 2, "--older-than"),
        (("archive", "out"), 2, "name sessions"),
        (("restore", "missing.tar.zst"), 1, "missing.tar.zst"),
        (("create", "--root", "taken"), 1, "workspace taken cannot be used: it is a file; name a folder"),
        (("list", "--root", "taken"), 1, "Not a directory: 'taken'"),
        (("prune", "--workers", "0"), 2, "see `sandbox session prune --help`"),
        (("lst",), 2, "No such command 'lst'. Did you mean 'list'? see `sandbox session --help`"),
        (("show",), 2, "Missing argument"),
        (("frobnicate",), 2, "No such command"),
    ],
)
def test_what_goes_wrong_is_one_sentence_and_an_exit_code(session, tmp_path, words, code, sentence):
    (tmp_path / "taken").write_text("")
    returned, output, errors = session(*words)
    assert (returned, output, errors.count("\n")) == (code, "", 1)
    assert sentence in errors


def test_files_go_in_and_out(session, made, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("1,2\n")
    assert session("put", made, "data", "in") == (0, "", "1 file, 4 B: in\n")
    assert session("put", made, "-", "in/b.csv", stdin="3,4\n")[0] == 0
    assert session("files", made, "*.csv", "--json") == (0, '[\n  "in/a.csv",\n  "in/b.csv"\n]\n', "")
    assert session("get", made, "in/b.csv", "-") == (0, "3,4\n", "")
    assert session("get", made, "in/a.csv")[0] == 0
    assert (tmp_path / "a.csv").read_text() == "1,2\n"
    assert session("get", made, "in", "copy")[0] == 0
    assert sorted(os.listdir(tmp_path / "copy")) == ["a.csv", "b.csv"]
    assert session("get", made, ".", "everything")[0] == 0
    assert os.listdir(tmp_path / "everything") == ["in"]
    assert session("put", made, "a.csv", "in/a.csv", "--no-overwrite")[0] == 1


def test_files_are_removed_with_a_rehearsal_on_request(session, made, tmp_path):
    session("put", made, "-", "d/a", stdin="x")
    assert session("rm", made, "-r", "d", "--dry-run") == (0, "would remove d/a\n", "")
    assert session("rm", made, "nothing", "--dry-run")[0] == 1
    assert session("files", made)[1] == "d/a\n"
    refusal = "sandbox: it is a folder; -r removes it with what is in it: 'd'\n"
    assert session("rm", made, "d") == (1, "", refusal)
    assert session("rm", made, "-r", "d") == (0, "", "")
    assert session("files", made)[1] == ""


def test_sessions_are_listed_for_people_and_for_programs(session, made, tmp_path):
    code, output, _ = session("list", "--sizes")
    assert code == 0
    assert output.splitlines()[0].split() == ["session", "state", "keeps", "last", "used", "size"]
    assert output.splitlines()[1].split()[:3] == [made, "idle", "files"]
    [entry] = json.loads(session("list", "--json")[1])
    assert (entry["session_id"], entry["state"], entry["size_bytes"]) == (made, "idle", None)
    with using(tmp_path / "workspace" / made):
        assert json.loads(session("list", "--json")[1])[0]["state"] == "in_use"


def test_a_session_that_keeps_variables_says_so(session, made):
    stateful = session("create", "--stateful")[1].strip()
    _, *rows = session("list")[1].splitlines()
    assert {row.split()[0]: row.split("  ")[2].strip() for row in rows} == {
        made: "files",
        stateful: "files, variables",
    }
    entries = json.loads(session("list", "--json")[1])
    assert {entry["session_id"]: entry["stateful"] for entry in entries} == {made: False, stateful: True}
    assert json.loads(session("show", made, "--json")[1])["stateful"] is False
    assert json.loads(session("show", stateful, "--json")[1])["stateful"] is True


def test_a_session_is_shown(session, made):
    facts = json.loads(session("show", made, "--json")[1])
    assert (facts["session_id"], facts["files"], facts["version"]) == (made, 0, 1)
    assert f"session_id   {made}" in session("show", made)[1]


def test_pruning_rehearses_deletes_and_reports(session, made, tmp_path, aged_session):
    old = aged_session(48, tmp_path / "workspace", data="x")
    code, output, _ = session("prune", "--dry-run")
    assert (code, output.splitlines()[1].split()) == (0, [old, "max_age_hours"])
    assert "Dry run: would delete 1 session" in output
    result = json.loads(session("prune", "--json")[1])
    assert (result["deleted_sessions"], result["reasons"]) == ([old], {old: "max_age_hours"})
    assert os.listdir(tmp_path / "workspace") == [made]
    assert json.loads(session("prune", "--max-sessions", "0", "--json")[1])["deleted_sessions"] == [made]


def test_a_prune_that_could_not_delete_everything_fails(session, tmp_path, aged_session):
    old = aged_session(48, tmp_path / "workspace")
    (tmp_path / "out").write_text("in the way of the archives")
    code, _, errors = session("archive", "out", "--older-than", "24")
    assert code == 1
    assert f"session {old}: " in errors
    assert os.listdir(tmp_path / "workspace") == [old]


def test_a_session_in_use_is_not_deleted(session, made, tmp_path):
    with using(tmp_path / "workspace" / made):
        code, _, errors = session("delete", made)
    assert (code, errors.count("\n")) == (1, 1)
    assert "is in use" in errors
    assert (tmp_path / "workspace" / made).is_dir()


def test_sessions_are_archived_and_brought_back(session, made, tmp_path, aged_session):
    old = aged_session(48, tmp_path / "workspace", data="x")
    line = f"{old} out/{old}.tar.zst\n"
    assert session("archive", "out", "--older-than", "24", "--dry-run") == (0, f"would archive {line}", "")
    assert session("archive", "out", "--older-than", "24") == (0, line, "")
    assert session("archive", "out", made, "--keep")[0] == 0
    assert os.listdir(tmp_path / "workspace") == [made]
    assert session("restore", f"out/{old}.tar.zst") == (0, f"{old}\n", "")
    assert session("restore", f"out/{old}.tar.zst")[0] == 1
    assert session("restore", f"out/{made}.tar.zst", "--root", "two", "--max-size", "10") == (
        1,
        "",
        f"sandbox: archive out/{made}.tar.zst is not restored: it unpacks to more than 10 bytes\n",
    )


def test_a_legacy_session_is_repaired(session, tmp_path):
    (tmp_path / "workspace" / "old").mkdir(parents=True)
    assert session("show", "old")[1].splitlines()[1].split() == ["metadata", "none"]
    assert json.loads(session("repair", "old", "--json")[1])["session_id"] == "old"
    assert session("list")[1].splitlines()[1].split()[:2] == ["old", "idle"]


def test_short_work_shows_no_bar_at_a_terminal(tmp_path, made):
    main, side = pty.openpty()
    done = subprocess.run(
        [COMMAND, "session", "put", made, "-", "x"],
        input=b"x",
        stdout=side,
        stderr=side,
        cwd=tmp_path,
        timeout=DEADLINE_SECONDS,
    )
    os.close(side)
    assert done.returncode == 0
    assert os.read(main, 4096) == b"1 file, 1 B: x\r\n"
    os.close(main)
