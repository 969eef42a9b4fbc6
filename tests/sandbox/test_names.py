"""Which names are the host's alone."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from sandbox.wasm.names import HOST_ONLY_PREFIX, HostOnlyNames

HIDDEN = HostOnlyNames((".session", "config.json"))
CASES = st.lists(st.booleans(), min_size=14, max_size=14)


@given(
    upper=CASES,
    rest=st.text(string.ascii_letters + ".~- é", max_size=5),
    folders=st.lists(st.sampled_from(["a", ".", "..", ""])),
)
def test_the_name_is_hidden_in_any_case_at_any_depth_with_anything_behind_it(upper, rest, folders):
    name = "".join(c.upper() if up else c for c, up in zip(HOST_ONLY_PREFIX, upper, strict=True))
    path = "/".join([*folders, name + rest])
    assert HIDDEN.hides(path.encode())
    assert HIDDEN.hides(f"{path}/below".encode())


@given(st.text("abcdefgh./-_ 0123", max_size=30))
def test_other_names_are_free(path):
    assert not HIDDEN.hides(path.encode())


def test_further_names_are_hidden_whole_and_only_whole():
    assert HIDDEN.hides(b"sub/CONFIG.json")
    assert HIDDEN.hides(b".Session")
    assert not HIDDEN.hides(b"config.json.bak")
    assert not HIDDEN.hides(b"my.session")


@given(
    place=st.integers(0, len(HOST_ONLY_PREFIX)),
    ignored=st.text(
        "\u00ad\u034f\u115f\u180b\u200b\u200d\u202e\u2060\u3164\ufe0f\ufeff\U000e0041", min_size=1
    ),
)
def test_what_some_file_systems_ignore_in_a_name_does_not_uncover_it(place, ignored):
    for name in (HOST_ONLY_PREFIX, ".session"):
        assert HIDDEN.hides((name[:place] + ignored + name[place:]).encode())


@given(st.binary(max_size=40))
def test_any_bytes_get_an_answer(path):
    assert HIDDEN.hides(path) in (True, False)
