"""Runs untrusted code in a sandbox, and shows what comes out and how long it takes."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from sandbox import ExecutionPolicy, SandboxResult, create_sandbox

OUTPUT = Path("demo-output")
PRELOAD = ("numpy", "pandas", "matplotlib.pyplot")
ROUNDS = 20

ANALYSIS = """\
import pandas as pd
import matplotlib.pyplot as plt

sales = pd.DataFrame({
    "month": ["Jan", "Feb", "Mar", "Apr"] * 2,
    "shop": ["north"] * 4 + ["south"] * 4,
    "sold": [120, 135, 160, 210, 80, 95, 130, 190],
})
table = sales.pivot(index="month", columns="shop", values="sold")
table = table.loc[["Jan", "Feb", "Mar", "Apr"]]
table.to_csv("sales.csv")
table.plot.bar(title="Sales", rot=0)
plt.savefig("sales.png")
print(table)
"""

# What each program tries, the code, and the limits that it runs under.
HOSTILE = [
    ("an endless loop", "while True: pass", {"timeout_seconds": 1.0}),
    ("burning instructions", "sum(range(10**9))", {"fuel_budget": 1_000_000_000}),
    (
        "taking all memory",
        "x = []\nwhile True: x.append(bytearray(10**6))",
        {"memory_bytes": 128 * 1024 * 1024},
    ),
    ("reading the host", "print(open('/etc/passwd').read())", {}),
    ("calling home", "import socket; socket.create_connection(('127.0.0.1', 80))", {}),
    ("starting a program", "import subprocess; subprocess.run(['ls'])", {}),
]

console = Console()


def main() -> None:
    console.rule("1. Preparing")
    console.print(
        "The first time on a machine, CPython for WebAssembly is fetched (100 MB) and\n"
        "compiled, which takes about two minutes. Later starts take milliseconds."
    )
    started = time.perf_counter()
    prepare()
    console.print(f"Ready after {time.perf_counter() - started:.1f} s.")

    console.rule("2. Untrusted code with pandas and a plot")
    console.print(Syntax(ANALYSIS, "python", background_color="default"))
    analyse()

    console.rule("3. What it may not do")
    console.print(table_of_stops())

    console.rule("4. How long it takes")
    console.print(table_of_timings())
    console.print(f"The files are in {OUTPUT}/; the code that made them is examples/demo.py.")


def execute(code: str, *, preload: tuple[str, ...] = PRELOAD, **limits: object) -> SandboxResult:
    policy = ExecutionPolicy(preload=preload, **limits)
    with create_sandbox(policy=policy, workspace=OUTPUT) as sandbox:
        return sandbox.execute(code)


def prepare() -> None:
    execute("")
    execute("", preload=())


def analyse() -> None:
    result = execute(ANALYSIS)
    console.print(result.stdout or result.stderr, markup=False)
    for name in result.files_created or result.files_modified:
        console.print(f"wrote {OUTPUT / name} ({(OUTPUT / name).stat().st_size} bytes)")


def table_of_stops() -> Table:
    table = Table("the code tries", "and gets", "after")
    for what, code, limits in HOSTILE:
        result = execute(code, **limits)
        ending = f"stopped by {result.stopped_by}" if result.stopped_by else result.stderr.splitlines()[-1]
        table.add_row(what, ending, f"{result.duration_ms:.0f} ms")
    return table


def table_of_timings() -> Table:
    frame = "import pandas as pd; print(pd.DataFrame({'a': [1, 2]}).sum())"
    table = Table("each time in a fresh interpreter", "median")
    with create_sandbox(workspace=OUTPUT) as sandbox:
        table.add_row("print(1 + 1)", median(lambda: sandbox.execute("print(1 + 1)")))
    with create_sandbox(policy=ExecutionPolicy(preload=PRELOAD), workspace=OUTPUT) as sandbox:
        table.add_row("a pandas DataFrame", median(lambda: sandbox.execute(frame)))
    native = [sys.executable, "-I", "-c", "print(1 + 1)"]
    table.add_row(
        "print(1 + 1) in a native Python process, not isolated",
        median(lambda: subprocess.run(native, capture_output=True, check=True)),
    )
    return table


def median(run: object) -> str:
    samples = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        run()
        samples.append(time.perf_counter() - started)
    return f"{statistics.median(samples) * 1000:.1f} ms"


if __name__ == "__main__":
    main()
