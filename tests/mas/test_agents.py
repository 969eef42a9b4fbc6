from __future__ import annotations

import os
import shlex
import shutil
import sys
import threading
from pathlib import Path

import pytest

from mas.errors import WorkspaceFailed
from mas.runs import Runs

PROMPT = "-first; $(touch x) `touch y` #{pane_id} Enter\n\nthird 🦀 {}\n"


def logged(site, run, needle, agent_id="11"):
    log = site.runs.log(run.session_id, agent_id)
    return log if needle in log else b""


def python(code):
    return shlex.join([sys.executable, "-c", code])


def test_a_prompt_is_delivered_exactly_as_written(site, team, program, eventually, tmp_path):
    note = tmp_path / "received"
    site.runs.create(team(program("reader", note), prompt=PROMPT))
    for agent_id in ("10", "11"):
        path = tmp_path / f"received-{agent_id}"
        eventually(lambda path=path: path.exists() and path.read_bytes().endswith(b"\r"), "the prompt")
        assert path.read_bytes() == PROMPT.encode() + b"\r"


def test_a_prompt_of_the_greatest_length_arrives(site, team, program, eventually, tmp_path):
    prompt = "🦀" * 5_000
    site.runs.create(team(program("reader", tmp_path / "received"), prompt=prompt))
    path = tmp_path / "received-11"
    eventually(lambda: path.exists() and path.read_bytes().endswith(b"\r"), "the prompt")
    assert path.read_bytes() == prompt.encode() + b"\r"


def test_an_agent_that_takes_its_time_gets_its_prompt_when_it_asks_for_input(site, team, eventually):
    busy = "import time; end = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass\n"
    run = site.runs.create(
        team(
            python(f"{busy}import termios; termios.tcflush(0, termios.TCIFLUSH); print('got', repr(input()))")
        )
    )
    eventually(lambda: logged(site, run, b"got 'You are 11.'"), "the prompt")


def test_an_agent_that_never_rests_gets_its_prompt_all_the_same(site, team, eventually):
    runs = Runs(site.configured(agent_ready_seconds=1.0))
    run = runs.create(
        team(
            python(
                "import threading, sys\nthreading.Thread(target=lambda: print('got', input()), "
                "daemon=True).start()\nwhile True: pass"
            )
        )
    )
    eventually(lambda: logged(site, run, b"got You are 11."), "the prompt")


def test_a_prompt_is_delivered_again_after_a_restore(site, team, eventually):
    run = site.runs.create(team("sh -c 'read line; echo got $line; exec cat'"))
    eventually(lambda: logged(site, run, b"got You are 11."), "the prompt")
    site.runs.stop(run.session_id)
    site.runs.restore(run.session_id)
    eventually(lambda: site.runs.log(run.session_id, "11").count(b"got You are 11.") == 2, "the prompt again")


def test_a_log_begins_with_the_first_byte(site, team, eventually):
    run = site.runs.create(team("sh -c 'printf first-byte; exec cat'", workers=5, meta=True))
    for agent_id in ("00", "10", "11", "12", "13", "14", "15"):
        printed = eventually(lambda agent_id=agent_id: logged(site, run, b"You are", agent_id), "the log")
        assert printed.startswith(b"first-byte")


def test_a_log_is_kept_when_the_run_is_stopped(site, team, eventually):
    run = site.runs.create(team("sh -c 'echo hello; exec cat'"))
    eventually(lambda: logged(site, run, b"hello"), "the log")
    site.runs.stop(run.session_id)
    assert b"hello" in (Path(run.working_dir) / "logs" / "agent-11.log").read_bytes()
    assert b"hello" in site.runs.log(run.session_id, "11")


def test_a_log_is_cut_to_its_last_lines(site, team, eventually):
    run = site.runs.create(team("sh -c 'seq 100; stty -echo; exec cat >/dev/null'"))
    eventually(lambda: logged(site, run, b"100\r\n"), "the log")
    assert site.runs.log(run.session_id, "11", tail=2) == b"99\r\n100\r\n"
    assert site.runs.log(run.session_id, "11", tail=0) == b""
    assert len(site.runs.log(run.session_id, "11", tail=1000).splitlines()) == 100


def test_a_log_is_rotated_by_size_and_loses_only_what_is_oldest(site, team, eventually):
    line = "0123456789" * 10
    code = (
        f"for number in range(120_000): print(f'{{number:06d}} {line}')\nprint('done', flush=True)\ninput()"
    )
    run = site.runs.create(team(python(code)))
    eventually(lambda: logged(site, run, b"done\r\n"), "the end of the output")
    sizes = {path.name: path.stat().st_size for path in (Path(run.working_dir) / "logs").glob("agent-11*")}
    assert set(sizes) == {"agent-11.log", "agent-11.log.1"}
    assert max(sizes.values()) < 5_200_000
    lines = site.runs.log(run.session_id, "11").split(b"done\r\n")[0].splitlines()
    numbers = [int(row[:6]) for row in lines[1:]]
    assert numbers == list(range(numbers[0], 120_000))


