"""The page of worked examples: its programs give the numbers that its tables call correct."""

import contextlib
import io
import json
import math
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "concepts" / "worked-examples.md").read_text()
PRINTED_SECTIONS = PAGE.split("\n## ")[1:4]
ROWS = {
    row["how"]: row["epsilon-1"]
    for row in json.loads((DOCS / "results" / "perturbed-logits.json").read_text())
}
NUMBER = re.compile(r"-?\d+\.\d+")


@pytest.fixture(scope="module")
def ran() -> tuple[list[str], dict[str, object]]:
    """Return what each program prints, and the names they leave."""
    names: dict[str, object] = {}
    printed = []
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(block, names)
        printed.append(out.getvalue())
    return printed, names


@pytest.mark.parametrize("section", range(3))
def test_every_correct_number_is_printed(
    ran: tuple[list[str], dict[str, object]], section: int
) -> None:
    """Each number of the last column, digit by digit."""
    rows = re.findall(r"^\| .* \| (.*?) \|$", PRINTED_SECTIONS[section], re.MULTILINE)[1:]
    correct = [number for cell in rows for number in NUMBER.findall(cell)]
    assert len(correct) >= 7
    assert set(correct) <= set(NUMBER.findall(ran[0][section]))


def test_the_shares_are_those_of_the_law(ran: tuple[list[str], dict[str, object]]) -> None:
    """Within five standard errors of 20 000 draws."""
    shares = [ran[1][name] for name in ("unclipped", "clipped", "label")]
    unclipped, clipped, _, label = ROWS.values()
    assert shares == pytest.approx([unclipped, clipped, label], abs=5 * math.sqrt(0.25 / 20_000))
