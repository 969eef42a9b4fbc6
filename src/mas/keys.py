"""What a terminal sends, read as submitted texts and control keys."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import termios
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Control", "Keys", "Submitted", "single_keys"]

PASTE_START, PASTE_END = "\x1b[200~", "\x1b[201~"
PASTE_MODE_ON, PASTE_MODE_OFF = b"\x1b[?2004h", b"\x1b[?2004l"
ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|[^\[O])", re.DOTALL)
ERASE, ERASE_LINE, ENTER = "\x7f\x08", "\x15", "\r\n"
INPUT_FLAGS, LOCAL_FLAGS = 0, 3  # places in what termios.tcgetattr gives
CONTROLS = {"\x03": "interrupt", "\x04": "end"}
ECHOED_CHARACTERS = 160
"""A pasted line up to this long is echoed as typed; a longer text is announced, and shown once submitted."""


@dataclass(frozen=True)
class Submitted:
    """A text that was finished with Enter; `echoed` when the pane shows all of it already."""

    text: str
    echoed: bool = True


@dataclass(frozen=True)
class Control:
    """A key that is no text: "interrupt" or "end"."""

    name: str


@dataclass
class Keys:
    """Turns bytes of a terminal into events; a pasted text is taken as it is, whatever it contains."""

    echo: Callable[[str], object]
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )
    _line: list[str] = field(default_factory=list)
    _held: str = ""
    _paste: list[str] | None = None
    _echoed: bool = True

    def feed(self, data: bytes) -> Iterator[Submitted | Control]:
        """The events that `data` completes; an incomplete sequence waits for the next call."""
        text, self._held = self._held + self._decoder.decode(data), ""
        at = 0
        while at < len(text):
            if self._paste is not None:
                at = self._read_paste(self._paste, text, at)
            elif text[at] == "\x1b":
                at = self._read_escape(text, at)
            else:
                yield from self._press(text[at])
                at += 1

    def take(self) -> Submitted | None:
        """The text so far, which is then begun anew; None when there is none."""
        text, echoed = "".join(self._line), self._echoed
        self._line, self._echoed = [], True
        return Submitted(text, echoed) if text else None

    def _press(self, key: str) -> Iterator[Submitted | Control]:
        if key in ENTER:
            yield self.take() or Submitted("")
        elif key in CONTROLS:
            if CONTROLS[key] == "interrupt" or not self._line:
                yield Control(CONTROLS[key])
        elif key in ERASE:
            self._erase(1)
        elif key == ERASE_LINE:
            self._erase(len(self._line))
        elif key.isprintable() or key == "\t":
            self._line.append(key)
            self.echo(key)

    def _erase(self, count: int) -> None:
        count = min(count, len(self._line))
        del self._line[len(self._line) - count :]
        if self._echoed:
            self.echo("\b \b" * count)

    def _read_escape(self, text: str, at: int) -> int:
        found = ESCAPE_SEQUENCE.match(text, at)
        if found is None:
            self._held = text[at:]
            return len(text)
        if found[0] == PASTE_START:
            self._paste = []
        return found.end()

    def _read_paste(self, paste: list[str], text: str, at: int) -> int:
        end = text.find(PASTE_END, at)
        if end >= 0:
            paste.append(text[at:end])
            self._paste = None
            self._add_paste("".join(paste))
            return end + len(PASTE_END)
        # The end marker may be cut in two by the read: its possible beginning waits.
        keep = next((n for n in range(len(PASTE_END) - 1, 0, -1) if text.endswith(PASTE_END[:n], at)), 0)
        paste.append(text[at : len(text) - keep])
        self._held = text[len(text) - keep :]
        return len(text)

    def _add_paste(self, text: str) -> None:
        # Terminals send a pasted line end as CR; a text that has LF is left as it is.
        text = text if "\n" in text else text.replace("\r", "\n")
        self._line.extend(text)
        if len(text) <= ECHOED_CHARACTERS and text.isprintable():
            self.echo(text)
        else:
            self._echoed = False
            self.echo(f"[{len(text):,} characters pasted]")


@contextlib.contextmanager
def single_keys(terminal: int) -> Iterator[None]:
    """Every key of `terminal` arrives at once and unchanged, in lines of any length; undone at the end."""
    if not os.isatty(terminal):
        yield
        return
    before = termios.tcgetattr(terminal)
    unprocessed = list(before)
    unprocessed[INPUT_FLAGS] &= ~(
        termios.ICRNL | termios.INLCR | termios.IGNCR | termios.IXON | termios.ISTRIP
    )
    unprocessed[LOCAL_FLAGS] &= ~(termios.ICANON | termios.ECHO | termios.ISIG | termios.IEXTEN)
    termios.tcsetattr(terminal, termios.TCSANOW, unprocessed)
    os.write(terminal, PASTE_MODE_ON)
    try:
        yield
    finally:
        os.write(terminal, PASTE_MODE_OFF)
        termios.tcsetattr(terminal, termios.TCSANOW, before)
