import json
import subprocess
import sys
from pathlib import Path

import pytest

from mas.workspace import legacy_session_name

PROJECT = Path(__file__).resolve().parents[2]
SCRIPT = PROJECT / "mas_refactored.sh"
ID = "550e8400-e29b-41d4-a716-446655440000"
ISOLATED = {"MAS_SESSION_MODE": "isolated", "MAS_SESSION_ID": ID}
LEGACY = {"MAS_SESSION_MODE": "legacy"}


def test_shellcheck_has_nothing_to_say():
    command = Path(sys.executable).with_name("shellcheck")
    result = subprocess.run(
        [command, SCRIPT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize("words", [[], ["nothing"], ["--version"]])
def test_wrong_usage_shows_the_usage_and_exits_2(world, words):
    result = world.script(*words, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("Usage: ./mas_refactored.sh start ")


def test_help_is_no_failure(world):
    assert world.script("--help").stdout.startswith("Usage: ./mas_refactored.sh start ")


def test_an_unknown_mode_is_refused_before_anything_is_made(world):
    result = world.script("start", check=False, MAS_SESSION_MODE="shared")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "mas_refactored.sh: MAS_SESSION_MODE is 'shared': use legacy or isolated\n"
    assert list(world.root.iterdir()) == []


def test_a_root_that_is_no_folder_is_refused(world):
    result = world.script("start", check=False, MAS_ROOT=world.root / "gone")
    assert result.returncode == 2
    assert result.stderr == f"mas_refactored.sh: MAS_ROOT is no folder: {world.root}/gone\n"


@pytest.mark.parametrize(
    ("env", "name"), [(LEGACY, "mas-tmux"), ({}, "mas-tmux"), (ISOLATED, "mas-550e8400")]
)
def test_a_session_passes_through_its_whole_life(world, env, name):
    assert world.script("start", **env).stdout.startswith("started session ")
    again = world.script("start", **env)
    assert again.stdout.startswith(f"{name} is already running")
    shown = json.loads(world.script("status", "--json", **env).stdout)
    assert (shown["tmuxSession"], shown["status"], len(shown["agents"])) == (name, "active", 13)
    world.script("send", "10", "--", "-x; $(id) Enter", **env)
    log = ("logs", "10", "--session", shown["sessionId"])
    world.wait_until(lambda: "-x; $(id) Enter" in world.mas(*log).stdout, "the message")
    assert name in world.script("list", **env).stdout
    assert world.script("stop", **env).stdout == f"stopped session {shown['sessionId']}\n"
    assert json.loads(world.script("status", "--json", **env).stdout)["status"] == "stopped"
    assert world.tmux_sessions() == []


def test_an_isolated_session_that_stopped_is_started_again(world):
    world.script("start", **ISOLATED)
    world.script("stop", **ISOLATED)
    assert world.script("start", **ISOLATED).stdout.startswith(
        f"started session {ID} (isolated) as mas-550e8400\n"
    )
    assert [entry["sessionId"] for entry in world.index()["sessions"]] == [ID]


def test_without_an_id_the_only_isolated_session_is_reached(world):
    world.script("start", MAS_SESSION_MODE="isolated")
    (entry,) = world.index()["sessions"]
    assert (
        world.script("stop", MAS_SESSION_MODE="isolated").stdout == f"stopped session {entry['sessionId']}\n"
    )


def test_the_legacy_session_is_reached_while_isolated_ones_run(world):
    world.script("start", MAS_SESSION_MODE="isolated")
    world.script("start")
    assert json.loads(world.script("status", "--json").stdout)["tmuxSession"] == "mas-tmux"
    world.script("stop")
    assert [entry["status"] for entry in world.index()["sessions"]] == ["active", "stopped"]


def test_the_script_works_from_any_folder(world, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("else where")
    result = subprocess.run(
        [SCRIPT, "list"], cwd=elsewhere, env=world.env, capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("SESSION ")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "PROJECT_NAME=shop\n",
        "PROJECT_NAME=shop",
        "export PROJECT_NAME=shop\n",
        "  PROJECT_NAME='my shop: 2'\n",
        'PROJECT_NAME="my shop" # why\n',
        "PROJECT_NAME=one\nPROJECT_NAME=two\n",
        "PROJECT_NAME=\n",
        "OTHER=1\nMY_PROJECT_NAME=no\n",
        "PROJECT_NAME=$(touch made)\n",
        "PROJECT_NAME=`touch made`\n",
        "PROJECT_NAME=a;touch made\n",
        "PROJECT_NAME=caf\u00e9\n",
        "touch made\n",
    ],
)
def test_the_script_and_the_command_read_the_same_project_name(world, text):
    (world.root / ".masrc").write_text(text)
    folder = world.root / "deep" / "er"
    folder.mkdir(parents=True)
    trace = world.run("bash", "-x", SCRIPT, "list", MAS_ROOT=folder).stderr
    name = [
        line.partition("SESSION_NAME=")[2]
        for line in trace.splitlines()
        if line.startswith("+ SESSION_NAME=")
    ]
    assert name == [legacy_session_name(folder)]
    assert not (world.root / "made").exists()
