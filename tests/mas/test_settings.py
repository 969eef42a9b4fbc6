from __future__ import annotations

import os
from pathlib import Path

import pytest

from mas.errors import InvalidConfiguration
from mas.settings import read_settings


@pytest.fixture(autouse=True)
def no_variables(monkeypatch, tmp_path):
    for name in ("ROOT", "SESSION_MODE", "SESSION_ID", "TMUX_SOCKET", "AGENT_COMMAND", "API_TOKEN"):
        monkeypatch.delenv(f"MAS_{name}", raising=False)
    monkeypatch.chdir(tmp_path)


def test_without_variables_the_root_is_here_and_the_mode_legacy(tmp_path):
    settings = read_settings()
    assert (settings.root, settings.session_mode, settings.tmux_socket) == (
        tmp_path.resolve(),
        "legacy",
        "mas",
    )
    assert (settings.session_id, settings.agent_command, settings.api_token) == (None, None, None)


def test_variables_are_read_and_empty_ones_count_as_unset(monkeypatch, tmp_path):
    (tmp_path / "sub").mkdir()
    monkeypatch.setenv("MAS_ROOT", "sub/../sub")
    monkeypatch.setenv("MAS_SESSION_MODE", "isolated")
    monkeypatch.setenv("MAS_AGENT_COMMAND", "")
    settings = read_settings()
    assert (settings.root, settings.session_mode) == ((tmp_path / "sub").resolve(), "isolated")
    assert settings.agent_command is None


def test_the_token_is_not_shown(monkeypatch):
    monkeypatch.setenv("MAS_API_TOKEN", "secret")
    assert "secret" not in repr(read_settings())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAS_SESSION_MODE", "shared"),
        ("MAS_TMUX_SOCKET", "../elsewhere"),
        ("MAS_AGENT_COMMAND", "sh -c 'x"),
        ("MAS_AGENT_READY_SECONDS", "0"),
    ],
)
def test_a_bad_variable_is_named(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidConfiguration) as refused:
        read_settings()
    assert refused.value.field == name


@pytest.mark.parametrize("token", ["t\u00f6ken", "\u20ac", "two words", " padded", "line\n", "\udcff"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(monkeypatch, token):
    monkeypatch.setenv("MAS_API_TOKEN", token)
    with pytest.raises(InvalidConfiguration) as refused:
        read_settings()
    assert str(refused.value) == (
        "MAS_API_TOKEN: use letters, digits and punctuation of ASCII alone, without spaces"
    )


@pytest.mark.parametrize("named", [True, False], ids=["MAS_ROOT", "the current folder"])
def test_a_root_whose_path_is_no_text_is_refused(monkeypatch, tmp_path, named):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/b\xffd"))
    folder.mkdir()
    if named:
        monkeypatch.setenv("MAS_ROOT", str(folder))
    else:
        monkeypatch.chdir(folder)
    with pytest.raises(InvalidConfiguration) as refused:
        read_settings()
    assert str(refused.value) == (
        "MAS_ROOT: the path of this folder is not UTF-8; rename the folder, or use another"
    )


def test_a_root_that_is_a_file_is_refused(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MAS_ROOT", "file")
    with pytest.raises(InvalidConfiguration) as refused:
        read_settings()
    assert str(refused.value) == f"MAS_ROOT: {tmp_path / 'file'} is no folder; name one"


def test_the_name_of_a_socket_has_its_rule(monkeypatch):
    monkeypatch.setenv("MAS_TMUX_SOCKET", "a b")
    with pytest.raises(InvalidConfiguration) as refused:
        read_settings()
    assert str(refused.value) == (
        "MAS_TMUX_SOCKET: use up to 64 letters, digits, dots, dashes and underscores"
    )


def test_settings_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        read_settings().root = Path("/")
