"""What was measured, as it is kept in a file."""

from __future__ import annotations

import json
import os
import platform
import statistics
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from field.contestants import OURS, UNMETERED

if TYPE_CHECKING:
    from field.pieces import Piece
    from field.rounds import Field, Samples

RESULTS = Path(__file__).resolve().parent.parent / "results"
FULL = RESULTS / "peers.json"
PART = RESULTS / "peers-part.json"
FORMAT = 1

Entry = dict[str, Any]


def new_record(field: Field) -> dict[str, Any]:
    """A record without pieces."""
    return {
        "format": FORMAT,
        "taken_at": now(),
        "machine": machine(),
        "contestants": {
            one.name: {"version": one.version, "note": one.note, "missing": field.missing.get(one.name, "")}
            for one in field.contestants
        },
        "pieces": {},
    }


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "wasmtime": version("wasmtime"),
        "load": list(os.getloadavg()),
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def entry_of(piece: Piece, taken: dict[str, Samples]) -> Entry:
    """One piece of work: every sample, and what they say."""
    scale = {"ms": 1e3, "MB": 1e-6, "per second": 1.0}[piece.unit]
    rounds = {
        name: [[value * scale for value in values] for values in samples.rounds]
        for name, samples in taken.items()
    }
    by: dict[str, Entry] = {}
    for name, samples in taken.items():
        by[name] = summary(rounds[name]) if samples.rounds else {"cannot": samples.cannot}
    return {
        "title": piece.title,
        "unit": piece.unit,
        "family": piece.family,
        "size": piece.size,
        "size_name": piece.size_name,
        "taken_at": now(),
        "load": os.getloadavg()[0],
        "by": by,
        **comparison(rounds, by, more_is_better=piece.more_is_better),
    }


def summary(rounds: list[list[float]]) -> Entry:
    """Median and quartiles over all samples, which are kept as well."""
    values = [value for values in rounds for value in values]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return {
        "median": digits(statistics.median(values)),
        "quartiles": [digits(low), digits(high)],
        "samples": len(values),
        "rounds": [[digits(value) for value in values] for values in rounds],
    }


def digits(value: float) -> float:
    return float(f"{value:.4g}")


def comparison(rounds: dict[str, list[list[float]]], by: dict[str, Entry], *, more_is_better: bool) -> Entry:
    """The best peer, and how many times better than each peer we are, from the rounds both took part in."""
    if OURS not in by or "median" not in by[OURS]:
        return {"best_peer": None, "times_better_than": {}}
    peers = {
        name: one["median"] for name, one in by.items() if name not in (OURS, UNMETERED) and "median" in one
    }
    times = {
        name: digits(within_rounds(rounds[OURS], rounds[name], more_is_better=more_is_better))
        for name in peers
    }
    best = (max if more_is_better else min)(peers, key=lambda name: peers[name], default=None)
    return {"best_peer": best, "times_better_than": times}


def within_rounds(ours: list[list[float]], theirs: list[list[float]], *, more_is_better: bool) -> float:
    """The median over rounds of one median by the other: what slows a whole round cancels out."""
    ratios = [
        statistics.median(peer) / statistics.median(own)
        for own, peer in zip(ours, theirs, strict=False)
        if own and peer and statistics.median(own) > 0
    ]
    ratio = statistics.median(ratios)
    return 1 / ratio if more_is_better and ratio else ratio


def read(path: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def write(record: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def merged(record: dict[str, Any], older: dict[str, Any]) -> dict[str, Any]:
    """The older record with the newer pieces in the place of its own; each piece has its time and load."""
    return {
        **older,
        "contestants": {**older["contestants"], **record["contestants"]},
        "pieces": {**older["pieces"], **record["pieces"]},
    }
