from __future__ import annotations

import os
import socket
import stat

import pytest

from mas.errors import TemplateUnusable
from mas.workspace import Layout, copy_templates, install_templates, legacy_session_name

SESSION_ID = "550e8400-e29b-41d4-a716-446655440000"


def test_an_isolated_run_works_in_its_own_folder(tmp_path):
    layout = Layout(tmp_path, SESSION_ID, "isolated")
    assert layout.unit_dir == tmp_path / "sessions" / SESSION_ID / "unit"
    assert layout.workflows_dir == tmp_path / "sessions" / SESSION_ID / "workflows"
    assert layout.tmux_session == "mas-550e8400"


def test_a_legacy_run_works_in_the_root(tmp_path):
    layout = Layout(tmp_path, SESSION_ID, "legacy")
    assert (layout.unit_dir, layout.workflows_dir) == (tmp_path / "unit", tmp_path / "workflows")
    assert layout.tmux_session == "mas-tmux"
    assert layout.folder == tmp_path / "sessions" / ".legacy" / SESSION_ID


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("PROJECT_NAME=shop", "mas-shop"),
        ("export PROJECT_NAME='my shop'\n", "mas-my-shop"),
        ('  PROJECT_NAME="a.b:c" # why\n', "mas-a-b-c"),
        ("PROJECT_NAME=a\nPROJECT_NAME=b\n", "mas-b"),
        ("PROJECT_NAME=$(touch owned)", "mas---touch"),
        ("PROJECT_NAME=`touch owned`", "mas--touch"),
        ("PROJECT_NAME=größe", "mas-gr--e"),
        ("PROJECT_NAME=", "mas-tmux"),
        ("PROJECT_NAME='open", "mas-tmux"),
        ("# PROJECT_NAME=no\nOTHER=x\n", "mas-tmux"),
        ("MY_PROJECT_NAME=no", "mas-tmux"),
        ("", "mas-tmux"),
    ],
)
def test_a_project_file_is_read_and_never_run(tmp_path, monkeypatch, text, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".masrc").write_text(text)
    assert legacy_session_name(tmp_path) == name
    assert [path.name for path in tmp_path.iterdir()] == [".masrc"]


def test_the_nearest_project_file_counts(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / ".masrc").write_text("PROJECT_NAME=far")
    assert legacy_session_name(tmp_path / "a" / "b") == "mas-far"
    (tmp_path / "a" / ".masrc").write_text("PROJECT_NAME=near")
    assert legacy_session_name(tmp_path / "a" / "b") == "mas-near"


def test_a_project_file_that_cannot_be_read_does_not_matter(tmp_path):
    (tmp_path / ".masrc").mkdir()
    assert legacy_session_name(tmp_path) == "mas-tmux"


def test_templates_are_put_where_there_are_none(tmp_path):
    (tmp_path / "workflows").mkdir()
    assert install_templates(tmp_path) == [tmp_path / "unit"]
    assert install_templates(tmp_path) == []
    assert list((tmp_path / "workflows").iterdir()) == []
    assert (tmp_path / "unit" / "00" / "ROLE.md").is_file()


def test_templates_are_copied_with_their_modes_and_links(tmp_path):
    unit, copy = tmp_path / "unit" / "10", tmp_path / "copy"
    unit.mkdir(parents=True)
    (unit / "tool.sh").write_text("true")
    (unit / "tool.sh").chmod(0o750)
    (unit / "link").symlink_to("tool.sh")
    (unit / "dangling").symlink_to("nowhere")
    (unit / "empty").mkdir(mode=0o700)
    copy.mkdir()
    copy_templates(tmp_path, copy)
    copied = copy / "unit" / "10"
    assert sorted(path.name for path in copied.iterdir()) == ["dangling", "empty", "link", "tool.sh"]
    assert ((copied / "link").readlink().name, (copied / "dangling").is_symlink()) == ("tool.sh", True)
    assert stat.S_IMODE((copied / "tool.sh").stat().st_mode) == 0o750
    assert stat.S_IMODE((copied / "empty").stat().st_mode) == 0o700
    assert (copied / "tool.sh").read_text() == "true"


def make_device(path):
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero: its copy would never end
    except PermissionError:
        pytest.skip("only root may make a device")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "is a named pipe and cannot be copied"),
        (lambda path: socket.socket(socket.AF_UNIX).bind(path), "is a socket and cannot be copied"),
        (make_device, "is a device and cannot be copied"),
    ],
    ids=["named pipe", "socket", "device"],
)
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # the socket file outlives its maker here
def test_a_template_that_cannot_be_copied_is_named(tmp_path, monkeypatch, make, reason):
    (tmp_path / "unit" / "10").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    make("unit/10/odd")
    (tmp_path / "copy").mkdir()
    with pytest.raises(TemplateUnusable) as refused:
        copy_templates(tmp_path, tmp_path / "copy")
    assert str(refused.value) == (
        f"the template unit/10/odd {reason}; mend it or move it out of the templates, then start again"
    )


def test_templates_that_are_no_folder_are_named(tmp_path):
    (tmp_path / "workflows").touch()
    (tmp_path / "copy").mkdir()
    with pytest.raises(TemplateUnusable, match=r"^the template workflows cannot be read .Not a directory.; "):
        copy_templates(tmp_path, tmp_path / "copy")
