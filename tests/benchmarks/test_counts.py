"""The check that counts what executions cost."""

import importlib.util
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "benchmarks" / "counts.py"
RECORDED = {"calls": {"print": {"fd_write": 100.0}}, "syscalls": {"fresh": {"read": 2.0}}}


@pytest.fixture(scope="module")
def counts():
    spec = importlib.util.spec_from_file_location("counts", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_tenth_more_is_allowed(counts):
    assert counts.compare(RECORDED, {"calls": {"print": {"fd_write": 110.0}}}) == ([], [])


def test_more_than_a_tenth_more_is_named(counts):
    grown, shrunk = counts.compare(RECORDED, {"calls": {"print": {"fd_write": 111.0}}})
    assert grown == ["calls of print, fd_write: 100 recorded, 111 counted"]
    assert shrunk == []


def test_a_call_that_was_not_made_before_is_named(counts):
    grown, _ = counts.compare(RECORDED, {"calls": {"print": {"fd_write": 100.0, "fd_read": 1.0}}})
    assert grown == ["calls of print, fd_read: 0 recorded, 1 counted"]


def test_less_is_named_and_does_not_fail(counts):
    found = counts.compare(RECORDED, {"calls": {"print": {"fd_write": 50.0}}})
    assert found == ([], ["calls of print, fd_write: 100 recorded, 50 counted"])
    assert counts.report(found) == 0


def test_part_of_a_system_call_more_is_noise(counts):
    assert counts.compare(RECORDED, {"syscalls": {"fresh": {"read": 2.7}}}) == ([], [])
    assert counts.compare(RECORDED, {"syscalls": {"fresh": {"read": 3.0}}})[0] != []


def test_the_lesser_of_two_counts_is_kept(counts):
    one, other = {"fresh": {"read": 3.0, "openat": 1.0}}, {"fresh": {"read": 2.0}}
    assert counts.lesser(one, other) == {"fresh": {"read": 2.0, "openat": 0.0}}


def test_what_cannot_be_counted_here_is_not_compared(counts):
    assert counts.compare(RECORDED, {"calls": {"print": {"fd_write": 100.0}}}) == ([], [])


def test_growth_fails_the_check(counts):
    assert counts.report((["calls of print, fd_write: 100 recorded, 111 counted"], [])) == 1
