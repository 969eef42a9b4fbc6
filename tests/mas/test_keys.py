import os
import pty
import termios

import pytest

from mas.keys import Control, Keys, Submitted, single_keys


def read(*chunks: bytes):
    shown: list[str] = []
    keys = Keys(echo=shown.append)
    events = [event for chunk in chunks for event in keys.feed(chunk)]
    return events, "".join(shown)


def test_enter_submits_what_was_typed_and_echoed():
    assert read(b"hello\r") == ([Submitted("hello")], "hello")


def test_a_paste_arrives_as_it_is_and_waits_for_enter():
    text = "-x; $(rm) `y` Enter\n\tzwei \u2713 \U0001f600\n"
    paste = b"\x1b[200~" + text.encode() + b"\x1b[201~"
    assert read(paste)[0] == []
    assert read(paste, b"\r")[0] == [Submitted(text, echoed=False)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_a_paste_may_be_cut_anywhere(size):
    data = b"\x1b[200~one\ntwo \x1b[20 \xf0\x9f\x98\x80\x1b[201~\r"
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    assert read(*chunks)[0] == [Submitted("one\ntwo \x1b[20 \U0001f600", echoed=False)]


def test_control_characters_inside_a_paste_are_text():
    assert read(b"\x1b[200~a\x03\x04b\x1b[201~\r")[0] == [Submitted("a\x03\x04b", echoed=False)]


def test_a_pasted_line_end_of_a_terminal_is_a_newline():
    assert read(b"\x1b[200~a\rb\x1b[201~\r")[0] == [Submitted("a\nb", echoed=False)]
    assert read(b"\x1b[200~a\r\nb\x1b[201~\r")[0] == [Submitted("a\r\nb", echoed=False)]


def test_a_short_pasted_line_is_echoed_as_if_typed():
    assert read(b"\x1b[200~hello\x1b[201~\r") == ([Submitted("hello")], "hello")


def test_erasing_takes_back_characters_and_the_line():
    assert read(b"abc\x7f\x7fx\r")[0] == [Submitted("ax")]
    assert read(b"abc\x15x\r")[0] == [Submitted("x")]
    assert read(b"\x7fx\r") == ([Submitted("x")], "x")


def test_control_keys_are_events_and_end_of_input_only_on_an_empty_line():
    assert read(b"\x03")[0] == [Control("interrupt")]
    assert read(b"\x04")[0] == [Control("end")]
    assert read(b"a\x04\r")[0] == [Submitted("a")]


def test_arrow_keys_and_other_sequences_are_no_text():
    assert read(b"a\x1b[A\x1b[1;5C\x1bOP", b"\x1b", b"[Db\r")[0] == [Submitted("ab")]


def test_bytes_that_are_no_utf8_do_not_stop_the_reader():
    assert read(b"\xff\xfea\r")[0] == [Submitted("\ufffd\ufffda")]


def test_a_line_longer_than_the_canonical_limit_arrives_whole():
    controller, terminal = pty.openpty()
    before = termios.tcgetattr(terminal)
    line = b"\x1b[200~" + b"0123456789" * 1_000 + b"\x1b[201~\r"
    with single_keys(terminal):
        assert os.read(controller, 100) == b"\x1b[?2004h"
        received, sent = b"", 0
        while len(received) < len(line):
            if sent < len(line):
                sent += os.write(controller, line[sent : sent + 1_000])
            received += os.read(terminal, 65_536)
    assert received == line
    assert termios.tcgetattr(terminal) == before
    os.close(controller)
    os.close(terminal)
