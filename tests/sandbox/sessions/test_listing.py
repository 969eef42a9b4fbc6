"""The sessions under a root."""

from __future__ import annotations

import os
import uuid

import pytest

from sandbox.sessions import list_sessions, make_session


def test_sessions_are_listed_last_used_first_with_age_size_and_state(tmp_path, aged_session):
    old, new = aged_session(48, data="x" * 100), aged_session(2)
    legacy, corrupt, link = (str(uuid.uuid4()) for _ in range(3))
    (tmp_path / legacy).mkdir()
    (tmp_path / corrupt).mkdir()
    (tmp_path / corrupt / ".metadata.json").write_text("{")
    (tmp_path / link).symlink_to(tmp_path / old)
    found = list_sessions(tmp_path)
    assert [one.session_id for one in found[:2]] == [new, old]
    assert {one.session_id: one.state for one in found} == {
        old: "idle",
        new: "idle",
        legacy: "legacy",
        corrupt: "corrupted",
        link: "symlink",
    }
    assert found[1].age_hours == pytest.approx(48, abs=0.1)
    assert found[1].created_at == found[1].updated_at
    assert {one.size_bytes for one in found} == {None}


def test_a_listing_says_which_sessions_keep_variables(tmp_path):
    make_session("files-only", tmp_path)
    make_session("variables-too", tmp_path, fields={"stateful": True})
    assert {one.session_id: one.stateful for one in list_sessions(tmp_path)} == {
        "files-only": False,
        "variables-too": True,
    }


def test_sizes_are_measured_on_request_saved_state_included(tmp_path, aged_session):
    session_id = aged_session(48, data="x" * 100)
    (tmp_path / ".state" / session_id).mkdir(parents=True)
    (tmp_path / ".state" / session_id / "pages").write_bytes(b"x" * 1000)
    [found] = list_sessions(tmp_path, sizes=True)
    assert found.size_bytes == 1100 + (tmp_path / session_id / ".metadata.json").stat().st_size


def test_other_names_are_sessions_where_they_have_metadata(tmp_path):
    make_session("named", tmp_path)
    for name in ("folder", ".state", ".tmp-x", "with space"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").write_text("x")
    assert [found.session_id for found in list_sessions(tmp_path)] == ["named"]


def test_an_empty_root_has_no_sessions_and_a_missing_one_is_an_error(tmp_path):
    assert list_sessions(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        list_sessions(tmp_path / "missing")


def test_listing_changes_nothing(tmp_path, aged_session):
    session_id = aged_session(48)
    before = (tmp_path / session_id / ".metadata.json").read_bytes()
    list_sessions(tmp_path, sizes=True)
    assert (tmp_path / session_id / ".metadata.json").read_bytes() == before
    assert os.listdir(tmp_path) == [session_id]
