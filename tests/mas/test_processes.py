from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid

import pytest

from mas import processes

DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def start():
    """Processes that are ended whatever happens."""
    started = []

    def begin(code="print('up', flush=True); import time; time.sleep(600)", **options):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, **options)
        started.append(process)
        assert process.stdout.readline() == b"up\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_pid_that_was_given_to_another_process_is_left_alone(start):
    process = start()
    pid, began = processes.identify(process.pid)
    assert processes.is_alive((pid, began))
    assert not processes.is_alive((pid, began - 1))
    processes.end([(pid, began - 1)])
    processes.ask_to_stop([(pid, began - 1)])
    assert process.poll() is None


def test_a_process_that_ended_is_not_alive(start):
    process = start()
    named = processes.identify(process.pid)
    process.kill()
    process.wait()
    assert not processes.is_alive(named)


def test_a_process_is_asked_before_it_is_killed(start):
    polite, deaf = start(), start(DEAF)
    processes.end([processes.identify(polite.pid), processes.identify(deaf.pid)])
    assert (polite.wait(10), deaf.wait(10)) == (-signal.SIGTERM, -signal.SIGKILL)


def test_processes_are_found_by_the_mark_of_their_run_and_root(start, tmp_path):
    mine, other, root = str(uuid.uuid4()), str(uuid.uuid4()), {"MAS_ROOT": str(tmp_path)}
    process = start(env={"MAS_RUN_ID": mine, **root})
    start(env={"MAS_RUN_ID": other, "MAS_SESSION_ID": mine, **root})
    start(env={"X": f"MAS_RUN_ID={mine}", **root})
    start(env={"MAS_RUN_ID": mine, "MAS_ROOT": str(tmp_path / "copy")})
    assert processes.marked(tmp_path)[mine] == [processes.identify(process.pid)]


def test_this_process_and_those_above_it_are_spared(start):
    line = [processes.identify(os.getpid()), processes.identify(os.getppid())]
    processes.end(line)
    assert all(processes.is_alive(process) for process in line)


def test_a_supervisor_that_hangs_is_ended_with_all_below_it(site, team, eventually, monkeypatch):
    monkeypatch.setattr(processes, "STOP_SECONDS", 0.2)
    run = site.runs.create(team())
    eventually(
        lambda: {agent.state for agent in site.runs.show(run.session_id).agents} == {"running"}, "both agents"
    )
    for pid in site.tmux("list-panes", "-a", "-F", "#{pane_pid}"):
        os.kill(int(pid), signal.SIGSTOP)
    site.runs.stop(run.session_id)
    assert site.processes() == []


def test_a_run_can_be_stopped_from_inside(site, team, eventually):
    command = f"sh -c 'read line; {sys.executable} -m mas stop $MAS_SESSION_ID; sleep 600'"
    run = site.runs.create(team(command, prompt="go"))
    eventually(lambda: site.tmux_sessions() == [], "the end of the tmux session")
    eventually(lambda: site.runs.list().sessions[0].status == "stopped", "the recorded stop")
    eventually(lambda: site.processes() == [], "the end of every process")
    eventually(lambda: not list((site.sessions / ".mas" / run.session_id).glob("*ing")), "no unfinished stop")
