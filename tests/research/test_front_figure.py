"""The picture of the first page: whose images it shows, and whose bits."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import front_figure
from fedcel.errors import RunError

Make = Callable[..., Path]
ROWS = [
    {
        "variant": variant,
        "seed": seed,
        "bits-beyond-label": bits + 0.1 * seed,
        "run": "",
        "undefended": variant == "none",
        "attacks": [],
    }
    for variant, bits in (("none", 5.0), ("cluster", 0.3), ("gated", 0.4))
    for seed in (0, 1, 2)
]


def test_images_of_the_run_and_bits_of_the_rows(
    make_bench: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack of the lowest error; means and intervals over the rows of the same variant."""
    shown: list[np.ndarray] = []
    monkeypatch.setattr(
        front_figure.Axes, "imshow", lambda self, image, **_: shown.append(np.asarray(image))
    )
    bench = make_bench()
    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    front_figure.save_front(bench, tmp_path / "rows.json", tmp_path / "out")
    assert (tmp_path / "out" / "front.png").read_bytes().startswith(b"\x89PNG")
    numbers = json.loads((tmp_path / "out" / "front.json").read_text())
    undefended, defended = numbers.values()
    assert undefended["bits"] == pytest.approx(5.1) and defended["bits"] == pytest.approx(0.4)
    assert undefended["half-width"] == pytest.approx(4.303 * 0.1 / 3**0.5, abs=1e-3)
    assert undefended["attack"] == defended["attack"] == "decoder"
    assert undefended["mse"] == pytest.approx(0.0312) and defended["mse"] == pytest.approx(0.0425)
    lines = [shown[start] for start in range(0, len(shown), front_figure.COLUMNS)]
    for line, share in zip(lines, (1.0, 0.8, 0.8, 0.5), strict=True):
        np.testing.assert_allclose(line, share * lines[0])


@pytest.mark.parametrize("lacking", ["rows", "images"])
def test_what_is_lacking_is_said(lacking: str, make_bench: Make, tmp_path: Path) -> None:
    """A variant that no row is of, or of which nothing was rebuilt."""
    bench = make_bench()
    rows = [row for row in ROWS if lacking != "rows" or row["variant"] != "cluster"]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    if lacking == "images":
        (bench / "runs" / "1-0" / "attacks" / "all.safetensors").unlink()
    with pytest.raises(RunError, match="'cluster' is not among the rows"):
        front_figure.save_front(bench, tmp_path / "rows.json", tmp_path / "out")
