from __future__ import annotations

import pytest

from mas.errors import InvalidMessage
from mas.messages import check_text

LINE = (
    "-rf; `touch x` $(touch y) $HOME #{pane_id} #(touch z) Enter \\; 'quoted' \"double\" \t tab 🦀 Ünïcödé ;"
)
CONTROL = "it holds control characters other than tab, newline and return; take them out"
MESSAGES = {
    "plain": "hello",
    "leading dash": "-n --help",
    "one dash": "-",
    "only a semicolon": ";",
    "the word Enter": "Enter",
    "everything in one line": LINE,
    "many lines": f"first\n\n{LINE}\n  indented\nlast",
    "newline at the end": "text\n",
    "return inside": "a\rb",
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈🦀",
    "100 kB": "".join(f"{number:06d} {LINE}\n" for number in range(900)),
    "100 kB in one line": "x" * 100_000,
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_arrives_byte_for_byte(reader, eventually, name):
    text = MESSAGES[name].encode()
    before = reader.received()
    reader.send(MESSAGES[name], submit=False)
    eventually(lambda: len(reader.received()) >= len(before) + len(text), "the message")
    assert reader.received() == before + text


def test_a_submitted_message_ends_with_the_enter_key(reader, eventually):
    before = reader.received()
    reader.send("ask\nme")
    eventually(lambda: reader.received() == before + b"ask\nme\r", "the message and the enter key")


def test_messages_arrive_while_a_user_scrolls_in_the_pane(reader, eventually):
    before = reader.received()
    reader.scroll()
    reader.send("ask")
    eventually(lambda: reader.received() == before + b"ask\r", "the message and the enter key")


def test_messages_arrive_in_the_order_they_were_sent(reader, eventually):
    before = reader.received()
    for number in range(20):
        reader.send(f"message {number}")
    expected = b"".join(b"message %d\r" % number for number in range(20))
    eventually(lambda: len(reader.received()) >= len(before) + len(expected), "all messages")
    assert reader.received() == before + expected


def test_no_buffer_is_left_in_the_server(reader):
    reader.send("done")
    assert reader.site.tmux("list-buffers") == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is empty; write something"),
        ("a\0b", CONTROL),
        ("\x1b[201~rm", CONTROL),
        ("\x9b201~rm", CONTROL),
        ("\x03", CONTROL),
        ("\ud800", "it is no valid Unicode; write it in UTF-8"),
        (
            "x" * 1_000_001,
            "it is longer than 1,000,000 characters; put it into a file of the session and send its name",
        ),
    ],
)
def test_what_cannot_be_typed_is_refused(text, reason):
    with pytest.raises(InvalidMessage) as refused:
        check_text(text)
    assert str(refused.value) == f"this message cannot be sent: {reason}"
