"""Every error says what happened and, after a semicolon, what to do next."""

from __future__ import annotations

from pathlib import Path

import pytest

from mas import errors

ID = "550e8400-e29b-41d4-a716-446655440000"
BRANCHES = {"MasError", "Conflict", "TmuxError"}
MESSAGES = {
    # Its reason is a rule, and a rule is what to do.
    errors.InvalidConfiguration("agents", "Field required"): "agents: Field required",
    errors.InvalidMessage("it is empty", "write something"): (
        "this message cannot be sent: it is empty; write something"
    ),
    errors.InvalidSessionId("x"): "invalid session id 'x': use a lower-case version 4 UUID",
    errors.RunNotFound(ID): f"no session {ID}; list the sessions to see which there are",
    errors.AgentNotFound(ID, "45"): f"session {ID} has no agent '45'; show the session to see its agents",
    errors.RunActive(ID): f"session {ID} is active; stop it first",
    errors.RunNotActive(ID): f"session {ID} is not active; restore it first",
    errors.AgentNotRunning(ID, "11"): f"agent 11 of session {ID} is not running; restart it first",
    errors.WorkspaceGone(ID): (
        f"the folder of session {ID} is gone; put it back, or stop the session and delete it"
    ),
    errors.LegacyRunning("mas-tmux", ID): (
        f"mas-tmux is already running (session {ID}); attach to it, or stop it first"
    ),
    errors.SessionIdTaken(ID, ID): f"session id {ID} is not free: {ID} exists; choose another id",
    errors.IdempotencyMismatch(ID): (
        f"this idempotency key made session {ID} from another configuration; use a new key"
    ),
    errors.TmuxMissing("tmux is not installed"): (
        "tmux is not installed; install tmux 3.2 or newer (Debian and Ubuntu: apt install tmux)"
    ),
    errors.TmuxFailed("new-session", "no space for new pane", "mas"): (
        "tmux new-session failed: no space for new pane; try again, and if it stays so, "
        "tmux -L mas list-sessions shows whether its server answers"
    ),
    errors.TemplateUnusable(Path("unit/10/x"), "is a socket"): (
        "the template unit/10/x is a socket; mend it or move it out of the templates, then start again"
    ),
    errors.WorkspaceFailed(Path("/data/sessions"), "No space left on device"): (
        "/data/sessions: No space left on device; "
        "see that its disk has room and that you may write there, then try again"
    ),
}


@pytest.mark.parametrize("error", MESSAGES, ids=lambda error: type(error).__name__)
def test_a_message_says_what_happened_and_what_to_do_next(error):
    assert str(error) == MESSAGES[error]


def test_every_error_that_is_raised_has_its_message_here():
    assert {type(error).__name__ for error in MESSAGES} | BRANCHES == set(errors.__all__)
