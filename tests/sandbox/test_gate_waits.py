"""Waits, from a guest that calls the raw functions."""

from __future__ import annotations

import struct
import time

import pytest

TEXT, OUT = 0x1000, 0x2000
END = 4 << 16  # of the memory
FAR = 0xFFFF_FFF0
ALL = 0xFFFF_FFFF
EBADF, EINVAL = 8, 28


def subscription(kind=0, clock=1, timeout=0, flags=0, user=7):
    return struct.pack("<QB7xI4xQQH6x", user, kind, clock, timeout, 0, flags)


def event(guest, number=0):
    return struct.unpack("<QHB", guest.get(OUT + 32 * number, 11))


@pytest.mark.parametrize(
    "arguments",
    [
        (FAR, OUT, 1, OUT),
        (TEXT, FAR, 1, OUT),
        (TEXT, OUT, 1, FAR),
        (TEXT, OUT, 0, OUT),
        (TEXT, OUT, ALL, OUT),
        (END - 8, OUT, 1, OUT),
    ],
)
def test_a_wait_for_what_is_not_in_the_memory_is_refused(gated, arguments):
    assert gated().call("poll_oneoff", *arguments) not in (0, "trap")


def test_a_wait_ends_with_its_clock(gated):
    guest = gated()
    guest.put(TEXT, subscription(timeout=20_000_000))
    started = time.monotonic()
    assert guest.call("poll_oneoff", TEXT, OUT, 1, OUT + 64) == 0
    assert time.monotonic() - started >= 0.02
    assert (guest.number(OUT + 64), event(guest)) == (1, (7, 0, 0))


def test_a_wait_for_a_moment_that_is_past_ends_at_once(gated):
    guest = gated()
    guest.put(TEXT, subscription(timeout=1, flags=1))
    assert guest.call("poll_oneoff", TEXT, OUT, 1, OUT + 64) == 0


@pytest.mark.parametrize("kind", [3, 99, 255])
def test_an_unknown_kind_of_wait_is_an_error_and_not_a_hang(gated, kind):
    guest = gated()
    guest.put(TEXT, subscription(kind=kind))
    assert guest.call("poll_oneoff", TEXT, OUT, 1, OUT + 64) in (0, EINVAL)


@pytest.mark.parametrize(("kind", "fd"), [(1, 99), (2, 99), (1, ALL)])
def test_a_wait_for_a_file_that_is_not_open_says_so(gated, kind, fd):
    guest = gated()
    guest.put(TEXT, subscription(kind=kind, clock=fd))
    assert guest.call("poll_oneoff", TEXT, OUT, 1, OUT + 64) == 0
    assert event(guest) == (7, EBADF, kind)


@pytest.mark.parametrize("clock", [9, ALL])
def test_a_wait_for_an_unknown_clock_is_not_a_hang(gated, clock):
    guest = gated()
    guest.put(TEXT, subscription(clock=clock, timeout=1 << 62, flags=1))
    assert guest.call("poll_oneoff", TEXT, OUT, 1, OUT + 64) in (0, EINVAL, "trap")


def test_a_wait_for_centuries_ends_when_it_must(gated):
    guest = gated(deadline=time.monotonic() + 0.2)
    guest.put(TEXT, subscription(timeout=(1 << 64) - 1) * 8)
    assert guest.call("poll_oneoff", TEXT, OUT, 8, OUT + 0x800) == "trap"
    assert guest.ending.stopped_by == "timeout"
