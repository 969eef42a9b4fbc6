from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mas import supervisor


def python(code, *words):
    return shlex.join([sys.executable, "-u", "-c", code, *map(str, words)])


def logged(site, run, needle, agent_id="11"):
    log = site.runs.log(run.session_id, agent_id)
    return log if needle in log else b""


def pane_of(site, run, agent_id="11"):
    return next(agent.pane for agent in site.runs.show(run.session_id).agents if agent.agent_id == agent_id)


def test_keys_reach_the_agent_and_control_keys_act_on_it(site, team, eventually):
    run = site.runs.create(
        team("sh -c 'trap \"echo interrupted\" INT; echo up; while :; do sleep 0.1; done'")
    )
    eventually(lambda: logged(site, run, b"up"), "the agent")
    site.tmux("send-keys", "-t", pane_of(site, run), "C-c")
    eventually(lambda: logged(site, run, b"interrupted"), "the interrupt")


def test_the_agent_knows_the_size_of_its_pane(site, team, eventually):
    code = (
        "import os, signal, time; show = lambda *_: print('size', *os.get_terminal_size())\n"
        "signal.signal(signal.SIGWINCH, show); time.sleep(0.5); show()\nwhile True: time.sleep(1)"
    )
    run = site.runs.create(team(python(code)))
    pane = pane_of(site, run)
    (size,) = site.tmux("display-message", "-p", "-t", pane, "#{pane_width} #{pane_height}")
    eventually(lambda: logged(site, run, f"size {size}".encode()), "the size")
    site.tmux("resize-window", "-t", pane, "-x", "100", "-y", "40")
    (size,) = site.tmux("display-message", "-p", "-t", pane, "#{pane_width} #{pane_height}")
    eventually(lambda: logged(site, run, f"size {size}".encode()), "the new size")


def test_the_pane_shows_what_the_agent_prints(site, team, eventually):
    run = site.runs.create(team("sh -c 'echo hello from $MAS_AGENT_ID; exit 4'"))
    eventually(
        lambda: (
            site.tmux("capture-pane", "-p", "-t", pane_of(site, run))[:3]
            == ["hello from 11", "", "[agent 11 exited with code 4]"]
        ),
        "the pane",
    )


def test_an_agent_has_a_terminal_and_is_the_leader_of_its_session(site, team, eventually):
    facts = "sys.stdin.isatty(), os.getsid(0) == os.getpid(), os.tcgetpgrp(0) == os.getpgrp()"
    run = site.runs.create(team(python(f"import os, sys; print({facts})\ninput()\ninput()")))
    eventually(lambda: logged(site, run, b"True True True"), "the facts")


def test_an_agent_is_started_with_the_usual_signals(site, team, eventually):
    code = (
        "import signal, time\n"
        "names = ('SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGTSTP', 'SIGWINCH')\n"
        "print({signal.getsignal(signal.Signals[name]).name for name in names})\n"
        "time.sleep(600)"
    )
    run = site.runs.create(team(python(code)))
    eventually(lambda: logged(site, run, b"{'SIG_DFL'}"), "the signals")


def test_output_of_any_speed_is_kept_whole(site, team, eventually):
    loop = "import os\nfor n in range(40_000): os.write(1, b'%06d\\n' % n)"
    run = site.runs.create(team(python(f"{loop}\nos.write(1, b'done')\ninput()\ninput()")))
    printed = eventually(lambda: logged(site, run, b"done"), "the end")
    lines = printed.split(b"done")[0].replace(b"You are 11.\r\n", b"").split()
    assert lines == [b"%06d" % number for number in range(40_000)]


def test_an_agent_that_does_not_read_blocks_nobody(site, team, eventually):
    run = site.runs.create(team("sh -c 'stty raw; echo up; exec sleep 600'"))
    eventually(lambda: logged(site, run, b"up"), "the agent")
    for _ in range(3):
        site.runs.send(run.session_id, "11", "x" * 900_000)
    site.runs.stop(run.session_id)
    assert site.processes() == []


