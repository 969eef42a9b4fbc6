"""Captured memory, and what two captures share."""

from __future__ import annotations

import pytest

from sandbox.snapshots import BLOCK_BYTES, MOST_MEMORY_BYTES, Snapshot, _blocks


def test_ranges_are_cut_at_the_blocks_of_the_memory():
    start = BLOCK_BYTES - 4096
    cut = list(_blocks([(start, 8192), (3 * BLOCK_BYTES, BLOCK_BYTES), (9 * BLOCK_BYTES, 4096)]))
    assert cut == [
        (start, 4096),
        (BLOCK_BYTES, 4096),
        (3 * BLOCK_BYTES, BLOCK_BYTES),
        (9 * BLOCK_BYTES, 4096),
    ]


def test_a_snapshot_holds_its_pieces_by_place():
    data = b"a" * 4096 + b"b" * 8192
    found = Snapshot.from_file(1 << 20, [(0, 4096), (8192, 8192)], memoryview(data), (9,), 5)
    assert found.pieces == {(0, 4096): b"a" * 4096, (8192, 8192): b"b" * 8192}
    assert (found.bytes, found.descriptors, found.clock_ns) == (12288, (9,), 5)


@pytest.mark.parametrize(
    ("size", "places", "total"),
    [
        (MOST_MEMORY_BYTES + 1, [], 0),
        (-1, [], 0),
        (8192, [(4096, 8192)], 8192),
        (8192, [(0, 4096), (0, 4096)], 8192),
        (8192, [(0, 4096)], 4095),
        (8192, [(0, 4096)], 4097),
    ],
)
def test_pieces_that_do_not_fit_are_refused(size, places, total):
    with pytest.raises(ValueError, match="its "):
        Snapshot.from_file(size, places, memoryview(bytes(total)), (), 0)


def test_turns_in_a_row_share_what_they_did_not_change(tmp_path):
    from sandbox.sessions import create_session_sandbox
    from sandbox.sessions.residents import live_sessions

    _, box = create_session_sandbox(workspace_root=tmp_path, stateful=True, save_within_seconds=1000)
    box.execute("import os\ntable = os.urandom(4 << 20)")
    live = live_sessions.get(tmp_path, box.session_id)
    box.hibernate()
    box.execute("x = 1")
    with live._turn:
        first = live._pending
    box.execute("x = 2")
    with live._turn:
        second = live._pending
    shared = sum(len(piece) for place, piece in second.pieces.items() if first.pieces.get(place) is piece)
    assert shared > 3 << 20
    live_sessions.forget(tmp_path, box.session_id)
