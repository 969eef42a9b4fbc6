"""Creation is all or nothing: whatever fails, and wherever, nothing is left."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from mas.config import default_team
from mas.errors import LegacyRunning, TemplateUnusable, TmuxFailed, TmuxMissing, WorkspaceFailed
from mas.runs import Runs


def everything(site):
    """What there is of runs: folders, state, entries, tmux sessions, processes."""
    listed = [entry.session_id for entry in site.runs.list().sessions] if site.sessions.is_dir() else []
    hidden = [path.name for path in site.sessions.glob(".tmp-*")] if site.sessions.is_dir() else []
    legacy = [path.name for path in (site.sessions / ".legacy").glob("*")]
    folders = site.folders() if site.sessions.is_dir() else []
    return folders, hidden, legacy, site.state_folders(), listed, site.tmux_sessions(), site.processes()


NOTHING = ([], [], [], [], [], [], [])


def break_tmux(tmp_path, monkeypatch, script):
    """Put another tmux first in PATH; `$REAL` is the real one."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "tmux").write_text(f"#!/bin/bash\nREAL={shutil.which('tmux')}\n{script}\n")
    (folder / "tmux").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


@pytest.fixture(params=["isolated", "legacy"])
def mode(request):
    return request.param


def test_without_tmux_nothing_is_touched(site, team, mode, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(TmuxMissing) as refused:
        site.runs.create(team(mode=mode))
    assert str(refused.value) == (
        "tmux is not installed; install tmux 3.2 or newer (Debian and Ubuntu: apt install tmux)"
    )
    assert list(site.root.iterdir()) == []


@pytest.mark.parametrize("version", ["tmux 3.1c", "tmux 2.9", "nonsense", ""])
def test_a_tmux_that_is_too_old_is_refused(site, team, tmp_path, monkeypatch, version):
    break_tmux(tmp_path, monkeypatch, f"echo '{version}'")
    with pytest.raises(TmuxMissing, match=r"install tmux 3\.2 or newer"):
        site.runs.create(team())
    assert list(site.root.iterdir()) == []


def test_a_server_that_cannot_start_leaves_nothing(site, team, mode, tmp_path, monkeypatch):
    answers = '[ "$1" = -V ] || [[ "$*" = *list-sessions* ]]'
    break_tmux(tmp_path, monkeypatch, f'{answers} && exec $REAL "$@"; echo broken >&2; exit 1')
    with pytest.raises(TmuxFailed) as refused:
        site.runs.create(team(mode=mode))
    assert (refused.value.command, refused.value.reason) == ("new-session", "broken")
    assert everything(site) == NOTHING
    assert not (site.root / "unit").exists()
    assert not (site.root / "workflows").exists()


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_tmux_that_fails_half_way_leaves_nothing(make_site, tmp_path, monkeypatch, calls):
    # A long root makes the commands too big for one call, so that some panes exist when a later call fails.
    site = make_site("/".join(["r" * 200]))
    deep = site.root
    for number in range(12):
        deep = deep / (f"{number:02d}" * 60)
    deep.mkdir(parents=True)
    settings = site.configured(root=deep)
    counter = tmp_path / "count"
    script = (
        '[ "$1" = -V ] && exec $REAL -V\n'
        'if [[ "$*" = *new-session* || "$*" = *split-window* || "$*" = *new-window* ]]; then\n'
        f"  echo x >> {counter}\n"
        f"  [ $(wc -l < {counter}) -gt {calls} ] && {{ echo broken >&2; exit 1; }}\n"
        "fi\n"
        'exec $REAL "$@"'
    )
    break_tmux(tmp_path, monkeypatch, script)
    with pytest.raises(TmuxFailed, match="broken"):
        Runs(settings).create(default_team())
    assert len(counter.read_text().split()) == calls + 1
    assert site.tmux_sessions() == []
    assert Runs(settings).list().sessions == ()
    assert sorted(path.name for path in (deep / "sessions").iterdir()) == [
        ".mas",
        ".sessions.index",
        ".sessions.index.lock",
    ]
    assert list((deep / "sessions" / ".mas").glob("*-*")) == []


def test_templates_that_cannot_be_copied_leave_nothing(site, team):
    (site.root / "unit" / "10").mkdir(parents=True)
    os.mkfifo(site.root / "unit" / "10" / "pipe")
    with pytest.raises(TemplateUnusable):
        site.runs.create(team())
    assert everything(site) == NOTHING


def test_a_root_that_cannot_hold_sessions_is_told(site, team, mode):
    site.sessions.write_text("in the way")
    with pytest.raises(WorkspaceFailed):
        site.runs.create(team(mode=mode))
    assert site.sessions.read_text() == "in the way"
    assert site.tmux_sessions() == []
    assert [path.name for path in site.root.iterdir()] == ["sessions"]


def test_an_index_that_cannot_be_written_leaves_nothing(site, team, mode, tmp_path, monkeypatch):
    # The index becomes a folder when the agents have started: the last step fails.
    index = site.sessions / ".sessions.index"
    script = (
        '[[ "$*" = *new-session* ]] || exec $REAL "$@"\n'
        f'$REAL "$@"; code=$?; rm -f {index}; mkdir {index}; touch {index}/x; exit $code'
    )
    break_tmux(tmp_path, monkeypatch, script)
    rename = Path.rename

    def cannot_rename(path, target):
        if path == index:
            raise PermissionError(13, "Permission denied")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", cannot_rename)
    with pytest.raises(WorkspaceFailed):
        site.runs.create(team(mode=mode))
    monkeypatch.undo()
    shutil.rmtree(index)
    assert everything(site) == NOTHING


def test_a_session_of_that_name_that_is_not_ours_is_left_alone(site, team):
    site.tmux("new-session", "-d", "-s", "mas-tmux", "cat")
    with pytest.raises(LegacyRunning) as refused:
        site.runs.create(team(mode="legacy"))
    assert str(refused.value) == "mas-tmux is already running; attach to it, or stop it first"
    assert everything(site) == ([], [], [], [], [], ["mas-tmux"], [])
    assert not (site.root / "unit").exists()


def test_a_restore_that_fails_leaves_the_run_stopped(site, team, tmp_path, monkeypatch):
    run = site.runs.create(team())
    site.runs.stop(run.session_id)
    with monkeypatch.context() as broken:
        break_tmux(
            tmp_path, broken, '[[ "$*" = *new-session* ]] && { echo broken >&2; exit 1; }; exec $REAL "$@"'
        )
        with pytest.raises(TmuxFailed, match="broken"):
            site.runs.restore(run.session_id)
    assert [entry.status for entry in site.runs.list().sessions] == ["stopped"]
    assert site.processes() == []
    site.runs.restore(run.session_id)
    assert [entry.status for entry in site.runs.list().sessions] == ["active"]


def test_a_run_in_whose_sandbox_code_executes_is_not_deleted(site, team):
    from sandbox.errors import SessionInUse
    from sandbox.sessions.locks import using

    run = site.runs.create(team())
    site.runs.stop(run.session_id)
    with using(Path(run.working_dir)), pytest.raises(SessionInUse):
        site.runs.delete(run.session_id)
    assert [entry.status for entry in site.runs.list().sessions] == ["stopped"]
    site.runs.reconcile()
    assert site.folders() == [run.session_id]
    site.runs.delete(run.session_id)
    assert everything(site) == NOTHING


def test_runs_of_another_root_on_the_same_socket_are_left_alone(make_site, team):
    mine, other = make_site("mine"), make_site("other")
    neighbour = Runs(other.configured(tmux_socket=mine.socket))
    kept = neighbour.create(team())
    run = mine.runs.create(team())
    mine.runs.reconcile()
    mine.runs.stop(run.session_id)
    mine.runs.reconcile()
    assert mine.tmux_sessions() == [kept.tmux_session]
    assert [entry.status for entry in neighbour.list().sessions] == ["active"]
    neighbour.stop(kept.session_id)
