"""Sessions: every scenario of the session-management seed and every success criterion of its proposal."""

from __future__ import annotations

import os
import stat
import uuid
from pathlib import Path

import pytest

import sandbox
from sandbox import BaseSandbox, ExecutionPolicy, RuntimeType, create_sandbox
from sandbox.sessions import (
    create_session_sandbox,
    delete_session_path,
    delete_session_workspace,
    get_session_sandbox,
    list_session_files,
    read_session_file,
    write_session_file,
)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# Requirement: Session ID Generation


# Scenario: Generate unique session ID
def test_a_session_id_is_a_unique_uuid4_that_a_file_system_can_take():
    ids = [create_session_sandbox()[0] for _ in range(20)]
    assert len(set(ids)) == 20
    for session_id in ids:
        parsed = uuid.UUID(session_id)
        assert (parsed.version, str(parsed)) == (4, session_id)


# Scenario: Session ID format validation
def test_a_session_id_has_only_hex_digits_and_hyphens_in_uuid_order():
    session_id, _ = create_session_sandbox()
    assert [len(part) for part in session_id.split("-")] == [8, 4, 4, 4, 12]
    assert set(session_id) <= set("0123456789abcdef-")
    assert Path("workspace", session_id).is_dir()


# Requirement: Session Workspace Mapping


# Scenario: Create session workspace
def test_a_session_gets_a_folder_of_its_own_below_roots_that_are_made():
    session_id, _ = create_session_sandbox(workspace_root="deep/er/workspace")
    folder = Path("deep/er/workspace", session_id)
    assert stat.S_IMODE(folder.stat().st_mode) & 0o700 == 0o700
    assert os.access(folder, os.R_OK | os.W_OK | os.X_OK)
    again = get_session_sandbox("abc-123", workspace_root="workspace")
    assert (again.workspace, Path("workspace/abc-123").is_dir()) == (Path("workspace/abc-123"), True)


# Scenario: Resolve existing session workspace
def test_an_existing_workspace_is_found_again_by_any_number_of_sandboxes():
    Path("workspace/abc-123").mkdir(parents=True)
    Path("workspace/abc-123/kept.txt").write_text("kept")
    first, second = get_session_sandbox(session_id="abc-123"), get_session_sandbox("abc-123")
    assert first.workspace == second.workspace == Path("workspace/abc-123")
    assert os.listdir("workspace") == ["abc-123"]
    assert second.execute("print(open('kept.txt').read())").stdout == "kept\n"


# Scenario: Custom workspace root
def test_a_custom_root_holds_the_sessions(tmp_path):
    session_id, box = create_session_sandbox(workspace_root=tmp_path / "custom")
    assert box.workspace == tmp_path / "custom" / session_id
    assert box.workspace.is_dir()


# Requirement: Session-Aware Sandbox Creation


# Scenario: Create new session with sandbox
def test_creating_gives_the_id_and_a_sandbox_on_its_workspace():
    session_id, box = create_session_sandbox(runtime=RuntimeType.PYTHON)
    assert isinstance(box, BaseSandbox)
    assert (str(uuid.UUID(session_id)), box.workspace) == (session_id, Path("workspace") / session_id)
    assert box.session_id == session_id


# Scenario: Create session with custom policy
def test_a_custom_policy_is_the_sandboxs_policy():
    policy = ExecutionPolicy(fuel_budget=500_000_000)
    _, box = create_session_sandbox(policy=policy)
    assert (box.policy, box.policy.fuel_budget) == (policy, 500_000_000)


# Scenario: Create session with custom logger
def test_a_custom_logger_hears_of_the_session_in_every_event(logger, events):
    session_id, box = create_session_sandbox(logger=logger)
    box.execute("pass")
    assert box.logger is logger
    assert {fields["session_id"] for _, _, fields in events} == {session_id}


# Scenario: Retrieve sandbox for existing session
def test_a_retrieved_sandbox_sees_the_files_of_earlier_executions():
    get_session_sandbox("abc-123").execute("open('/app/earlier.txt', 'w').write('seen')")
    box = get_session_sandbox(session_id="abc-123")
    assert isinstance(box, BaseSandbox)
    assert box.workspace == Path("workspace/abc-123")
    assert box.execute("print(open('/app/earlier.txt').read())").stdout == "seen\n"


