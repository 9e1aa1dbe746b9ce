"""The Markdown of a bench: every number where it belongs, and what is not known is said."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedcel import per_image
from fedcel.errors import RunError, SettingsError
from sims.commands.main import main
from sims.report.matched_table import COLUMNS, NEVER, make_matched_tables
from sims.report.table import escape_latex

SWEEP = {"none": [(None, 0.96, 5.0)], "cel": [(1.0, 0.95, 1.0), (2.0, 0.91, 0.5)]}
DECODER: dict[str, object] = {"attack": "decoder", "mse": 0.04, "oracle-mse": 0.0434}
DECODER |= {"mean-mse": 0.074}
SWEEP |= {"weak": [(1.0, 0.97, 3.0)], "poor": [(1.0, 0.5, 0.1)]}


def bench(folder: Path, seeds: int = 3, **drop: int) -> Path:
    """Write a bench.json of three seeds; bits rise by .1 from one seed to the next."""
    rows: list[dict[str, object]] = []
    for seed in range(seeds):
        for name, points in SWEEP.items():
            for strength, accuracy, bits in points:
                rows.append(
                    {
                        "variant": name,
                        "title": f"the {name} | net",
                        "strength": strength,
                        "undefended": name == "none",
                        "anchored": name == "cel",
                        "seed": seed,
                        "accuracy": accuracy,
                        "bits-beyond-label": bits + 0.1 * seed,
                        "identification-optimal": 0.5,
                        "certificate-bits": 4.0,
                        "candidates": 400,
                        "bits-cap": 5.345,
                        "identification-candidates": 100,
                        "label-only-identification": 0.1,
                        "encoder-parameters": 16_576,
                        "flops-per-inference": 33_024,
                        "bytes-per-inference": 256,
                        "attacks": [DECODER],
                        "run": f"runs/{name}-{strength}-{seed}",
                    }
                )
    kept = [row for row in rows if drop.get(str(row["variant"])) != row["seed"]]
    (folder / "bench.json").write_text(json.dumps(kept))
    return folder


def cells(text: str, name: str, part: int = 0) -> list[str]:
    """Return the cells of a variant's line, in the table of this number."""
    lines = [line for line in text.splitlines() if line.startswith(f"| the {name} ")]
    return [cell.strip() for cell in lines[part].replace("\\|", "/").split("|")[2:-1]]


def test_by_hand(tmp_path: Path) -> None:
    """At 2 points: .94, a quarter between the sweep's two points."""
    text = make_matched_tables(bench(tmp_path), "2")
    # t(.975, 2) = 4.303, times .1 / sqrt(3): .25
    assert cells(text, "cel")[:3] == ["94.0 ± 0.0", "0.97 ± 0.25", "50.0 ± 0.0"]
    assert cells(text, "cel")[-3:] == ["16.6 ± 0.0", "0.033 ± 0.000", "256"]
    assert cells(text, "weak")[:2] == ["97.0 ± 0.0", "≤ 3.10 ± 0.25"]
    assert cells(text, "poor")[:3] == ["–", NEVER, "–"]
    anchor = next(line for line in text.splitlines() if line.startswith("| *label only"))
    assert [cell.strip() for cell in anchor.split("|")[2:6]] == ["–", "0.00", "10.0", "0.0434"]
    facts = "Targets M: 400. Most bits beyond the label: 5.34. Images to identify among: 100."
    assert f"{facts} Seeds: 0, 1, 2. Undefended: the none | net." in text
    widths = {
        len(line.replace("\\|", "/").split("|")) for line in text.splitlines() if line[:1] == "|"
    }
    assert widths == {len(COLUMNS) + 3, 5}  # of the points, and of the areas


def test_differences_are_paired_and_signed(tmp_path: Path) -> None:
    """Every seed's own rise cancels; a bound makes the difference one."""
    text = make_matched_tables(bench(tmp_path), "2", "cel")
    assert cells(text, "none", 1)[1] == "≤ 4.12 ± 0.00"
    assert cells(text, "none", 1)[-1] == "3"
    assert cells(text, "poor", 1) == ["–", "–", "–", "–", "0"]
    points = text.split("**Over losses")[0]
    assert len([line for line in points.splitlines() if line.startswith("| the cel")]) == 1
    assert cells(make_matched_tables(tmp_path, "2", "none"), "cel", 1)[1] == "≥ -4.12 ± 0.00"
    assert cells(make_matched_tables(tmp_path, "2", "none"), "weak", 1)[1] == "≶ -2.00 ± 0.00"


