"""The page on cuts: its program, its commands, and the numbers that it prints."""

import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import fedcel
from sims.commands.main import main

HOW_TO = Path(__file__).parents[1] / "docs" / "how-to"
PAGE = HOW_TO / "where-to-cut.md"  # named in tests/test_page_programs.py: how-to/where-to-cut.md
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^    fedcel (.*net\.pt2.*)$", re.MULTILINE)
NUMBER = re.compile(r"\d+(?:\.\d+)?")
MARK = re.compile(r"^[→·] ")
TOLERANCE = 0.15
"""Of a net that is trained on another processor."""
NOISE_TOLERANCE = 0.5
"""Of noise, linearised bits and error there: one image decides whether the next level is taken."""
MILLISECONDS, BY_NOISE = 2, (3, 5, 7)
"""Places of columns."""


def read_table(text: str) -> dict[str, list[str]]:
    """Return the cells of a table of the terminal by the name of their row.

    One row has an arrow; which one, and which have a dot, changes with the processor, as of two
    cuts that leak nearly as much.
    """
    lines = [re.split(r"\s{2,}", line) for line in text.splitlines()]
    assert sum(line.startswith("→ ") for line in text.splitlines()) == 1
    return {MARK.sub("", name): cells for name, *cells in lines if len(cells) == 8}


def check_cells(printed: list[str], shown: list[str]) -> None:
    """See that all numbers but the milliseconds are near those of the page."""
    for place, (cell, expected) in enumerate(zip(printed, shown, strict=True)):
        if place == MILLISECONDS:
            continue
        near = NOISE_TOLERANCE if place in BY_NOISE else TOLERANCE
        ours, theirs = ([float(n) for n in NUMBER.findall(text)] for text in (cell, expected))
        assert ours[:1] == pytest.approx(theirs[:1], rel=near, abs=0.011), (cell, expected)
        assert NUMBER.sub("", cell) == NUMBER.sub("", expected)


def test_the_page_as_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Programs run; the table is the page's, and so is what the page on audits says of the net."""
    monkeypatch.chdir(tmp_path)
    # Of unseen images neither page says anything.
    measuring = import_module("fedcel.leakage.measure_leakage")
    monkeypatch.setattr(measuring, "bound_unseen", lambda *_, **__: None)
    text = PAGE.read_text()
    blocks = BLOCK.findall(text)
    assert [kind for kind, _ in blocks] == ["python", "text", "text", "python", "python"]
    (_, train), (_, table), (_, narrow_table), (_, narrow), (_, compare) = blocks
    names: dict[str, Any] = {"__name__": "page"}
    with torch.random.fork_rng():
        exec(train, names)
        cuts, audit, narrowed = COMMAND.findall(text)
        for command, shown in ((cuts, read_table(table)), (narrowed, read_table(narrow_table))):
            assert main(shlex.split(command)) == 0
            printed = read_table(capsys.readouterr().out)
            assert list(printed) == list(shown) and len(shown) == 8
            for name in shown.keys() - {"cut", "--------------"}:
                check_cells(printed[name], shown[name])
        names["fedcel"] = fedcel
        exec(narrow, names)
        assert names["encoder"](names["images"][:2]).shape == (2, 9)
        exec(compare.replace("200", "20"), names)
    assert capsys.readouterr().out.startswith("Cut at ")
    assert {path.name for path in (tmp_path / "cuts").iterdir()} == {"cuts.json", "report.html"}
    page = (HOW_TO / "audit-an-encoder.md").read_text()
    assert audit in page
    assert main([*shlex.split(audit), "--attacks", "none"]) == 0
    lines = capsys.readouterr().out.splitlines()[:2]
    ((_, expected),) = (block for block in BLOCK.findall(page) if block[0] == "text")
    for line, sentence in zip(lines, expected.splitlines(), strict=True):
        assert NUMBER.sub("", line) == NUMBER.sub("", sentence)
        numbers = [[float(n) for n in NUMBER.findall(part)] for part in (line, sentence)]
        assert numbers[0] == pytest.approx(numbers[1], rel=TOLERANCE)