# Requirement: Session Isolation


# Scenario: Files isolated between sessions
def test_two_sessions_keep_files_of_one_name_apart():
    first, second = get_session_sandbox("aaa-111"), get_session_sandbox("bbb-222")
    first.execute("open('data.txt', 'w').write('Session A data')")
    second.execute("open('data.txt', 'w').write('Session B data')")
    assert first.execute("print(open('data.txt').read())").stdout == "Session A data\n"
    assert second.execute("print(open('data.txt').read())").stdout == "Session B data\n"
    peek = first.execute("open('/app/../bbb-222/data.txt')")
    assert not peek.success
    assert not first.execute("open('../bbb-222/data.txt')").success


# Scenario: WASI preopen scoped to session
def test_a_guest_sees_its_own_folder_and_neither_root_nor_neighbours():
    box = get_session_sandbox("abc-123")
    get_session_sandbox("bbb-222")
    tries = "import os\nfor path in ('/app/..', '..', '/workspace', '/app/../bbb-222', '/'):\n    try:\n"
    tries += "        print(path, sorted(os.listdir(path)))\n    except OSError:\n        print(path)\n"
    shown = box.execute(tries).stdout
    assert "bbb-222" not in shown.replace("/app/../bbb-222", "")
    assert "abc-123" not in shown
    assert box.execute("import os; print(os.listdir('/app'))").stdout == "['user_code.py']\n"


# Requirement: Session Persistence


# Scenario: Persist files across executions
def test_a_file_written_in_one_execution_is_read_in_the_next():
    box = get_session_sandbox("abc-123")
    first = box.execute("with open('/app/state.json', 'w') as f: f.write('{\"count\": 1}')")
    second = box.execute("with open('/app/state.json', 'r') as f: print(f.read())")
    assert '{"count": 1}' in second.stdout
    assert "state.json" in first.files_modified


# Scenario: Track file changes per execution
def test_changed_and_created_files_are_told_apart():
    box = get_session_sandbox("abc-123")
    write_session_file("abc-123", "data.csv", "a,b\n")
    result = box.execute("open('data.csv', 'a').write('1,2'); open('output.txt', 'w').write('x')")
    assert "data.csv" in result.files_modified
    assert result.files_created == ["output.txt"]


# Requirement: Session Deletion


# Scenario: Delete session workspace
def test_a_deleted_session_is_gone_with_its_files_and_comes_back_empty():
    get_session_sandbox("abc-123").execute("import os; os.makedirs('a/b'); open('a/b/c.txt', 'w').write('x')")
    delete_session_workspace(session_id="abc-123")
    assert os.listdir("workspace") == []
    get_session_sandbox("abc-123")
    assert os.listdir("workspace/abc-123") == [".metadata.json"]


# Scenario: Prevent path traversal in deletion
def test_a_traversing_id_is_refused_and_nothing_is_deleted(tmp_path):
    victim = tmp_path.parent / f"victim-{uuid.uuid4().hex}"
    victim.mkdir()
    Path("workspace").mkdir()
    for bad in ("../../../tmp", f"../../{victim.name}", "..", ".", "", "a/b", "a\\b", "a\0b", "é", "x" * 129):
        with pytest.raises(ValueError, match="invalid session id"):
            delete_session_workspace(session_id=bad)
    assert victim.is_dir()
    victim.rmdir()


# Scenario: Safe deletion when workspace missing
def test_deleting_a_session_that_is_not_there_is_no_error():
    delete_session_workspace(session_id="nonexistent-123")
    Path("workspace").mkdir()
    delete_session_workspace(session_id="nonexistent-123")


# Requirement: Session Context in Logging


# Scenario: Log session creation
def test_creation_is_logged_with_id_and_workspace(logger, events):
    session_id, box = create_session_sandbox(logger=logger)
    assert events.fields("session.created") == [
        {"session_id": session_id, "workspace_path": str(box.workspace)}
    ]


