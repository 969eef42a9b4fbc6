"""The side-by-side run: how it asks, compares and shows."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))  # its scripts import each other by name

from field import page, record  # noqa: E402 - found only now
from field.contestants import CONTESTANTS, OURS, Place  # noqa: E402
from field.conversation import Silent, Worker, run_once  # noqa: E402
from field.pieces import Piece, pieces, program  # noqa: E402
from field.rounds import Field, Samples, compare_outputs, measure  # noqa: E402

NATIVE = Place((sys.executable, str(BENCHMARKS / "workers" / "with_native.py")))
PRINT = Piece("print", "a print", "fresh", {"code": program("print")}, "ms")


def test_a_worker_runs_code_in_a_folder_of_so_many_files():
    with Worker(NATIVE) as worker:
        code = "import os; print(len(os.listdir()))"
        answers = [worker.ask("fresh", within=60, code=code, files=files) for files in (0, 3)]
    assert [answer["output"] for answer in answers] == ["0\n", "3\n"]
    assert all(answer["value"] > 0 for answer in answers)


def test_a_worker_says_why_it_cannot():
    with Worker(NATIVE) as worker:
        assert worker.ask("turn", within=60, code="1") == {"cannot": "a subprocess ends with its code"}


def test_a_worker_that_does_not_answer_is_ended():
    with Worker(NATIVE) as worker:
        with pytest.raises(Silent, match="no answer in 1 s"):
            worker.ask("fresh", within=1, code="import time; time.sleep(60)")
        with pytest.raises(Silent, match="its process has ended"):
            worker.ask("fresh", within=1, code="1")


def test_a_first_result_comes_with_its_memory():
    seconds, answer = run_once(NATIVE, program("print"), environment={})
    assert answer["output"] == "2\n"
    assert seconds > 0
    assert answer["peak_bytes"] > 1_000_000


def test_contestants_are_sampled_in_rounds():
    field = Field((OURS,))
    try:
        taken = measure(field, PRINT, rounds=2, seconds=60)
    finally:
        field.close()
    assert len(taken[OURS].rounds) == 2
    assert record.entry_of(PRINT, taken)["by"][OURS]["median"] > 0


def test_a_contestant_that_cannot_is_not_asked_again():
    field = Field((OURS,))
    try:
        taken = measure(field, Piece("fly", "fly", "fly", {}, "ms"), rounds=2, seconds=60)
    finally:
        field.close()
    assert taken[OURS].rounds == []
    assert "fly" in taken[OURS].cannot


def test_another_answer_gives_no_figure():
    taken = {OURS: Samples([[1.0]]), "native python": Samples([[1.0]])}
    compare_outputs({OURS: "2\n", "native python": "3\n"}, PRINT, taken)
    assert taken[OURS].rounds == [[1.0]]
    assert (taken["native python"].rounds, taken["native python"].cannot) == ([], "another answer: '3'")


def test_ratios_are_taken_within_rounds():
    taken = {
        OURS: Samples([[1.0], [10.0]]),
        "slow": Samples([[3.0], [30.0]]),
        "fast": Samples([[0.5], [5.0]]),
    }
    entry = record.entry_of(PRINT, taken)
    assert entry["times_better_than"] == {"slow": 3.0, "fast": 0.5}
    assert entry["best_peer"] == "fast"
    assert entry["by"][OURS]["median"] == 5500


def test_more_per_second_is_better():
    rate = Piece("rate", "a rate", "rate", {}, "per second")
    entry = record.entry_of(rate, {OURS: Samples([[100.0]]), "peer": Samples([[50.0]])})
    assert (entry["best_peer"], entry["times_better_than"]) == ("peer", {"peer": 2.0})


def test_a_loss_is_shown_as_it_is():
    entry = record.entry_of(PRINT, {OURS: Samples([[2.0]]), "peer": Samples([[1.0]])})
    assert "- `print`: peer 2 times" in page.losses({"print": entry})


def test_a_cost_that_doubles_with_its_size_grows_by_the_power_of_one():
    members = [{"size": size, "by": {OURS: {"median": 3.0 * size}}} for size in (10, 100, 1_000)]
    assert page.power(members, OURS) == pytest.approx(1.0)


def test_every_piece_has_a_key_of_its_own():
    keys = [piece.key for piece in pieces()]
    assert len(keys) == len(set(keys))


def test_every_contestant_is_named_once():
    names = [contestant.name for contestant in CONTESTANTS]
    assert len(names) == len(set(names))
