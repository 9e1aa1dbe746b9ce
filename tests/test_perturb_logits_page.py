"""The page of perturbed logits: snippets and table agree with what the law of the noise gives."""

import contextlib
import io
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fedcel.privacy import Laplace

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "how-to" / "perturb-logits.md").read_text()
ROWS = {
    row["how"]: row for row in json.loads((DOCS / "results" / "perturbed-logits.json").read_text())
}
UNCLIPPED, CLIPPED, WIDE, LABEL = ROWS
LOGITS = np.array([-0.5, 1.2, 3.5, 0.1, -2, 4, 0.9, 1.5, 2.5, -0.9])


def chance_of_top(values: np.ndarray, scale: float) -> float:
    """Return how often the largest value stays the largest under Laplace noise."""
    top = int(LOGITS.argmax())
    t = np.linspace(values.min() - 40 * scale, values.max() + 40 * scale, 200_001)
    gap = (t[:, None] - np.delete(values, top)) / scale
    below = np.where(gap < 0, 0.5 * np.exp(np.minimum(gap, 0)), 1 - 0.5 * np.exp(-np.abs(gap)))
    density = np.exp(-np.abs(t - values[top]) / scale) / (2 * scale)
    return float(np.trapezoid(density * below.prod(1), t))


def clip(size: float) -> np.ndarray:
    mechanism = Laplace(1.0, 10, clip_kind="l1", clip=size)
    return mechanism.answer_without_noise(torch.tensor(LOGITS)[None])[0].numpy()


@pytest.mark.parametrize("epsilon", [1, 4, 16])
def test_the_table_is_what_the_law_gives(epsilon: int) -> None:
    """By numerical integration, and for labels by their formula."""
    key = f"epsilon-{epsilon}"
    expected = {
        UNCLIPPED: chance_of_top(LOGITS, 1 / epsilon),
        CLIPPED: chance_of_top(clip(1.0), 2 / epsilon),
        WIDE: chance_of_top(clip(4.0), 8 / epsilon),
        LABEL: math.exp(epsilon) / (math.exp(epsilon) + 9),
    }
    assert {how: row[key] for how, row in ROWS.items()} == pytest.approx(expected, abs=1e-4)


def test_the_snippets_print_what_the_page_says() -> None:
    """One after the other, as typed; the shares to within five standard errors."""
    names: dict[str, object] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
            exec(block, names)
    shares = [names[key] for key in ("unclipped", "clipped", "label")]
    expected = [ROWS[how]["epsilon-1"] for how in (UNCLIPPED, CLIPPED, LABEL)]
    assert shares == pytest.approx(expected, abs=5 * math.sqrt(0.25 / 2000))
    first, loss, sensitivity, *_ = printed.getvalue().splitlines()
    assert first.startswith("top class kept: 0.")
    assert f"It prints {loss.split()[4]} nats" in PAGE
    assert sensitivity == "2.0"
    assert "-0.53" in printed.getvalue() and "0.47" in printed.getvalue()