def test_the_area_is_over_the_largest_loss_asked_for(tmp_path: Path) -> None:
    """With differences paired by seed; none is drawn where no loss is allowed."""
    text = make_matched_tables(bench(tmp_path), "0,2", "cel")
    means, gaps = text.split("**Over losses of 0 to 2 points")[1:]
    assert {name: cells(means, name)[0] for name in SWEEP} == {
        **dict.fromkeys(("none", "poor"), "5.10 ± 0.25"),
        "cel": "2.08 ± 0.25",
        "weak": "3.10 ± 0.25",
    }
    differences = {"none": "3.02 ± 0.00", "poor": "3.02 ± 0.00", "weak": "1.02 ± 0.00"}
    assert {name: cells(gaps, name)[0] for name in differences} == differences
    assert "| the cel" not in gaps
    assert "Over losses of" not in make_matched_tables(tmp_path, "0", "cel")


def vary(folder: Path, alike: bool) -> None:
    """Give each run bits of 400 images around its mean; `alike`: the same ones hard in all runs."""
    rows = json.loads((folder / "bench.json").read_text())
    draw, found = np.random.default_rng(3), {}
    common = draw.normal(size=400)
    for row in rows:
        own = common if alike else draw.normal(size=400)
        found[f"{row['run']}|accuracy"] = torch.full((400,), row["accuracy"])
        bits = row["bits-beyond-label"] + 2 * (own - own.mean())
        found[f"{row['run']}|bits-beyond-label"] = torch.from_numpy(bits)
    per_image.write_vectors(folder, found)


def half(cell: str) -> float:
    return float(cell.rpartition("± ")[2])


def test_intervals_are_over_seeds_and_images(tmp_path: Path) -> None:
    """Bits of sd 2 over 400 images: .1 of standard error, .2 beside the .25 of the seeds."""
    bench(tmp_path)
    assert "Bootstrap samples of the test images: 0." in make_matched_tables(tmp_path, "2")
    vary(tmp_path, alike=True)
    text = make_matched_tables(tmp_path, "2", "cel")
    assert "Bootstrap samples of the test images: 200." in text
    assert half(cells(text, "weak")[1]) == pytest.approx((0.25**2 + 0.196**2) ** 0.5, abs=0.03)
    assert half(cells(text, "weak", 1)[1]) < 0.01  # what is hard in all runs cancels
    vary(tmp_path, alike=False)
    assert half(cells(make_matched_tables(tmp_path, "2", "cel"), "weak", 1)[1]) > 0.1


def test_a_worse_attack_of_a_larger_budget_counts(tmp_path: Path) -> None:
    """If all cells have met it: else the one that did would look worse than others."""
    rows = json.loads((bench(tmp_path) / "bench.json").read_text())
    ridge = DECODER | {"attack": "kernel-ridge", "budget": 4.0}
    for row in rows:
        number = list(SWEEP).index(row["variant"])
        row["attacks"].append(ridge | {"mse": 0.01 + 0.1 * number})
        if row["variant"] == "weak":
            row["attacks"].append(ridge | {"mse": 0.005, "knowledge": "held-out"})
            if row["seed"] == 0:
                row["attacks"].append(ridge | {"mse": 0.001, "budget": 10.0})
    (tmp_path / "bench.json").write_text(json.dumps(rows))
    text = make_matched_tables(tmp_path, "0")
    place = [column.key for column in COLUMNS].index("mse")
    assert cells(text, "none")[place] == "0.0100 ± 0.0000"
    assert cells(text, "weak")[place] == "0.0400 ± 0.0000"
    said = (
        "MSE of the worst attack that all cells met (knowledge, budget): kernel-ridge, 4; decoder."
    )
    assert said in text
    assert "not all cells met, left out: kernel-ridge, held-out, 4; kernel-ridge, 10." in text
    rows[-1]["attacks"] = []
    (tmp_path / "bench.json").write_text(json.dumps(rows))
    assert f"Cells without it: {rows[-1]['run']}." in make_matched_tables(tmp_path, "0")
    rows[-1]["attacks"] = [DECODER]
    (tmp_path / "bench.json").write_text(json.dumps(rows))
    assert cells(make_matched_tables(tmp_path, "0"), "none")[place] == "0.0400 ± 0.0000"
    rows[0]["attacks"] = [{"mse": 0.1}]
    (tmp_path / "bench.json").write_text(json.dumps(rows))
    with pytest.raises(RunError, match=r"bench\.json is damaged: 0\.attacks\.0\.attack"):
        make_matched_tables(tmp_path)


