"""The tutorials: small, without stored outputs; typed along, they end where they say."""

import ast
import importlib
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.system.federation import signal_processes

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
MAX_BYTES = 16_000
PICTURES = ("plt.subplots", "plt.figure", ".figure()")
LIMIT = 1800  # seconds until a cell that never ends is given up

Values = dict[str, Any]


def read_cells(path: Path, kind: str) -> list[Any]:
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == kind]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_small_and_clean(path: Path) -> None:
    """What they show comes from running them; the first cell says what one will have."""
    notebook = nbformat.read(path, 4)
    nbformat.validate(notebook)
    assert path.stat().st_size < MAX_BYTES
    for cell in read_cells(path, "code"):
        assert cell.outputs == [] and cell.execution_count is None
    first = notebook.cells[0].source
    assert first.startswith("# ") and "**What you will have:**" in first


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_can_run(path: Path) -> None:
    """Python that compiles, or shell that ends where a command fails."""
    for cell in read_cells(path, "code"):
        if cell.source.startswith("%%"):
            assert cell.source.startswith("%%bash -e\n"), "a command that fails would go unnoticed"
            continue
        lines = [line for line in cell.source.splitlines() if not line.startswith("%")]
        ast.parse("\n".join(lines))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_pictures_have_words(path: Path) -> None:
    """For who cannot see them; at least one picture a tutorial."""
    drawn = [
        cell for cell in read_cells(path, "code") if any(words in cell.source for words in PICTURES)
    ]
    assert drawn
    assert all(cell.metadata["mystnb"]["image"]["alt"] for cell in drawn)


def test_what_a_cell_prints_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that arrives in pieces is one line; streams keep the order in which they began."""
    monkeypatch.syspath_prepend(ROOT / "docs" / "extensions")
    joined_streams = importlib.import_module("joined_streams")
    pieces = [("stderr", "one "), ("stdout", "a ta"), ("stderr", "line\n"), ("stdout", "ble\n")]
    outputs = [nbformat.v4.new_output("stream", name=name, text=text) for name, text in pieces]
    picture = nbformat.v4.new_output("display_data", data={"text/plain": "picture"})
    joined = joined_streams.join_streams([*outputs[:2], picture, *outputs[2:]])
    assert [output.get("text") for output in joined] == ["one line\n", "a table\n", None]


def test_every_notebook_is_on_the_site() -> None:
    """Named by the landing page."""
    page = (ROOT / "docs" / "index.md").read_text()
    assert len(NOTEBOOKS) == 5
    assert all(f"tutorials/{path.stem}" in page for path in NOTEBOOKS)


def check_first_federation(values: Values) -> None:
    """Both learn; the defence hides most, and the decoder rebuilds worse."""
    assert min(values["accuracy"]) > 0.9
    assert values["bits"][0] > 4 and values["bits"][1] < 1
    assert values["error"][1] > 1.3 * values["error"][0]


def check_audit(values: Values) -> None:
    """More noise, less leak; the command's report measures the same encoder."""
    assert values["bits"] == sorted(values["bits"], reverse=True)
    assert values["bits"][0] > 4 and values["bits"][-1] < 0.5
    assert values["accuracy"][0] > 0.9 > values["accuracy"][-1]
    assert values["report"] > 10_000 and values["audited"] > 3


def check_own_loop(values: Values) -> None:
    """The loss at weight 1 hides more than half of what noise leaves, at no loss of accuracy."""
    assert values["bits"][2] < values["bits"][0] / 2
    assert min(values["accuracy"][:3]) > 0.94
    assert values["identification"][1] < values["identification"][0] / 2


def check_machines(values: Values) -> None:
    """Both nodes took part in every round, what came of it is attacked; all processes ended."""
    assert values["clients"] == [2, 2, 2] and values["rejected"] == [[], [], []]
    assert values["accuracy"] > 0.5
    assert values["pictures"] == ["class-mean", "decoder", "targets"]
    assert values["running"] == 0


def check_service(values: Values) -> None:
    """Ten answers for forty epsilon, most of them right; a repeat is free and the same."""
    assert values["answers"] == 10 and values["spent"] == pytest.approx(40)
    assert values["right"] >= 4  # of ten, each with chance .8
    assert values["repeated"] and "budget" in values["refusal"]


CHECKS: dict[str, tuple[Callable[[Values], None], str]] = {
    "first-federation": (
        check_first_federation,
        """{
            "accuracy": [results[name]["accuracy"] for name in ("none", "cluster")],
            "bits": [results[name]["bits-beyond-label"] for name in ("none", "cluster")],
            "error": [
                float((shown["decoder"] - shown["targets"]).square().mean())
                for shown in (pictures["none"], pictures["cluster"])
            ],
        }""",
    ),
    "audit-your-encoder": (
        check_audit,
        """{
            "bits": [leak.bits_beyond_label for leak in leaks],
            "accuracy": [leak.accuracy for leak in leaks],
            "report": Path("report/report.html").stat().st_size,
            "audited": __import__("json").loads(Path("report/audit.json").read_text())
            ["leak"]["bits_beyond_label"],
        }""",
    ),
    "a-loss-in-your-own-loop": (
        check_own_loop,
        """{
            "bits": [leak.bits_beyond_label for leak in leaks.values()],
            "accuracy": [leak.accuracy for leak in leaks.values()],
            "identification": [leaks[weight].identification for weight in rebuilt],
        }""",
    ),
    "from-simulation-to-machines": (
        check_machines,
        """{
            "clients": [event["clients"] for event in events],
            "rejected": [event["rejected"] for event in events],
            "accuracy": trained["accuracy"],
            "pictures": sorted(pictures),
            "running": len(running),
        }""",
    ),
    "a-private-service": (
        check_service,
        """{
            "answers": len(asked),
            "spent": budget.spent,
            "right": sum(int(reply.label == labels[number]) for number, reply in asked),
            "repeated": again.label == answer.label and not again.is_fresh,
            "refusal": refusal,
        }""",
    ),
}
"""For each tutorial what its names hold in the end, and what that has to be."""


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_ends_where_it_says(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run as a notebook server would, in an empty folder, which is all that it writes into."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    check, expression = CHECKS[path.stem]
    notebook = nbformat.read(path, 4)
    question = f"__import__('json').dumps({expression})"
    notebook.cells.append(nbformat.v4.new_code_cell(f"print({question})"))
    try:
        NotebookClient(
            notebook, timeout=LIMIT, resources={"metadata": {"path": str(tmp_path)}}
        ).execute()
    finally:
        signal_processes(f"TMPDIR={tmp_path}", signal.SIGKILL)
    check(json.loads(notebook.cells[-1].outputs[0].text))
