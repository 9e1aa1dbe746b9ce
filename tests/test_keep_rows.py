"""`make bench` keeps what it prints, whole or not at all."""

import json
import subprocess
import sys
from pathlib import Path

from tests.bench.keep_rows import parse_tables

LINES = ["| what | ratio |", "|---|---|", "| a step | 1.5 |", "| a round | 2 |", "and a line"]
LINES += ["", "| limit |", "|---|", "| x |"]
TABLE = f"print(*{LINES}, sep=chr(10))"


def keep(file: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program as a recipe does."""
    words = [sys.executable, "-m", "tests.bench.keep_rows", str(file), "python", "-c", program]
    return subprocess.run(words, capture_output=True, text=True, timeout=300)


def test_rows_are_kept_with_the_machine_that_made_them(tmp_path: Path) -> None:
    """Each command adds its own; one that fails adds nothing, and its status is that of all."""
    file = tmp_path / "build" / "bench.json"
    for _ in range(2):
        done = keep(file, TABLE)
        assert done.returncode == 0, done.stderr
        assert "| a step | 1.5 |" in done.stdout and f"rows: {file}" in done.stdout
    before = file.read_bytes()
    assert keep(file, TABLE + "; raise SystemExit(3)").returncode == 3
    assert file.read_bytes() == before
    first, second = json.loads(before)
    rows = [{"what": "a step", "ratio": "1.5"}, {"what": "a round", "ratio": "2"}, {"limit": "x"}]
    assert first["rows"] == second["rows"] == rows
    assert first["command"].startswith("python -c print(") and first["output"] == LINES
    machine = first["machine"]
    assert machine["processor"] and machine["cores"] >= 1 and machine["torch"]
    assert len(machine["noise"]) == len(machine["load"]) == 2
    assert first["date"].endswith("+00:00")


def test_lines_that_are_no_table_have_no_rows() -> None:
    """A bar within a sentence makes none."""
    assert [*parse_tables(["a | b", "", "|", "ledger, verify: 3 us a row"])] == []
