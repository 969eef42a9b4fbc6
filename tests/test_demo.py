"""The demonstration shows what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).resolve().parent.parent / "examples" / "demo.py"


def test_the_demo_leaves_a_table_and_a_plot_and_stops_what_it_must(tmp_path):
    done = subprocess.run([sys.executable, DEMO], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "demo-output" / "sales.csv").read_text().splitlines()[1] == "Jan,120,80"
    assert (tmp_path / "demo-output" / "sales.png").read_bytes().startswith(b"\x89PNG")
    assert [f"stopped by {limit}" in done.stdout for limit in ("timeout", "fuel", "memory")] == [True] * 3
    assert "root:" not in done.stdout
