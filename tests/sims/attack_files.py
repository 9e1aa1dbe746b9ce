"""Files of attacks' results, written by hand: with the rows of several attacks in one."""

import json
from collections.abc import Sequence
from pathlib import Path

from fedcel.attacks.registry import REVISION


def save_rows(path: Path, rows: Sequence[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {"settings": {}, "revision": REVISION, "finished": "2026-01-01T00:00:00Z"}
    path.write_text(json.dumps(result | {"rows": rows}))


def load_rows(path: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = json.loads(path.read_text())["rows"]
    return rows