def test_a_run_has_the_environment_of_whoever_starts_it(site, team, eventually, monkeypatch):
    first = site.runs.create(team("sh -c 'echo color=$COLOR.; exec cat'"))
    eventually(lambda: logged(site, first, b"color=."), "the first run")
    monkeypatch.setenv("COLOR", "red #{x}")
    second = site.runs.create(team("sh -c 'echo color=$COLOR.; exec cat'"))
    eventually(lambda: logged(site, second, b"color=red #{x}."), "the second run")
    site.runs.stop(second.session_id)
    monkeypatch.delenv("COLOR")
    site.runs.restore(second.session_id)
    eventually(lambda: logged(site, second, b"color=."), "the restored run")


def test_orphans_are_adopted_and_reaped(site, team, eventually, tmp_path):
    note = tmp_path / "note"
    code = (
        "import os, sys, time\n"
        "if os.fork() == 0:\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(0.3); note = open(sys.argv[1] + os.environ['MAS_AGENT_ID'], 'w')\n"
        "        note.write(str(os.getppid())); note.close(); os._exit(0)\n"
        "    os._exit(0)\n"
        "os.wait(); print('up'); time.sleep(600)"
    )
    run = site.runs.create(team(python(code, note)))
    path = Path(f"{note}11")
    adopter = int(eventually(lambda: path.exists() and path.read_text(), "the orphan"))
    (pid,) = site.tmux("display-message", "-p", "-t", pane_of(site, run), "#{pane_pid}")
    assert adopter == int(pid)
    eventually(lambda: len(supervisor.children(adopter)) == 1, "the agent alone")


def test_a_fork_bomb_of_one_generation_after_another_ends(site, team, eventually):
    generation = "while True:\n    if os.fork(): time.sleep(0.02); os._exit(0)\n    os.setsid()"
    run = site.runs.create(team(python(f"import os, time\nprint('up')\n{generation}")))
    eventually(lambda: logged(site, run, b"up"), "the agent")
    site.runs.stop(run.session_id)
    assert site.processes() == []


def test_records_say_what_the_supervisor_knows(site, team, eventually):
    run = site.runs.create(team())
    path = site.sessions / ".mas" / run.session_id / "agent-11.json"
    record = eventually(
        lambda: path.exists() and (found := json.loads(path.read_text())).get("ready") and found
    )
    agent = (record["pid"], record["start"])
    assert supervisor.start_time(agent[0]) == agent[1]
    assert record["state"] == "running"
    assert path.stat().st_mode & 0o777 == 0o600
    os.kill(agent[0], signal.SIGKILL)
    eventually(lambda: json.loads(path.read_text()).get("exitCode") == 137, "the exit code")


def test_the_supervisor_needs_nothing_but_the_standard_library(tmp_path):
    done = subprocess.run(
        [sys.executable, "-I", "-S", supervisor.__file__, str(tmp_path), "11"], capture_output=True, cwd="/"
    )
    assert b"launch-11.json" in done.stderr


@pytest.mark.parametrize(
    ("chunks", "bracketed"),
    [
        ([b"\x1b[?2004h"], True),
        ([b"\x1b[?20", b"04h"], True),
        ([b"\x1b[?2004h\x1b[?2004l"], False),
        ([b"\x1b[?2004h", b"text", b"\x1b[?2004l"], False),
        ([b"\x1b[?2004l\x1b[?2004h$ "], True),
        ([b"plain"], False),
    ],
)
def test_the_paste_mode_is_read_from_what_the_agent_prints(chunks, bracketed):
    prompt = supervisor.Prompt("text", 60)
    for chunk in chunks:
        prompt.saw(chunk)
    assert prompt.bracketed is bracketed
    assert prompt.due() == (b"\x1b[200~text\x1b[201~\r" if bracketed else b"")
    assert prompt.due() == b""


def test_a_log_that_was_removed_begins_anew(tmp_path):
    log = supervisor.Log(str(tmp_path / "agent-11.log"))
    log.write(b"before\n")
    (tmp_path / "agent-11.log").unlink()
    log.write(b"after\n")
    assert (tmp_path / "agent-11.log").read_bytes() == b"after\n"
