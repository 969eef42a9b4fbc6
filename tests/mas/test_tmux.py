from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest

from mas.errors import TmuxFailed
from mas.tmux import PaneStart, SessionExists, Tmux

SLEEP = ("sleep", "600")


@pytest.fixture
def server(site):
    return Tmux(site.socket)


def one_pane(tmp_path, *argv):
    return [("main", [PaneStart("10", tmp_path, argv or SLEEP)])]


def test_without_a_server_there_are_no_sessions(server):
    assert server.sessions() == []


def test_a_session_carries_whose_it_is(server, tmp_path):
    server.start("mas-a", "root:id", one_pane(tmp_path), {})
    (session,) = server.sessions()
    assert (session.name, session.run, session.whole) == ("mas-a", "root:id", True)
    (pane,) = server.panes(session)
    assert (pane.agent_id, pane.dead, pane.window) == ("10", False, "main")


def test_a_name_that_is_taken_is_told(server, tmp_path):
    server.start("mas-a", "root:1", one_pane(tmp_path), {})
    with pytest.raises(SessionExists):
        server.start("mas-a", "root:2", one_pane(tmp_path), {})
    assert [session.run for session in server.sessions()] == ["root:1"]


def test_a_session_whose_making_was_cut_short_is_not_whole(server, site, tmp_path):
    site.tmux("new-session", "-d", "-s", "mas-a", *SLEEP)
    assert [session.whole for session in server.sessions()] == [False]


def test_names_are_matched_exactly(server, tmp_path):
    server.start("mas-abcd", "root:1", one_pane(tmp_path), {})
    server.start("mas-abc", "root:2", one_pane(tmp_path), {})
    server.kill(next(session for session in server.sessions() if session.name == "mas-abc"))
    assert [session.name for session in server.sessions()] == ["mas-abcd"]


def test_killing_what_is_gone_is_no_error(server, tmp_path):
    server.start("mas-a", "root:1", one_pane(tmp_path), {})
    (session,) = server.sessions()
    server.kill(session)
    server.kill(session)
    assert server.panes(session) == []


def test_words_of_a_program_reach_it_as_they_are(server, tmp_path, eventually):
    words = [
        "-x",
        ";",
        "a;",
        "$(touch owned)",
        "#{pane_id}",
        "#(touch owned)",
        "it's",
        "",
        "🦀",
        "\\;",
        "{}",
        "~",
    ]
    note = tmp_path / "words"
    code = "import sys, json, time; json.dump(sys.argv[2:], open(sys.argv[1], 'w')); time.sleep(600)"
    server.start("mas-a", "r:1", one_pane(tmp_path, sys.executable, "-c", code, str(note), *words), {})
    eventually(lambda: note.exists() and note.read_text().endswith("]"), "the words")
    assert json.loads(note.read_text()) == words
    assert not (tmp_path / "owned").exists()


def test_the_environment_of_a_session_is_given_to_every_pane(server, tmp_path, eventually):
    note = tmp_path / "note"
    program = ("sh", "-c", f'echo "$MAS_X" >> {note}; exec sleep 600')
    windows = [("a", [PaneStart("10", tmp_path, program)] * 2), ("b", [PaneStart("20", tmp_path, program)])]
    server.start("mas-a", "r:1", windows, {"MAS_X": "a b;"})
    eventually(lambda: note.exists() and note.read_text() == "a b;\n" * 3, "three panes")


def test_nobodys_own_configuration_is_read(server, tmp_path, monkeypatch):
    (tmp_path / ".tmux.conf").write_text("set -g base-index 7\nset -g @mine yes\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    server.start("mas-a", "r:1", one_pane(tmp_path), {})
    done = subprocess.run(["tmux", "-L", server.socket, "show-options", "-gqv", "@mine"], capture_output=True)
    assert done.stdout == b""


def test_the_server_does_not_keep_the_variables_of_whoever_started_it(server, site, tmp_path, monkeypatch):
    monkeypatch.setenv("MAS_SESSION_ID", "mine")
    monkeypatch.setenv("MAS_API_TOKEN", "secret")
    server.start("mas-a", "r:1", one_pane(tmp_path), {})
    kept = [line for line in site.tmux("show-environment", "-g") if line.startswith("MAS_")]
    assert kept == []


def test_sessions_can_be_made_while_the_last_one_ends(server, tmp_path):
    """The server leaves with its last session, just when another is asked for."""
    for number in range(25):
        server.start(f"mas-{number}", "r:1", one_pane(tmp_path), {})
        (session,) = server.sessions()
        ending = threading.Thread(target=server.kill, args=(session,))
        ending.start()
        server.start(f"mas-next-{number}", "r:2", one_pane(tmp_path), {})
        ending.join()
        for left in server.sessions():
            server.kill(left)


def test_a_command_that_tmux_refuses_is_told_with_its_reason(server, tmp_path):
    server.start("mas-a", "r:1", one_pane(tmp_path), {})
    (session,) = server.sessions()
    (pane,) = server.panes(session)
    server.kill(session)
    with pytest.raises(TmuxFailed):
        server.respawn(pane, PaneStart("10", tmp_path, SLEEP))


def test_a_dead_pane_takes_no_text_and_the_server_lives(server, tmp_path, eventually):
    server.start("mas-a", "r:1", one_pane(tmp_path, "true", "--"), {})
    (session,) = server.sessions()
    eventually(lambda: server.panes(session)[0].dead, "the end of the program")
    server.paste(server.panes(session)[0], b"text", submit=True)
    assert server.sessions() == [session]


def test_a_program_can_be_run_outside_of_every_pane(server, tmp_path, eventually):
    server.start("mas-a", "r:1", one_pane(tmp_path), {})
    note = tmp_path / "it's #{pane_id} $(x)"
    code = "import os, sys; open(sys.argv[1], 'w').write(os.environ['X'])"
    server.run_outside([sys.executable, "-c", code, str(note)], {"X": "a b"})
    eventually(lambda: note.exists() and note.read_text() == "a b", "the program")


def test_six_panes_fit_into_a_window(server, tmp_path):
    server.start("mas-a", "r:1", [("w", [PaneStart(f"1{n}", tmp_path, SLEEP) for n in range(6)])], {})
    (session,) = server.sessions()
    assert [pane.agent_id for pane in server.panes(session)] == ["10", "11", "12", "13", "14", "15"]


def test_a_server_that_somebody_configured_otherwise_will_do(server, site, tmp_path):
    (tmp_path / "own.conf").write_text("set -g base-index 3\nset -gw pane-base-index 5\n")
    site.tmux("-f", str(tmp_path / "own.conf"), "new-session", "-d", "-s", "mine", *SLEEP)
    windows = [(name, [PaneStart(f"{name}{n}", tmp_path, SLEEP) for n in range(2)]) for name in ("1", "2")]
    server.start("mas-a", "r:1", windows, {})
    session = next(session for session in server.sessions() if session.name == "mas-a")
    assert [(pane.window, pane.agent_id) for pane in server.panes(session)] == [
        ("1", "10"),
        ("1", "11"),
        ("2", "20"),
        ("2", "21"),
    ]
