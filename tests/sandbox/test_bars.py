"""Bars: seen by a person who waits, and by nobody else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

CODE = """
import sys, time
from sandbox.bars import steps_bar
end = time.monotonic() + float(sys.argv[1])
with steps_bar("Pruning") as move:
    while time.monotonic() < end:
        move(3, 7)
        time.sleep(0.01)
"""


@pytest.mark.parametrize(("seconds", "shown"), [(0.1, False), (2.0, True)])
def test_a_bar_appears_where_work_takes_more_than_a_moment(seconds, shown):
    main, side = pty.openpty()
    words = [sys.executable, "-c", CODE, str(seconds)]
    with subprocess.Popen(words, stderr=side, env=os.environ | {"TERM": "xterm"}) as process:
        os.close(side)
        seen = read_all(main)
    assert process.returncode == 0
    assert (b"Pruning" in seen, b"3/7" in seen) == (shown, shown)


def test_a_bar_without_a_terminal_is_silent():
    done = subprocess.run([sys.executable, "-c", CODE, "1.5"], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def read_all(descriptor):
    chunks = []
    try:
        while chunk := os.read(descriptor, 65536):
            chunks.append(chunk)
    except OSError:  # how a terminal says that the other side is closed
        pass
    os.close(descriptor)
    return b"".join(chunks)
