"""The page of figures, made from a record."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

from field import plots
from field.contestants import CONTESTANTS, OURS, UNMETERED

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
BEGIN, END = "<!-- made by make bench-peers: begin -->", "<!-- made by make bench-peers: end -->"
GROUPS = (
    ("Starting and remembering", "starting", ("fresh print", "fresh pandas", "turn", "survive", "fork")),
    ("Computing", "computing", ("cpu ", "numpy")),
    ("Files", "files", ("files/", "workspace/")),
    ("Many sessions, many callers", "many", ("sessions created", "rate/", "prune ")),
    ("Memory, and the first result", "memory", ("memory", "first ")),
)

PROMISES = {"fresh print": 9, "fresh pandas": 60}

SANDBOXED_CPYTHON = {one.name for one in CONTESTANTS if one.is_sandboxed_cpython} - {OURS, UNMETERED}

Pieces = dict[str, dict[str, Any]]


def write(record: dict[str, Any]) -> None:
    """Put the record's tables and plots between the marks of the page; the words around them stay."""
    drawn = plots.write(record)
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{generated(record, drawn)}\n{END}{after}")


def generated(record: dict[str, Any], drawn: list[str]) -> str:
    parts = [environment(record), contestants(record)]
    for title, plot, keys in GROUPS:
        pieces = {key: piece for key, piece in record["pieces"].items() if key.startswith(keys)}
        if pieces:
            parts.append(group(title, plot if plot in drawn else "", pieces, record))
    parts += [promises(record["pieces"]), losses(record["pieces"])]
    return "\n".join(parts)


def environment(record: dict[str, Any]) -> str:
    machine = record["machine"]
    load = ", ".join(f"{value:.1f}" for value in machine["load"])
    return (
        f"Taken {record['taken_at']} in {record.get('minutes', 0):g} minutes on {machine['cores']} cores of "
        f"{machine['processor']}, {machine['memory_bytes'] / 2**30:.0f} GiB, Linux {machine['kernel']}, "
        f"Python {machine['python']}, wasmtime {machine['wasmtime']}; load at the start {load}.\n"
    )


def contestants(record: dict[str, Any]) -> str:
    lines = ["| contestant | version | to know |", "|---|---|---|"]
    for name, one in record["contestants"].items():
        missing = f"not here: {one['missing']}" if one["missing"] else one["note"]
        lines.append(f"| {name} | {one['version']} | {missing} |")
    return "\n".join(lines) + "\n"


def group(title: str, plot: str, pieces: Pieces, record: dict[str, Any]) -> str:
    names = [name for name in record["contestants"] if any(name in piece["by"] for piece in pieces.values())]
    lines = [f"### {title}", ""]
    if plot:
        lines += [f"![{title}](plots/{plot}.svg)", ""]
    lines += [f"| key, unit | {' | '.join(names)} | times the best peer | times the best sandboxed CPython |"]
    lines += ["|---|" + "---|" * (len(names) + 2)]
    lines += [row(key, piece, names) for key, piece in pieces.items()]
    return "\n".join([*lines, "", *growth(pieces), *reasons(pieces)])


def row(key: str, piece: dict[str, Any], names: list[str]) -> str:
    cells = [cell(piece["by"].get(name, {})) for name in names]
    cells += [times_better(piece, set(names)), times_better(piece, SANDBOXED_CPYTHON)]
    return f"| `{key}`, {piece['unit']}: {piece['title']} | {' | '.join(cells)} |"


def times_better(piece: dict[str, Any], among: set[str]) -> str:
    """How many times better we are than the best of some peers, and who that is."""
    peers = {name: piece["by"][name]["median"] for name in piece["times_better_than"] if name in among}
    if not peers:
        return "-"
    best = (max if piece["unit"] == "per second" else min)(peers, key=lambda name: peers[name])
    return f"{piece['times_better_than'][best]:.3g} ({best})"


def cell(one: dict[str, Any]) -> str:
    """Median and quartiles; a dash where it cannot, or was not asked."""
    if "median" not in one:
        return "-"
    low, high = one["quartiles"]
    spread = f" ({short(low)} to {short(high)})" if one["samples"] > 1 else " (one sample)"
    return f"{short(one['median'])}{spread}"


def short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def growth(pieces: Pieces) -> list[str]:
    """How the cost of each family grows with its size, as a power of it."""
    said = []
    for family in dict.fromkeys(piece["family"] for piece in pieces.values() if piece["family"]):
        members = [piece for piece in pieces.values() if piece["family"] == family]
        powers = {name: power(members, name) for name in members[0]["by"]}
        known = ", ".join(f"{name} {value:.2f}" for name, value in powers.items() if value is not None)
        if known:
            said.append(f"- `{family}/*` grows with {members[0]['size_name']} to the power of: {known}")
    return [*said, ""] if said else []


def power(members: list[dict[str, Any]], name: str) -> float | None:
    """The slope through the logarithms of cost and size."""
    points = [
        (math.log(piece["size"]), math.log(piece["by"][name]["median"]))
        for piece in members
        if piece["size"] and "median" in piece["by"].get(name, {})
    ]
    if len(points) < 2:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def reasons(pieces: Pieces) -> list[str]:
    """Why a contestant has no figure, once for each reason."""
    why: dict[tuple[str, str], list[str]] = {}
    for key, piece in pieces.items():
        for name, one in piece["by"].items():
            if one.get("cannot"):
                why.setdefault((name, one["cannot"].splitlines()[0]), []).append(f"`{key}`")
    return [*(f"- {name}, {', '.join(keys)}: {reason}" for (name, reason), keys in why.items()), ""]


def promises(pieces: Pieces) -> str:
    """What this project sets out to reach, against native Python in the same rounds."""
    lines = ["### Promises", "", "| promise | wanted | measured |", "|---|---|---|"]
    for key, wanted in PROMISES.items():
        times = pieces.get(key, {}).get("times_better_than", {}).get("native python")
        if times is not None:
            reached = "reached" if times >= wanted else "missed"
            lines.append(f"| `{key}`, times faster than native python | {wanted} | {times:.3g}, {reached} |")
    return "\n".join(lines) + "\n"


def losses(pieces: Pieces) -> str:
    """Every piece where some peer is better than we are."""
    lines = ["### Where a peer is better", ""]
    for key, piece in pieces.items():
        better = {name: times for name, times in piece["times_better_than"].items() if times < 1}
        if better:
            said = ", ".join(f"{name} {1 / times:.3g} times" for name, times in better.items())
            lines.append(f"- `{key}`: {said}")
    if len(lines) == 2:
        lines.append(f"- nowhere in this record ({OURS} against every peer; {UNMETERED} is no peer)")
    return "\n".join(lines) + "\n"