# Scenario: Log session retrieval
def test_retrieval_is_logged_with_the_id(logger, events):
    get_session_sandbox(session_id="abc-123", logger=logger)
    assert events.fields("session.retrieved") == [
        {"session_id": "abc-123", "workspace_path": "workspace/abc-123"}
    ]


# Scenario: Log session deletion
def test_deletion_is_logged_with_the_id(logger, events):
    get_session_sandbox("abc-123")
    delete_session_workspace(session_id="abc-123", logger=logger)
    assert events == [("info", "session.deleted", {"session_id": "abc-123"})]


# Scenario: Include session ID in execution logs
def test_execution_events_carry_the_session_id(logger, events):
    session_id, box = create_session_sandbox(logger=logger)
    box.execute("pass")
    for name in ("execution.start", "execution.complete"):
        assert [fields["session_id"] for fields in events.fields(name)] == [session_id]


# Requirement: Session Metadata in Results


# Scenario: Include session ID in result metadata
def test_a_result_names_its_session():
    session_id, box = create_session_sandbox()
    assert box.execute("pass").metadata["session_id"] == session_id


# Scenario: Workspace path reflects session
def test_a_result_names_the_sessions_workspace():
    result = get_session_sandbox("abc-123").execute("pass")
    assert Path(result.workspace_path) == Path("workspace/abc-123").absolute()


# Requirement: Backwards Compatibility


# Scenario: Non-session sandbox usage unchanged
def test_a_sandbox_without_a_session_works_in_workspace_and_names_none():
    result = create_sandbox(runtime=RuntimeType.PYTHON).execute("print('as before')")
    assert result.stdout == "as before\n"
    assert Path(result.workspace_path) == Path("workspace").absolute()
    assert "session_id" not in result.metadata
    assert not Path("workspace/.metadata.json").exists()


# Scenario: Explicit workspace parameter still works
def test_an_explicit_workspace_is_used_without_a_session():
    result = create_sandbox(workspace=Path("custom_workspace")).execute("open('x.txt', 'w').write('x')")
    assert sorted(os.listdir("custom_workspace")) == ["user_code.py", "x.txt"]
    assert "session_id" not in result.metadata


# Scenario: Public API surface extended additively
def test_session_names_are_exported_beside_the_older_ones():
    older = {"create_sandbox", "BaseSandbox", "PythonSandbox", "ExecutionPolicy", "SandboxResult"}
    older |= {"RuntimeType", "SandboxLogger", "load_policy"}
    newer = {"create_session_sandbox", "get_session_sandbox", "delete_session_workspace"}
    newer |= {"list_session_files", "read_session_file", "write_session_file", "delete_session_path"}
    assert older | newer <= set(sandbox.__all__)
    assert all(hasattr(sandbox, name) for name in older | newer)


# Success criteria of the proposal, as far as no scenario above is the same


# 3. Host code can list/read/write files in session workspaces (download that CSV file)
def test_the_host_downloads_a_file_that_the_code_made():
    session_id, box = create_session_sandbox()
    box.execute("import csv; csv.writer(open('report.csv', 'w')).writerow(['a', 1])")
    assert list_session_files(session_id, pattern="*.csv") == ["report.csv"]
    assert read_session_file(session_id, "report.csv") == b"a,1\r\n"
    write_session_file(session_id, "notes/todo.txt", "later")
    assert box.execute("print(open('notes/todo.txt').read())").stdout == "later\n"
    delete_session_path(session_id, "report.csv")
    assert list_session_files(session_id) == ["notes/todo.txt", "user_code.py"]


# 5. All file operations reject path traversal attempts
@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/passwd", "..", ".", "", "a\0b", "..\\x"])
def test_every_file_operation_refuses_a_path_that_leads_out(path):
    session_id, _ = create_session_sandbox()
    calls = [
        lambda: read_session_file(session_id, path),
        lambda: write_session_file(session_id, path, b"x"),
        lambda: delete_session_path(session_id, path, recursive=True),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="invalid session path"):
            call()
