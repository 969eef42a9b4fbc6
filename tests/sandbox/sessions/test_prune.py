"""Retention, and the agreement of a dry run with the real one."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.sessions import (
    PruneResult,
    RetentionPolicy,
    hold_session,
    list_sessions,
    make_session,
    prune_sessions,
)
from sandbox.sessions.layout import is_canonical_uuid
from sandbox.sessions.locks import using
from sandbox.sessions.prune import format_bytes


@pytest.mark.parametrize("hours", [-1, -0.001, float("nan"), float("-inf")])
def test_hours_that_are_no_age_are_refused_and_nothing_is_deleted(tmp_path, aged_session, hours):
    session_id = aged_session(48)
    with pytest.raises(ValueError, match="zero or more"):
        prune_sessions(hours, tmp_path)
    with pytest.raises(ValueError, match="zero or more"):
        RetentionPolicy(max_age_hours=hours)
    assert os.listdir(tmp_path) == [session_id]


def test_infinite_hours_keep_everything(tmp_path, aged_session):
    aged_session(10_000)
    assert prune_sessions(float("inf"), tmp_path) == PruneResult()


@pytest.mark.parametrize("limit", ["max_sessions", "max_total_bytes", "min_free_bytes"])
def test_a_negative_limit_is_refused(limit):
    with pytest.raises(ValueError, match=limit):
        RetentionPolicy(**{limit: -1})


def test_hours_and_a_policy_together_are_refused(tmp_path):
    with pytest.raises(ValueError, match="not both"):
        prune_sessions(5, tmp_path, policy=RetentionPolicy())


def test_a_policy_without_limits_keeps_everything(tmp_path, aged_session):
    aged_session(10_000)
    assert prune_sessions(workspace_root=tmp_path, policy=RetentionPolicy()) == PruneResult()


def test_a_number_of_sessions_is_kept_the_oldest_going_first(tmp_path, aged_session):
    ids = [aged_session(hours) for hours in (5, 4, 3, 2, 1)]
    result = prune_sessions(workspace_root=tmp_path, policy=RetentionPolicy(max_sessions=2))
    assert result.deleted_sessions == ids[:3]
    assert set(result.reasons.values()) == {"max_sessions"}
    assert sorted(os.listdir(tmp_path)) == sorted(ids[3:])


def test_total_bytes_are_brought_below_the_limit_and_no_further(tmp_path, aged_session):
    ids = [aged_session(hours, data="x" * 10_000) for hours in (3, 2, 1)]
    result = prune_sessions(workspace_root=tmp_path, policy=RetentionPolicy(max_total_bytes=25_000))
    assert (result.deleted_sessions, result.reasons) == (ids[:1], {ids[0]: "max_total_bytes"})


def test_free_bytes_are_brought_above_the_limit(tmp_path, aged_session):
    ids = [aged_session(hours, data="x" * 10_000) for hours in (3, 2, 1)]
    none = prune_sessions(workspace_root=tmp_path, policy=RetentionPolicy(min_free_bytes=1))
    assert none.deleted_sessions == []
    everything = RetentionPolicy(min_free_bytes=2**62)
    assert prune_sessions(workspace_root=tmp_path, policy=everything).deleted_sessions == ids


def test_each_deletion_has_the_first_limit_that_it_offends_as_its_reason(tmp_path, aged_session):
    ids = [aged_session(hours) for hours in (50, 3, 2, 1)]
    policy = RetentionPolicy(max_age_hours=24, max_sessions=2)
    result = prune_sessions(workspace_root=tmp_path, policy=policy)
    assert result.reasons == {ids[0]: "max_age_hours", ids[1]: "max_sessions"}


def test_a_number_of_deletions_is_not_passed_and_the_oldest_go(tmp_path, aged_session):
    ids = [aged_session(hours) for hours in (50, 49, 48)]
    assert prune_sessions(24, tmp_path, max_deletions=2).deleted_sessions == ids[:2]
    assert prune_sessions(24, tmp_path, max_deletions=0).deleted_sessions == []
    assert os.listdir(tmp_path) == [ids[2]]


def test_a_session_in_use_is_passed_over_and_the_next_oldest_goes_for_it(tmp_path, aged_session):
    ids = [aged_session(hours) for hours in (5, 4, 3)]
    policy = RetentionPolicy(max_sessions=2)
    with using(tmp_path / ids[0]):
        result = prune_sessions(workspace_root=tmp_path, policy=policy)
    assert (result.deleted_sessions, result.skipped_sessions) == ([ids[1]], [ids[0]])
    assert result.reasons == {ids[0]: "in_use", ids[1]: "max_sessions"}


def test_threads_remove_the_same_in_the_same_order(tmp_path, aged_session):
    ids = [aged_session(100 - number, data="x") for number in range(100)]
    expected = prune_sessions(24, tmp_path, dry_run=True)
    result = prune_sessions(24, tmp_path, workers=4)
    assert dataclasses.replace(result, dry_run=True) == expected
    assert result.deleted_sessions == ids[:77]
    assert sorted(os.listdir(tmp_path)) == sorted(ids[77:])


def test_progress_is_told_after_each_session(tmp_path, aged_session):
    for hours in (50, 49, 1):
        aged_session(hours)
    told = []
    prune_sessions(24, tmp_path, progress=lambda *numbers: told.append(numbers))
    assert told == [(1, 3), (2, 3)]


def test_saved_state_is_counted_and_goes_along(tmp_path, aged_session):
    session_id = aged_session(48)
    state = tmp_path / ".state" / session_id
    state.mkdir(parents=True)
    (state / "pages").write_bytes(b"x" * 5000)
    expected = 5000 + (tmp_path / session_id / ".metadata.json").stat().st_size
    assert prune_sessions(24, tmp_path, dry_run=True).reclaimed_bytes == expected
    assert prune_sessions(24, tmp_path).reclaimed_bytes == expected
    assert not state.exists()


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KB"), (1_572_864, "1.5 MB"), (3 * 2**40, "3.0 TB")],
)
def test_bytes_are_shown_for_people(count, text):
    assert format_bytes(count) == text


session_kinds = st.lists(
    st.tuples(
        st.sampled_from(["dated", "dated", "dated", "legacy", "corrupt", "symlink", "in_use", "other"]),
        st.floats(0, 100),
        st.integers(0, 4000),
    ),
    max_size=12,
)
limits = st.builds(
    RetentionPolicy,
    max_age_hours=st.none() | st.floats(0, 100),
    max_sessions=st.none() | st.integers(0, 8),
    max_total_bytes=st.none() | st.integers(0, 20_000),
)


@given(session_kinds, limits, st.none() | st.integers(0, 6))
@settings(max_examples=60, deadline=None)
def test_a_dry_run_and_the_real_run_agree(kinds, policy, max_deletions):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        held = [using(root / build(root, *kind)) for kind in kinds if kind[0] == "in_use"]
        for kind in kinds:
            if kind[0] != "in_use":
                build(root, *kind)
        for lock in held:
            lock.__enter__()
        before = set(root.rglob("*"))
        options = {"workspace_root": root, "policy": policy, "max_deletions": max_deletions}
        dry = prune_sessions(dry_run=True, **options)
        assert set(root.rglob("*")) == before
        real = prune_sessions(**options)
        for lock in held:
            lock.__exit__(None, None, None)
        assert_agree(dry, real)
        assert_deleted_and_nothing_else(root, before, real)


def build(root, kind, hours, size):
    """One thing under the root, of some kind; its name."""
    name = f"other-{uuid.uuid4()}" if kind == "other" else str(uuid.uuid4())
    if kind == "symlink":
        (root / name).symlink_to(root)
        return name
    if kind in {"legacy", "corrupt"}:
        (root / name).mkdir()
    else:
        then = datetime.now(UTC) - timedelta(hours=hours)
        note = make_session(name, root) / ".metadata.json"
        moment = then.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        note.write_text(
            f'{{"session_id": "{name}", "created_at": "{moment}", "updated_at": "{moment}", "version": 1}}'
        )
    if kind == "corrupt":
        (root / name / ".metadata.json").write_text("{")
    (root / name / "data").write_bytes(b"x" * size)
    return name


def assert_agree(dry, real):
    assert real.deleted_sessions == dry.deleted_sessions
    assert sorted(real.skipped_sessions) == sorted(dry.skipped_sessions)
    assert real.reclaimed_bytes == dry.reclaimed_bytes
    assert real.errors == dry.errors == {}
    assert real.reasons == dry.reasons
    assert (dry.dry_run, real.dry_run) == (True, False)


def assert_deleted_and_nothing_else(root, before, real):
    gone = {path.relative_to(root).parts[0] for path in before if not os.path.lexists(path)}
    assert gone == set(real.deleted_sessions)
    assert all(is_canonical_uuid(name) for name in gone)
    assert not any(name.startswith((".tmp-", ".trash-")) for name in os.listdir(root))


def test_metadata_of_any_size_are_examined_in_little_memory(tmp_path, aged_session):
    vast, old = aged_session(48), aged_session(48)
    os.truncate(tmp_path / vast / ".metadata.json", 2**42)
    assert {info.session_id: info.state for info in list_sessions(tmp_path)} == {
        vast: "corrupted",
        old: "idle",
    }
    result = prune_sessions(24, tmp_path)
    assert (result.deleted_sessions, result.reasons[vast]) == ([old], "corrupted_metadata")
    with pytest.raises(ValueError, match="trailing characters"):
        hold_session(vast, tmp_path)


def test_a_session_that_is_held_stays_until_it_is_let_go(tmp_path, aged_session):
    session_id = aged_session(48)
    hold_session(session_id, tmp_path)
    assert prune_sessions(0, tmp_path).deleted_sessions == []
    assert [info.state for info in list_sessions(tmp_path)] == ["in_use"]
    hold_session(session_id, tmp_path, held=False)
    assert prune_sessions(0, tmp_path).deleted_sessions == [session_id]
