"""Samples taken in turns, so that a slow moment of the machine hits all contestants alike."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from field.contestants import CONTESTANTS, OURS, UNMETERED, Contestant, NotHere, Place
from field.conversation import Silent, Worker

if TYPE_CHECKING:
    from field.pieces import Piece

MOST_SECONDS_OF_ONE_ANSWER = 240.0
TURN_SECONDS = 0.1  # about how long a contestant samples before the next one has its turn
MOST_SAMPLES_OF_A_TURN = 5
FIRST_PIECES = ("fresh print", "survive")


@dataclass
class Samples:
    """What one contestant took for one piece of work, round by round."""

    rounds: list[list[float]] = field(default_factory=list)
    cannot: str = ""
    spent: float = 0.0
    each: float = 0.0  # seconds of the one that warmed up


class Field:
    """The contestants that can be set up here, with their processes."""

    def __init__(self, chosen: tuple[str, ...] = (), *, patient: bool = True) -> None:
        self._patient = patient  # whether those that take seconds do more than the first pieces
        self.missing: dict[str, str] = {}
        self._places: dict[str, Place] = {}
        self._workers: dict[tuple[str, int], Worker] = {}
        self.contestants = [one for one in CONTESTANTS if not chosen or one.name in chosen]
        for contestant in self.contestants:
            try:
                self._places[contestant.name] = contestant.prepare()
            except NotHere as why:
                self.missing[contestant.name] = str(why)

    def place(self, name: str) -> Place:
        """Where a contestant runs."""
        return self._places[name]

    def asked(self, piece: Piece) -> list[Contestant]:
        """Who is asked to do a piece of work."""
        usual = [one for one in self.contestants if one.name != UNMETERED or UNMETERED in piece.by]
        with_slow = piece.slow_too and (self._patient or piece.key in FIRST_PIECES)
        return [one for one in usual if with_slow or not one.is_slow]

    def ask(self, contestant: Contestant, piece: Piece) -> dict[str, Any]:
        """One sample, from a process that stays for the next."""
        arguments = dict(piece.arguments)
        if contestant.name in self.missing:
            return {"cannot": self.missing[contestant.name]}
        if arguments.get("callers", 1) > contestant.most_callers:
            return {"cannot": "an execution takes seconds, so more callers are not tried"}
        if contestant.name == UNMETERED:
            arguments["metered"] = False
        try:
            if piece.verb == "survive":
                return self._survive(contestant, **arguments)
            return self._ask(contestant, 0, piece.verb, **arguments)
        except Silent as why:
            for process in (0, 1):
                self._close(contestant.name, process)
            return {"cannot": str(why)}

    def _survive(self, contestant: Contestant, *, code: str, then: str) -> dict[str, Any]:
        """Variables that one process saves and another uses."""
        kept = self._ask(contestant, 0, "keep", code=code)
        if "token" not in kept:
            return kept
        revived = self._ask(contestant, 1, "revive", token=kept["token"], code=then)
        return {**revived, "value": kept["value"] + revived["value"]} if "value" in revived else revived

    def _ask(self, contestant: Contestant, process: int, verb: str, **arguments: Any) -> dict[str, Any]:
        key = contestant.name, process
        if key not in self._workers:
            self._workers[key] = Worker(self._places[contestant.name])
            # What happens once per process or machine is no part of a figure.
            self._workers[key].ask("fresh", within=600, code="print(1 + 1)")
        return self._workers[key].ask(verb, within=MOST_SECONDS_OF_ONE_ANSWER, **arguments)

    def close(self) -> None:
        """End every process."""
        for worker in self._workers.values():
            worker.stop_asking()
        for name, process in list(self._workers):
            self._close(name, process)

    def _close(self, name: str, process: int) -> None:
        worker = self._workers.pop((name, process), None)
        if worker is not None:
            worker.close()


def measure(field: Field, piece: Piece, *, rounds: int, seconds: float) -> dict[str, Samples]:
    """Samples of everybody for one piece, in rounds; `seconds` is about the most that one may take."""
    taken = {contestant.name: Samples() for contestant in field.asked(piece)}
    outputs: dict[str, str] = {}
    for number in range(-1, min(rounds, piece.most_rounds)):
        for contestant in field.asked(piece):
            samples = taken[contestant.name]
            if not samples.cannot and samples.spent < seconds:
                take_turn(field, contestant, piece, samples, outputs, warms_up=number < 0)
    compare_outputs(outputs, piece, taken)
    return taken


def take_turn(
    field: Field,
    contestant: Contestant,
    piece: Piece,
    samples: Samples,
    outputs: dict[str, str],
    *,
    warms_up: bool,
) -> None:
    """The samples of one contestant in one round; the first round only warms up those that are fast."""
    values, started = [], time.perf_counter()
    for _ in range(
        1 if warms_up or piece.verb in ("rate", "create", "prune", "hold") else how_many(samples.each)
    ):
        answer = field.ask(contestant, piece)
        if "value" not in answer:
            samples.cannot = str(answer.get("cannot") or answer.get("error"))
            samples.rounds.clear()
            return
        values.append(answer["value"])
        outputs[contestant.name] = str(answer.get("output"))
    took = time.perf_counter() - started
    samples.each = took / len(values)
    if not warms_up or contestant.is_slow:
        samples.spent += took
        samples.rounds.append(values)


def how_many(seconds_each: float) -> int:
    return max(1, min(MOST_SAMPLES_OF_A_TURN, int(TURN_SECONDS / max(seconds_each, 1e-6))))


def compare_outputs(outputs: dict[str, str], piece: Piece, taken: dict[str, Samples]) -> None:
    """A contestant whose answer differs from ours has not done the work."""
    expected = outputs.get(OURS)
    for name, output in outputs.items():
        if expected is not None and output != expected:
            taken[name].cannot = f"another answer: {output.strip()[:60]!r}"
            taken[name].rounds.clear()
            print(f"  {name}: {piece.key} gave {output!r} and not {expected!r}", file=sys.stderr)
