"""What a journal says of the files that it was told about."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandbox.wasm.journal import MOST_NAME_BYTES, Journal

NAMES = ["a", "b", "c"]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(NAMES)),
        st.tuples(st.just("remove"), st.sampled_from(NAMES)),
        st.tuples(st.just("move"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
    ),
    max_size=12,
)


@given(before=st.sets(st.sampled_from(NAMES)), steps=STEPS)
def test_the_lists_tell_the_difference_between_before_and_after(before, steps):
    journal, there, written = Journal(), set(before), set()
    for step, *names in steps:
        if step == "write":
            journal.wrote(names[0], existed=names[0] in there)
            there.add(names[0])
            written.add(names[0])
        elif step == "remove" and names[0] in there:
            journal.removed(names[0])
            there.discard(names[0])
            written.discard(names[0])
        elif step == "move" and names[0] in there and names[0] != names[1]:
            journal.moved(*names, replaced=names[1] in there)
            there = there - {names[0]} | {names[1]}
            written = written - {names[0]} | {names[1]}
    assert journal.created() == sorted(there - before)
    assert journal.deleted() == sorted(before - there)
    assert journal.modified() == sorted(written)


def test_names_fill_a_journal_only_so_far():
    journal, name = Journal(), "x" * 4096
    for number in range(MOST_NAME_BYTES // 4096 + 1):
        journal.wrote(f"{name}{number}", existed=False)
    assert journal.is_full
    for number in range(1000):
        journal.removed(f"{name}{number}")
    assert not journal.is_full
