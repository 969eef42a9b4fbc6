"""Metadata and pruning: every scenario and acceptance bullet of the seed, and of its design."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import sandbox
from sandbox.sessions import (
    PruneResult,
    create_session_sandbox,
    get_session_sandbox,
    prune_sessions,
    repair_session_metadata,
)

ISO_UTC_MICROSECONDS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def metadata_of(session_id, root="workspace"):
    return json.loads(Path(root, session_id, ".metadata.json").read_text())


def legacy_session(root="workspace", **files):
    """A session from before metadata existed."""
    session_id = str(uuid.uuid4())
    Path(root, session_id).mkdir(parents=True)
    for name, content in files.items():
        Path(root, session_id, name).write_text(content)
    return session_id


def corrupt_session(root="workspace", content="{not json"):
    session_id = legacy_session(root)
    Path(root, session_id, ".metadata.json").write_text(content)
    return session_id


def size_of(folder):
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


# Requirement: Session Workspace Creation

# Scenario: Create session with metadata


def test_a_new_session_has_a_metadata_file():
    session_id, _ = create_session_sandbox()
    assert Path("workspace", session_id, ".metadata.json").is_file()


def test_new_metadata_is_json_with_exactly_the_required_fields():
    session_id, _ = create_session_sandbox()
    metadata = metadata_of(session_id)
    assert set(metadata) == {"session_id", "created_at", "updated_at", "version"}
    assert (metadata["session_id"], metadata["version"]) == (session_id, 1)
    assert metadata["created_at"] == metadata["updated_at"]


def test_new_timestamps_are_iso_8601_utc_with_microseconds():
    metadata = metadata_of(create_session_sandbox()[0])
    assert ISO_UTC_MICROSECONDS.fullmatch(metadata["created_at"])
    assert datetime.fromisoformat(metadata["created_at"]).utcoffset() == timedelta(0)


def test_new_timestamps_are_of_this_second():
    before = datetime.now(UTC)
    metadata = metadata_of(create_session_sandbox()[0])
    assert before <= datetime.fromisoformat(metadata["created_at"]) <= datetime.now(UTC)


# Scenario: Session creation fails gracefully if metadata write fails


@pytest.fixture
def unwritable_metadata(monkeypatch):
    """A disk that takes every file but the metadata."""
    real = os.open

    def refuse(path, flags, *rest, **options):
        if str(path) in (".metadata.json", ".metadata.json.next") and flags & os.O_CREAT:
            raise OSError(28, "No space left on device", str(path))
        return real(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", refuse)


def test_a_failed_metadata_write_still_gives_a_session(unwritable_metadata):
    session_id, _ = create_session_sandbox()
    assert os.listdir(f"workspace/{session_id}") == []


def test_a_failed_metadata_write_is_one_warning_with_id_and_error(unwritable_metadata, logger, events):
    session_id, _ = create_session_sandbox(logger=logger)
    assert events.at("warning") == [
        (
            "session.metadata.failed",
            {"session_id": session_id, "error": "[Errno 28] No space left on device: '.metadata.json.next'"},
        )
    ]


def test_a_session_whose_metadata_failed_executes_code(unwritable_metadata):
    _, box = create_session_sandbox()
    assert box.execute("print('usable')").stdout == "usable\n"


# Requirement: Session Metadata Updates

# Scenario: Update timestamp on successful execution


def test_an_execution_refreshes_updated_at_to_now():
    session_id, box = create_session_sandbox()
    before = datetime.now(UTC)
    box.execute("pass")
    assert before <= datetime.fromisoformat(metadata_of(session_id)["updated_at"]) <= datetime.now(UTC)


def test_updated_at_grows_strictly_with_each_execution():
    session_id, box = create_session_sandbox()
    seen = [metadata_of(session_id)["updated_at"]]
    for _ in range(10):
        box.execute("pass")
        seen.append(metadata_of(session_id)["updated_at"])
    assert seen == sorted(set(seen))
    assert all(ISO_UTC_MICROSECONDS.fullmatch(moment) for moment in seen)


def test_an_execution_keeps_created_at_and_every_other_field():
    session_id, box = create_session_sandbox()
    note = Path("workspace", session_id, ".metadata.json")
    before = metadata_of(session_id) | {"owner": "ann", "nested": {"a": [1, None]}}
    note.write_text(json.dumps(before))
    box.execute("pass")
    after = metadata_of(session_id)
    assert after.pop("updated_at") > before.pop("updated_at")
    assert after == before


def test_an_execution_that_fails_in_the_code_counts_as_use_too():
    session_id, box = create_session_sandbox()
    before = metadata_of(session_id)["updated_at"]
    assert not box.execute("raise ValueError").success
    assert metadata_of(session_id)["updated_at"] > before


def test_an_execution_succeeds_when_its_timestamp_cannot_be_written(logger, events):
    session_id, box = create_session_sandbox(logger=logger)
    note = Path("workspace", session_id, ".metadata.json")
    note.write_text(json.dumps(metadata_of(session_id) | {"updated_at": "2026-01-01T00:00:00+00:00"}))
    Path(f"{note}.next").mkdir()  # in the way of the rewrite
    assert box.execute("print('done')").stdout == "done\n"
    assert [event for event, _ in events.at("warning")] == ["session.metadata.failed"]


def test_an_update_is_logged(logger, events):
    session_id, box = create_session_sandbox(logger=logger)
    box.execute("pass")
    assert events.fields("session.metadata.updated") == [
        {"session_id": session_id, "updated_at": metadata_of(session_id)["updated_at"]}
    ]


# Scenario: Skip timestamp update for sessions without metadata


def test_a_legacy_session_executes_without_a_word_and_gets_no_metadata(logger, events):
    session_id = legacy_session()
    result = get_session_sandbox(session_id, logger=logger).execute("print('legacy')")
    assert result.stdout == "legacy\n"
    assert os.listdir(f"workspace/{session_id}") == ["user_code.py"]
    assert events.at("warning", "error") == []
    assert events.fields("session.metadata.updated") == []


# Scenario: Handle corrupted metadata gracefully


def test_corrupted_metadata_does_not_stop_an_execution():
    assert get_session_sandbox(corrupt_session()).execute("print('on')").stdout == "on\n"


def test_corrupted_metadata_is_one_warning_with_id_and_parse_error(logger, events):
    session_id = corrupt_session()
    get_session_sandbox(session_id, logger=logger).execute("pass")
    [(event, fields)] = events.at("warning")
    assert (event, fields["session_id"]) == ("session.metadata.failed", session_id)
    assert "Invalid JSON" in fields["error"]


def test_corrupted_metadata_is_left_as_it_is():
    session_id = corrupt_session(content="{half")
    get_session_sandbox(session_id).execute("pass")
    assert Path("workspace", session_id, ".metadata.json").read_text() == "{half"


# Requirement: Session Metadata Model

# Scenario: Metadata schema validation


def test_the_metadatas_id_is_the_folders_name_after_executions_too():
    session_id, box = create_session_sandbox()
    box.execute("pass")
    metadata = metadata_of(session_id)
    assert metadata["session_id"] == session_id
    assert uuid.UUID(metadata["session_id"]).version == 4
    assert metadata["version"] == 1
    for name in ("created_at", "updated_at"):
        assert datetime.fromisoformat(metadata[name]).tzinfo is not None


# Scenario: Metadata is hidden from guest code

HIDDEN_SPELLINGS = [
    ".metadata.json",
    "/app/.metadata.json",
    "./.metadata.json",
    "/app/../app/.metadata.json",
    "sub/../.metadata.json",
    ".METADATA.JSON",
    ".Metadata.json",
    ".metadata.json/",
    "//app//.metadata.json",
]


def run_in_a_session(code):
    session_id, box = create_session_sandbox()
    before = metadata_of(session_id)
    result = box.execute("import os\nos.makedirs('sub', exist_ok=True)\n" + code)
    after = metadata_of(session_id)
    assert {**after, "updated_at": ""} == {**before, "updated_at": ""}
    return result


def test_a_guest_does_not_list_the_metadata():
    code = "print(os.listdir('/app'), [e.name for e in os.scandir('.')], list(os.walk('/app')))"
    assert "metadata" not in run_in_a_session(code).stdout


@pytest.mark.parametrize("path", HIDDEN_SPELLINGS)
def test_a_guest_that_opens_the_metadata_finds_no_such_file(path):
    code = f"try:\n    open({path!r})\nexcept FileNotFoundError:\n    print('not there')"
    assert run_in_a_session(code).stdout == "not there\n"


@pytest.mark.parametrize("path", HIDDEN_SPELLINGS)
def test_a_guest_can_neither_write_rename_link_nor_remove_the_metadata(path):
    attempts = [
        f"open({path!r}, 'w')",
        f"os.stat({path!r})",
        f"os.rename({path!r}, 'mine')",
        f"os.rename('user_code.py', {path!r})",
        f"os.link({path!r}, 'mine')",
        f"os.link('user_code.py', {path!r})",
        f"os.symlink({path!r}, 'mine')",
        f"os.unlink({path!r})",
        f"os.mkdir({path!r})",
        f"os.replace({path!r}, 'mine')",
    ]
    code = "".join(
        f"try:\n    {attempt}\n    print({attempt!r})\nexcept OSError:\n    pass\n" for attempt in attempts
    )
    code += "print(os.path.exists('mine'), os.access('.metadata.json', os.F_OK))"
    assert run_in_a_session(code).stdout == "False False\n"


def test_a_guest_does_not_reach_the_metadata_through_an_open_folder():
    code = (
        "fd = os.open('.', os.O_RDONLY)\n"
        "try:\n    os.open('.metadata.json', os.O_RDONLY, dir_fd=fd)\n"
        "except (OSError, NotImplementedError) as error:\n    print(type(error).__name__)\n"
    )
    assert run_in_a_session(code).stdout == "FileNotFoundError\n"


def test_a_guest_does_not_traverse_out_of_its_workspace():
    session_id, box = create_session_sandbox()
    other, _ = create_session_sandbox()
    assert not box.execute(f"open('/app/../{other}/.metadata.json')").success
    assert not box.execute(f"open('../{session_id}/.metadata.json')").success


# Requirement: Workspace Pruning API

# Scenario: Prune sessions older than threshold


@pytest.fixture
def mixed(aged_session):
    """Sessions of every kind under ./workspace."""
    root = Path("workspace")
    kinds = {
        "old": [aged_session(48, root, data="x" * 100), aged_session(25, root)],
        "recent": [aged_session(23, root), create_session_sandbox()[0]],
        "legacy": [legacy_session(data="kept")],
        "corrupt": [corrupt_session()],
    }
    Path("workspace/not-a-session").mkdir()
    return kinds


def test_old_sessions_are_deleted_completely(mixed):
    prune_sessions(older_than_hours=24)
    assert not any(Path("workspace", session_id).exists() for session_id in mixed["old"])
    assert sorted(os.listdir("workspace")) == sorted(
        [*mixed["recent"], *mixed["legacy"], *mixed["corrupt"], "not-a-session"]
    )


def test_recent_sessions_are_preserved(mixed):
    prune_sessions(older_than_hours=24)
    assert all(Path("workspace", session_id, ".metadata.json").exists() for session_id in mixed["recent"])


def test_legacy_sessions_are_skipped_and_kept(mixed):
    result = prune_sessions(older_than_hours=24)
    assert Path("workspace", mixed["legacy"][0], "data").read_text() == "kept"
    assert set(mixed["legacy"]) <= set(result.skipped_sessions)


def test_the_result_lists_what_was_deleted_oldest_first(mixed):
    assert prune_sessions(older_than_hours=24).deleted_sessions == mixed["old"]


def test_the_result_lists_what_has_no_usable_metadata(mixed):
    result = prune_sessions(older_than_hours=24)
    assert sorted(result.skipped_sessions) == sorted(mixed["legacy"] + mixed["corrupt"])


# Scenario: Dry-run mode lists candidates without deleting


def test_a_dry_run_deletes_nothing_and_says_that_it_was_one(mixed):
    before = sorted(path for path in Path("workspace").rglob("*"))
    result = prune_sessions(older_than_hours=24, dry_run=True)
    assert sorted(path for path in Path("workspace").rglob("*")) == before
    assert result.dry_run is True
    assert result.deleted_sessions == mixed["old"]


def test_a_dry_run_finds_what_the_real_run_deletes(mixed):
    expected = prune_sessions(older_than_hours=24, dry_run=True)
    result = prune_sessions(older_than_hours=24)
    assert (result.dry_run, result.deleted_sessions) == (False, expected.deleted_sessions)
    assert result.reclaimed_bytes == expected.reclaimed_bytes
    assert sorted(result.skipped_sessions) == sorted(expected.skipped_sessions)


# Scenario: Calculate disk space reclaimed


def test_reclaimed_bytes_are_the_sizes_of_all_files_in_dry_runs_too(mixed):
    expected = sum(size_of(Path("workspace", session_id)) for session_id in mixed["old"])
    assert prune_sessions(older_than_hours=24, dry_run=True).reclaimed_bytes == expected
    assert prune_sessions(older_than_hours=24).reclaimed_bytes == expected


def test_files_in_subfolders_count(aged_session):
    session_id = aged_session(48, Path("workspace"))
    deep = Path("workspace", session_id, "a/b/c")
    deep.mkdir(parents=True)
    (deep / "big.bin").write_bytes(b"x" * 12345)
    expected = size_of(Path("workspace", session_id))
    assert prune_sessions(24).reclaimed_bytes == expected > 12345


# Scenario: Handle permission errors gracefully

AS_NOBODY = 65534


def prune_without_privileges(root):
    """Prune as a user whom file permissions bind; the tests may run as root."""
    code = (
        "import dataclasses, json, os, sys, structlog\n"
        "from sandbox.sessions.prune import prune_sessions\n"
        "if os.geteuid() == 0:\n"
        f"    os.setgroups([]); os.setgid({AS_NOBODY}); os.setuid({AS_NOBODY})\n"
        "runs = [prune_sessions(24, '.', dry_run=dry) for dry in (True, False)]\n"
        "print(json.dumps([dataclasses.asdict(run) for run in runs]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture
def guarded(tmp_path, aged_session):
    """A root with three old sessions, one of which may not be emptied by others than root."""
    root = tmp_path / "guarded"
    ids = [aged_session(hours, root, data="x") for hours in (50, 49, 48)]
    for path in [root, *root.rglob("*")]:
        os.chown(path, AS_NOBODY if os.geteuid() == 0 else -1, -1)
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o755)
    (root / ids[1]).chmod(0o500)
    yield root, ids
    (root / ids[1]).chmod(0o700)


def test_one_session_without_permission_does_not_keep_the_others(guarded):
    root, ids = guarded
    _, real = prune_without_privileges(root)
    assert real["deleted_sessions"] == [ids[0], ids[2]]
    assert sorted(os.listdir(root)) == [ids[1]]


def test_a_permission_error_is_in_errors_and_nothing_of_that_session_is_deleted(guarded):
    root, ids = guarded
    before = sorted(os.listdir(root / ids[1]))
    dry, real = prune_without_privileges(root)
    assert list(real["errors"]) == list(dry["errors"]) == [ids[1]]
    assert "Permission denied" in real["errors"][ids[1]]
    assert sorted(os.listdir(root / ids[1])) == before


def test_a_folder_deep_inside_that_may_not_be_emptied_keeps_its_session_whole(guarded):
    root, ids = guarded
    deep = root / ids[2] / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "file").write_text("x")
    for path in (deep.parent, deep, deep / "file"):
        os.chown(path, AS_NOBODY if os.geteuid() == 0 else -1, -1)
    deep.chmod(0o500)
    dry, real = prune_without_privileges(root)
    assert sorted(real["errors"]) == sorted(dry["errors"]) == sorted(ids[1:])
    assert (deep / "file").read_text() == "x"
    assert (root / ids[2] / "data").exists()
    deep.chmod(0o700)


# Scenario: Custom workspace root


def test_only_the_given_root_is_pruned(aged_session):
    kept = aged_session(48, Path("workspace"))
    gone = aged_session(48, Path("custom"))
    result = prune_sessions(older_than_hours=24, workspace_root=Path("custom/"))
    assert (result.deleted_sessions, os.listdir("custom")) == ([gone], [])
    assert os.listdir("workspace") == [kept]


def test_a_root_that_is_missing_is_an_error():
    with pytest.raises(FileNotFoundError, match="nowhere"):
        prune_sessions(24, "nowhere")


# Requirement: Pruning Result Model

# Scenario: PruneResult contains operation details


def test_a_result_has_every_field_filled_with_plain_values(mixed):
    result = prune_sessions(24)
    assert all(isinstance(one, str) for one in result.deleted_sessions + result.skipped_sessions)
    assert isinstance(result.reclaimed_bytes, int)
    assert result.reclaimed_bytes > 0
    assert (result.errors, result.dry_run) == ({}, False)


# Scenario: PruneResult supports string representation


def test_a_results_text_has_counts_and_readable_bytes():
    result = PruneResult(["a", "b"], ["c"], 1_572_864, {"d": "no"}, dry_run=False)
    assert str(result) == "Deleted 2 sessions (1.5 MB), skipped 1, 1 error"


def test_a_results_text_says_that_it_was_a_dry_run():
    text = str(PruneResult(["a"], [], 512, {}, dry_run=True))
    assert text == "Dry run: would delete 1 session (512 B), skipped 0, 0 errors"


# Requirement: Structured Logging for Pruning

# Scenario: Log pruning lifecycle events


def test_a_prune_logs_its_stages_with_their_fields(aged_session, logger, events):
    session_id = aged_session(48, Path("workspace"), data="x")
    size = size_of(Path("workspace", session_id))
    prune_sessions(24, logger=logger)
    assert events.names() == [
        f"session.prune.{name}" for name in ("started", "candidate", "deleted", "completed")
    ]
    started, candidate, deleted, completed = (fields for _, _, fields in events)
    assert started == {"threshold_hours": 24, "workspace_root": "workspace", "dry_run": False}
    assert candidate.pop("age_hours") == pytest.approx(48, abs=0.1)
    assert candidate == {"session_id": session_id, "size_bytes": size, "reason": "max_age_hours"}
    assert deleted == {"session_id": session_id}
    assert completed.pop("duration") >= 0
    assert completed == {"deleted_count": 1, "skipped_count": 0, "reclaimed_bytes": size}
    assert {level for level, _, _ in events} == {"info"}


def test_a_dry_run_logs_no_deletion(aged_session, logger, events):
    aged_session(48, Path("workspace"))
    prune_sessions(24, dry_run=True, logger=logger)
    assert events.names() == [f"session.prune.{name}" for name in ("started", "candidate", "completed")]


# Scenario: Log warnings for skipped sessions


def test_each_skipped_session_is_one_warning_with_its_reason(logger, events):
    legacy, corrupt = legacy_session(), corrupt_session()
    prune_sessions(24, logger=logger)
    assert sorted(events.at("warning"), key=lambda one: one[1]["reason"]) == [
        ("session.prune.skipped", {"session_id": corrupt, "reason": "corrupted_metadata"}),
        ("session.prune.skipped", {"session_id": legacy, "reason": "no_metadata"}),
    ]


# Requirement: Path Safety for Pruning

# Scenario: Validate workspace root before pruning


def test_a_root_that_is_a_file_is_an_error(tmp_path):
    Path("file").write_text("x")
    with pytest.raises(NotADirectoryError):
        prune_sessions(24, "file")


def test_a_symlink_among_the_sessions_is_skipped_and_leads_nowhere(tmp_path, aged_session, logger, events):
    outside = aged_session(48, tmp_path / "outside", data="kept")
    Path("workspace").mkdir()
    link = Path("workspace", outside)
    link.symlink_to(tmp_path / "outside" / outside)
    result = prune_sessions(0, logger=logger)
    assert (result.deleted_sessions, result.skipped_sessions) == ([], [outside])
    assert events.at("warning") == [("session.prune.skipped", {"session_id": outside, "reason": "symlink"})]
    assert link.is_symlink()
    assert (tmp_path / "outside" / outside / "data").read_text() == "kept"


def test_a_symlink_inside_a_session_is_removed_and_not_followed(tmp_path, aged_session):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file.txt").write_text("kept")
    session_id = aged_session(48, Path("workspace"))
    Path("workspace", session_id, "link").symlink_to(tmp_path / "precious")
    assert prune_sessions(24).deleted_sessions == [session_id]
    assert (tmp_path / "precious" / "file.txt").read_text() == "kept"


# Scenario: Prevent deletion of non-session directories


def test_folders_that_are_not_named_like_sessions_are_neither_touched_nor_counted(logger, events):
    old = {
        "session_id": "x",
        "created_at": "2001-01-01T00:00:00Z",
        "updated_at": "2001-01-01T00:00:00Z",
        "version": 1,
    }
    names = [
        "data",
        "abc-123",
        str(uuid.uuid4()).upper(),
        uuid.uuid4().hex,
        f"{uuid.uuid4()}x",
        "{" + str(uuid.uuid4()) + "}",
    ]
    for name in names:
        Path("workspace", name).mkdir(parents=True)
        Path("workspace", name, ".metadata.json").write_text(json.dumps(old | {"session_id": name}))
    Path("workspace", str(uuid.uuid4())).write_text("a file")
    result = prune_sessions(0, logger=logger)
    assert result == PruneResult()
    assert len(os.listdir("workspace")) == len(names) + 1
    assert events.at("warning", "error") == []


# Requirement: Backwards Compatibility for Metadata

# Scenario: Execute legacy session without metadata


def test_a_legacy_session_behaves_as_before_metadata(logger, events):
    session_id = legacy_session(data="old")
    result = get_session_sandbox(session_id, logger=logger).execute("print(open('data').read())")
    assert (result.stdout, result.success) == ("old\n", True)
    assert not Path("workspace", session_id, ".metadata.json").exists()
    assert events.at("warning", "error") == []


# Scenario: Prune skips legacy sessions


def test_pruning_everything_keeps_legacy_sessions_and_counts_them():
    current = [create_session_sandbox()[0] for _ in range(3)]
    legacy = [legacy_session() for _ in range(2)]
    result = prune_sessions(older_than_hours=0)
    assert sorted(result.deleted_sessions) == sorted(current)
    assert sorted(result.skipped_sessions) == sorted(legacy)
    assert sorted(os.listdir("workspace")) == sorted(legacy)


# The design of the seed, as far as no scenario above is the same


# Public API Additions
def test_pruning_is_exported_from_the_package():
    assert {"prune_sessions", "PruneResult", "SessionMetadata"} <= set(sandbox.__all__)


# Edge case: Corrupted Metadata
@pytest.mark.parametrize(
    "content",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"updated_at": 5}',
        '{"updated_at": "yesterday"}',
        "\x00\x01",
        '{"a": ' * 50_000,
    ],
)
def test_metadata_that_gives_no_date_protects_its_session(content):
    session_id = corrupt_session(content=content)
    result = prune_sessions(0)
    assert (result.deleted_sessions, result.skipped_sessions, result.errors) == ([], [session_id], {})
    assert get_session_sandbox(session_id).execute("pass").success
    assert Path("workspace", session_id, ".metadata.json").read_text() == content


# Edge case: Concurrent Execution
def test_a_session_that_executes_is_not_pruned(logger, events):
    session_id, box = create_session_sandbox()
    seen = []

    def while_it_runs(stream, data):
        if not seen:
            seen.append(prune_sessions(0, logger=logger))

    assert box.execute("print('x', flush=True)", on_output=while_it_runs).success
    assert (seen[0].deleted_sessions, seen[0].skipped_sessions) == ([], [session_id])
    assert events.at("warning") == [("session.prune.skipped", {"session_id": session_id, "reason": "in_use"})]
    assert prune_sessions(0).deleted_sessions == [session_id]


# Edge case: Clock Skew
def test_a_session_from_the_future_is_young_and_keeps_growing_older_stamps():
    session_id, box = create_session_sandbox()
    future = "2999-01-01T00:00:00.000000Z"
    note = Path("workspace", session_id, ".metadata.json")
    note.write_text(json.dumps(metadata_of(session_id) | {"updated_at": future}))
    assert prune_sessions(24).deleted_sessions == []
    box.execute("pass")
    assert metadata_of(session_id)["updated_at"] == "2999-01-01T00:00:00.000001Z"
    assert prune_sessions(0).deleted_sessions == [session_id]


# Migration: repair_session_metadata() backfills timestamps from mtimes
def test_repair_dates_a_legacy_session_by_its_files():
    session_id = legacy_session(first="a", last="b")
    folder = Path("workspace", session_id)
    for name, moment in (("first", 1_000_000_000), ("last", 1_100_000_000)):
        os.utime(folder / name, (moment, moment))
    os.utime(folder, (1_050_000_000, 1_050_000_000))
    repaired = repair_session_metadata(session_id)
    assert repaired.created_at == "2001-09-09T01:46:40.000000Z"
    assert repaired.updated_at == "2004-11-09T11:33:20.000000Z"
    assert prune_sessions(24).deleted_sessions == [session_id]


# Integration: Multi-turn workflow, then prune
def test_a_workflow_of_several_turns_ends_in_a_prune():
    session_id, box = create_session_sandbox()
    box.execute("open('n', 'w').write('1')")
    box.execute("n = int(open('n').read()); open('n', 'w').write(str(n + 1))")
    assert box.execute("print(open('n').read())").stdout == "2\n"
    metadata = metadata_of(session_id)
    assert metadata["updated_at"] > metadata["created_at"]
    assert prune_sessions(24).deleted_sessions == []
    assert prune_sessions(0).deleted_sessions == [session_id]