def test_what_is_printed_can_be_followed_across_a_rotation(site, team, eventually):
    run = site.runs.create(team("cat"))
    eventually(lambda: logged(site, run, b"You are 11.\r\nYou are 11.\r\n"), "the prompt and its echo")
    got = bytearray()
    stream = site.runs.follow(run.session_id, "11")
    collector = threading.Thread(target=lambda: [got.extend(chunk) for chunk in stream])
    assert next(stream) == b""
    collector.start()
    site.runs.send(run.session_id, "11", "one")
    eventually(lambda: got == b"one\r\none\r\n", "the live output")
    log = Path(run.working_dir) / "logs" / "agent-11.log"
    os.replace(log, log.with_name("agent-11.log.1"))
    log.write_bytes(b"two")
    eventually(lambda: got == b"one\r\none\r\ntwo", "the new generation")
    site.runs.stop(run.session_id)
    collector.join(30)
    assert not collector.is_alive()


def test_a_link_in_place_of_a_log_is_not_followed(site, team, eventually, tmp_path):
    (tmp_path / "secret").write_text("secret")
    run = site.runs.create(team("cat"))
    eventually(lambda: logged(site, run, b"You are 11."), "the prompt")
    log = Path(run.working_dir) / "logs" / "agent-11.log"
    log.unlink()
    log.symlink_to(tmp_path / "secret")
    assert site.runs.log(run.session_id, "11") == b""
    site.runs.restart_agent(run.session_id, "11")
    eventually(lambda: site.runs.show(run.session_id).agents[1].state == "running", "the agent")
    site.runs.send(run.session_id, "11", "x")
    assert (tmp_path / "secret").read_text() == "secret"


def test_of_a_log_that_was_blown_up_only_the_end_is_read(site, team, eventually):
    run = site.runs.create(team(python("print('hello')")))
    eventually(lambda: logged(site, run, b"hello"), "the output")
    log = Path(run.working_dir) / "logs" / "agent-11.log"
    os.truncate(log, 2**42)
    with log.open("ab") as file:
        file.write(b"\nthe end\n")
    assert site.runs.log(run.session_id, "11", tail=1) == b"the end\n"
    assert len(site.runs.log(run.session_id, "11")) <= 10_000_000


def test_a_folder_of_logs_that_was_replaced_by_a_link_is_not_followed(site, team, tmp_path):
    run = site.runs.create(team("cat"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "agent-11.log").write_text("secret")
    site.runs.stop(run.session_id)
    logs = Path(run.working_dir) / "logs"
    logs.rename(logs.with_name("moved"))
    logs.symlink_to(tmp_path / "elsewhere")
    assert site.runs.log(run.session_id, "11") == b""


@pytest.mark.parametrize("name", ["json.py", "mas.py", "sitecustomize.py", "codecs.py"])
def test_files_in_an_agents_folder_do_not_become_part_of_the_built_in_agent(site, team, eventually, name):
    runs = Runs(site.configured(agent_command=None))
    (site.root / "unit" / "11").mkdir(parents=True)
    (site.root / "unit" / "10").mkdir()
    (site.root / "unit" / "11" / name).write_text("open('/proc/self/cwd/owned', 'w').close()")
    run = runs.create(team())
    eventually(lambda: logged(site, run, b"You are 11."), "the built-in agent")
    assert not (Path(run.unit_dir) / "11" / "owned").exists()


def test_an_agent_is_not_led_out_of_its_run_by_a_link(site, team, eventually, tmp_path):
    run = site.runs.create(team("sh -c 'pwd; exec cat'"))
    eventually(lambda: logged(site, run, b"You are 11."), "the agent")
    site.runs.stop(run.session_id)
    (tmp_path / "elsewhere").mkdir()
    folder = Path(run.unit_dir) / "11"
    folder.rename(folder.with_name("moved"))
    folder.symlink_to(tmp_path / "elsewhere")
    site.runs.restore(run.session_id)
    eventually(lambda: site.runs.show(run.session_id).agents[1].exit_code == 127, "the refusal")
    assert b"cannot start sh" in site.runs.log(run.session_id, "11", tail=4)


def test_a_run_is_not_restored_behind_a_link(site, team, tmp_path):
    run = site.runs.create(team())
    site.runs.stop(run.session_id)
    (tmp_path / "elsewhere").mkdir()
    Path(run.unit_dir).rename(tmp_path / "moved")
    Path(run.unit_dir).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WorkspaceFailed):
        site.runs.restore(run.session_id)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_folders_that_were_removed_are_there_again_after_a_restore(site, team, eventually):
    run = site.runs.create(team())
    site.runs.stop(run.session_id)
    for name in ("unit", "logs"):
        shutil.rmtree(Path(run.working_dir) / name)
    site.runs.restore(run.session_id)
    eventually(lambda: logged(site, run, b"You are 11."), "the agent")
