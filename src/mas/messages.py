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
        raise InvalidMessage("it is empty")
    if len(text) > MESSAGE_MAX_CHARACTERS:
        raise InvalidMessage(f"it is longer than {MESSAGE_MAX_CHARACTERS:,} characters")
    if re.search(f"[{CONTROL_CHARACTERS}]", text):
        raise InvalidMessage("it holds control characters other than tab, newline and return")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidMessage("it holds half of a surrogate pair") from None


def deliver(tmux: Tmux, pane: Pane, text: bytes, *, submit: bool) -> None:
    """Type a checked message into a pane, byte for byte, then Enter."""
    tmux.paste(pane, text, submit=submit)
