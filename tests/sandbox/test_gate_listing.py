"""Listings of folders, from a guest that calls the raw functions."""

from __future__ import annotations

import os
import struct

import pytest

TEXT, OUT = 0x1000, 0x2000
DIRECTORY = 2
READ = 1 << 1
APP = 3
ENOMEM = 48
SECRET = "the host's own"


def listing(raw):
    """The entries of a raw listing: name, whole or cut off."""
    place, names = 0, []
    while place + 24 <= len(raw):
        length = struct.unpack_from("<I", raw, place + 16)[0]
        names.append(raw[place + 24 : place + 24 + length])
        place += 24 + length
    return names


def read_listing(guest, fd, *, cookie=0, size=64):
    """The names in one answer of a listing, and the place where the next one begins."""
    assert guest.call("fd_readdir", fd, TEXT, size, cookie, OUT) == 0
    raw = guest.get(TEXT, guest.number())
    whole = [name for name in listing(raw) if name]
    return whole, cookie + len(whole)


@pytest.mark.parametrize("size", [0, 1, 23, 24, 25, 26, 30, 37, 38, 39, 60, 80, 100, 150, 300, 4096])
def test_a_listing_shows_no_hidden_name_whatever_its_buffer(gated, size):
    for name in (".metadata.json", ".metadata.json.tmp", ".METADATA.JSON", "config.json", ".session"):
        (gated.app / name).write_text(SECRET)
    guest = gated(host_only=("config.json", ".session"))
    cookie, seen = 0, set()
    for _ in range(100):
        assert guest.call("fd_readdir", APP, TEXT, size, cookie, OUT) == 0
        used = guest.number()
        raw = guest.get(TEXT, used)
        for piece in (b"meta", b"META", b"conf", b"sess"):
            assert piece not in raw
        whole = [name for name in listing(raw) if name.strip(b"\0")]
        seen.update(whole)
        place, last = 0, None
        while place + 24 <= len(raw):
            last = struct.unpack_from("<Q", raw, place)[0]
            place += 24 + struct.unpack_from("<I", raw, place + 16)[0]
        if used < size or last is None or last == cookie:
            break
        cookie = last
    if size >= 300:
        assert {b"file", b"folder", b"link"} <= seen


def test_a_listing_goes_on_where_it_was_whatever_is_listed_and_removed_meanwhile(gated):
    for number in range(50):
        (gated.app / "folder" / f"{number:02}").mkdir()
    guest = gated()
    fd, other = (guest.open("folder", flags=DIRECTORY, rights=READ) for _ in range(2))
    names, cookie = read_listing(guest, fd, size=24 + 8)
    while True:
        read_listing(guest, other)
        for name in names[:1]:
            guest.call("path_remove_directory", fd, *guest.text(name))
        more, cookie = read_listing(guest, fd, cookie=cookie, size=24 + 8)
        if not more:
            break
        names = more[:1] + names
    assert sorted(set(names)) == [*(b"%02d" % number for number in range(50)), b"inner"]


def test_a_listing_that_would_fill_the_memory_of_the_host_is_refused(gated, monkeypatch):
    monkeypatch.setattr("sandbox.wasm.listing.MOST_LISTED_BYTES", 5 * (24 + 8 + 8))
    for number in range(10):
        (gated.app / "folder" / f"{number:08}").touch()
    guest = gated()
    fd = guest.open("folder", flags=DIRECTORY, rights=READ)
    assert guest.call("fd_readdir", fd, TEXT, 4096, 0, OUT) == ENOMEM
    before = len(os.listdir("/proc/self/fd"))
    assert guest.call("fd_readdir", fd, TEXT, 4096, 3, OUT) == ENOMEM
    assert len(os.listdir("/proc/self/fd")) == before


def test_listings_that_take_too_much_together_are_read_again(gated, monkeypatch):
    monkeypatch.setattr("sandbox.wasm.gate.MOST_LISTED_BYTES", 300)
    guest = gated()
    folders = [guest.open(".", flags=DIRECTORY, rights=READ) for _ in range(5)]
    for _ in range(2):
        assert {len(read_listing(guest, fd, size=4096)[0]) for fd in folders} == {6}
        assert {len(read_listing(guest, fd, size=4096, cookie=2)[0]) for fd in folders} == {4}
