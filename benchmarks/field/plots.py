"""The plots of a record, drawn by matplotlib inside the sandbox."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from field.pieces import program
from sandbox import ExecutionPolicy, create_sandbox

PLOTS = Path(__file__).resolve().parents[2] / "docs" / "plots"
STARTS = ("fresh print", "fresh pandas", "turn", "survive", "fork", "sessions created")
COMPUTING = ("cpu nbody", "cpu json_trips", "cpu regex", "cpu sort_objects", "cpu dicts", "numpy")
MEMORY = ("memory", "memory pandas", "first result", "first memory")

Chart = dict[str, Any]


def write(record: dict[str, Any]) -> list[str]:
    """Draw everything that the record has; the names of the plots."""
    figures = [one for one in figures_of(record["pieces"]) if one["charts"]]
    policy = ExecutionPolicy(preload=("matplotlib.pyplot",), timeout_seconds=None)
    with (
        tempfile.TemporaryDirectory() as folder,
        create_sandbox(workspace=folder, policy=policy) as sandbox,
    ):
        result = sandbox.execute(program("plot"), stdin=json.dumps(figures))
        if not result.success:
            raise SystemExit(f"the plots cannot be drawn: {result.stderr}")
        PLOTS.mkdir(parents=True, exist_ok=True)
        for name in result.stdout.split():
            (PLOTS / f"{name}.svg").write_text(
                without_trailing_spaces(Path(folder, f"{name}.svg").read_text())
            )
    return result.stdout.split()


def without_trailing_spaces(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def figures_of(pieces: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": "starting", "charts": bars(pieces, STARTS)},
        {"name": "computing", "charts": bars(pieces, COMPUTING)},
        {"name": "files", "charts": lines(pieces, ("files", "workspace"))},
        {"name": "many", "charts": lines(pieces, ("rate", "prune number", "prune size"))},
        {"name": "memory", "charts": bars(pieces, MEMORY)},
    ]


def bars(pieces: dict[str, Any], keys: tuple[str, ...]) -> list[Chart]:
    return [
        {
            "kind": "bars",
            "title": pieces[key]["title"].replace("`", ""),
            "unit": pieces[key]["unit"],
            "values": {name: one["median"] for name, one in pieces[key]["by"].items() if "median" in one},
        }
        for key in keys
        if key in pieces and any("median" in one for one in pieces[key]["by"].values())
    ]


def lines(pieces: dict[str, Any], families: tuple[str, ...]) -> list[Chart]:
    charts = []
    for family in families:
        members = [piece for piece in pieces.values() if piece["family"] == family]
        if members:
            charts.append(line_chart(family, members))
    return charts


def line_chart(family: str, members: list[dict[str, Any]]) -> Chart:
    values: dict[str, list[tuple[int, float]]] = {}
    for piece in members:
        for name, one in piece["by"].items():
            if "median" in one:
                values.setdefault(name, []).append((piece["size"], one["median"]))
    return {
        "kind": "lines",
        "title": FAMILY_TITLES[family],
        "unit": members[0]["unit"],
        "x_name": members[0]["size_name"],
        "x_scale": "symlog" if members[0]["size"] == 0 else "log",
        "values": values,
    }


FAMILY_TITLES = {
    "files": "files written, read and removed",
    "workspace": "a print in a workspace",
    "rate": "fresh prints",
    "prune number": "prune sessions of 10 files",
    "prune size": "prune 100 sessions",
}