def test_a_variant_that_seldom_reaches_an_accuracy_is_said_to(tmp_path: Path) -> None:
    """Just above the line with these images, below it with many others."""
    bench(tmp_path)
    vary(tmp_path, alike=True)
    found = per_image.read_vectors(tmp_path)
    rows = json.loads((tmp_path / "bench.json").read_text())
    draw = torch.Generator().manual_seed(0)
    for row in rows:
        own = torch.randn(400, generator=draw)
        if row["variant"] == "weak":
            own = 3 * (own - own.mean())
            row["accuracy"] = 0.961
            found[f"{row['run']}|accuracy"] = 0.961 + own
    per_image.write_vectors(tmp_path, found)
    (tmp_path / "bench.json").write_text(json.dumps(rows))
    said = cells(make_matched_tables(tmp_path, "0"), "weak")[1]
    assert " of 200 samples of images)" in said


def test_a_missing_seed_is_counted(tmp_path: Path) -> None:
    """Two seeds have no interval."""
    assert (
        cells(make_matched_tables(bench(tmp_path, cel=1), "2"), "cel")[1] == "0.97 (2 of 3 seeds)"
    )


def test_what_failed_is_named(tmp_path: Path) -> None:
    """A variant that diverges under one seed must not look like one with two seeds."""
    bench(tmp_path, cel=1)
    (tmp_path / "failed.json").write_text('[{"cell": "cel-1-1", "reason": "diverged"}]')
    assert "Cells that failed, and are in no row: cel-1-1." in make_matched_tables(tmp_path, "2")
    (tmp_path / "failed.json").write_text("[]")
    assert "failed" not in make_matched_tables(tmp_path, "2")


@pytest.mark.parametrize("losses", ["", "a", "-1", "nan", "100", "0;2"])
def test_wrong_losses(tmp_path: Path, losses: str) -> None:
    with pytest.raises(SettingsError, match="--loss is"):
        make_matched_tables(bench(tmp_path), losses)


def test_wrong_input_is_named(tmp_path: Path) -> None:
    """The variant, the file."""
    with pytest.raises(SettingsError, match="'cl', must be one of none, cel"):
        make_matched_tables(bench(tmp_path), "0", "cl")
    for damage in ("[]", "{}", "[1]", '[{"seed": 1}]'):
        (tmp_path / "bench.json").write_text(damage)
        with pytest.raises(RunError, match=r"bench\.json"):
            make_matched_tables(tmp_path)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Prints, or writes whole; a refused one leaves the file as it was."""
    bench(tmp_path)
    out = tmp_path / "docs" / "t.md"
    assert main(["table", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("**At ") == 3
    assert main(["table", str(tmp_path), "--out", str(out), "--against", "none"]) == 0
    written = out.read_text()
    assert written != shown and written.count("differences to the none") == 4
    assert main(["table", str(tmp_path), "--out", str(out), "--against", "no"]) == 2
    assert main(["table", str(tmp_path / "docs")]) == 2
    assert out.read_text() == written
    said = capsys.readouterr().err
    assert "Traceback" not in said and len(said.splitlines()) == 2


def test_latex_has_the_cells_of_markdown(tmp_path: Path) -> None:
    """Every table in booktabs, with signs that pdflatex reads, and its caption."""
    text = make_matched_tables(bench(tmp_path), "2", "cel", latex=True)
    assert text.count(r"\begin{table}") == text.count(r"\bottomrule") == 4
    line = next(line for line in text.splitlines() if line.startswith("the cel "))
    found = [cell.removesuffix(r" \\") for cell in line.split(" & ")]
    wanted = cells(make_matched_tables(tmp_path, "2", "cel"), "cel")
    assert found[1:] == [escape_latex(cell) for cell in wanted]
    assert r"\caption{At 2 points below undefended.}" in text
    assert r"\emph{label only (class means)}" in text
    assert not set(text) & set("≤≥±–σλ*")
