"""What is sent to an agent."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mas.config import CONTROL_CHARACTERS, MESSAGE_MAX_CHARACTERS
from mas.errors import InvalidMessage

if TYPE_CHECKING:
    from mas.tmux import Pane, Tmux

__all__ = ["check_text", "deliver"]


def check_text(text: str) -> bytes:
    """The bytes of a message; InvalidMessage where it holds what cannot be typed."""
    if not text:
        raise InvalidMessage("it is empty", "write something")
    if len(text) > MESSAGE_MAX_CHARACTERS:
        reason = f"it is longer than {MESSAGE_MAX_CHARACTERS:,} characters"
        raise InvalidMessage(reason, "put it into a file of the session and send its name")
    if re.search(f"[{CONTROL_CHARACTERS}]", text):
        reason = "it holds control characters other than tab, newline and return"
        raise InvalidMessage(reason, "take them out")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidMessage("it is no valid Unicode", "write it in UTF-8") from None


def deliver(tmux: Tmux, pane: Pane, text: bytes, *, submit: bool) -> None:
    """Type a checked message into a pane, byte for byte, then Enter."""
    tmux.paste(pane, text, submit=submit)
