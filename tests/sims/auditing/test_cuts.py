"""`fedcel cuts` on models and images of every kind, as a user types it."""

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedcel
from fedcel.errors import FailedError
from fedcel.leakage import linearise
from sims.commands.main import main
from sims.report.cuts_page import chart_cuts
from sims.report.cuts_table import format_error

NET = f"{__name__}:build_net"
FIXED_KEYS = {
    *("name", "features", "bytes", "macs", "parameters", "noise", "accuracy"),
    *("bits-beyond-label", "linearised-bits", "linearised-mse", "recommended"),
}
"""Keys of a row that scripts of others rely on."""


def build_net() -> nn.Module:
    """Return a small net for digits, with random parameters."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        wide = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        deep = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU())
        return nn.Sequential(wide, deep, nn.Linear(8, 10))


def build_wide() -> nn.Module:
    """Return a small net for images of more than 4 096 values."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        narrow = nn.Sequential(nn.Conv2d(1, 4, 8, stride=8), nn.ReLU())
        return nn.Sequential(narrow, nn.Flatten(), nn.Linear(4 * 81, 10))


class Branching(nn.Module):
    """A model whose computation depends on values."""

    def forward(self, x: Tensor) -> Tensor:
        """Double bright images."""
        return x.flatten(1) if x.mean() > 0 else 2 * x.flatten(1)


def test_table_record_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every cut has a row with numbers, the page a chart, pictures and maps; exit 0."""
    words = ["--images", "40", "--max-macs", "1e6", "--out", str(tmp_path)]
    assert main(["cuts", NET, "--data", "digits", *words]) == 0
    output = capsys.readouterr().out
    first, second, answer = json.loads((tmp_path / "cuts.json").read_text())
    assert [row["name"] for row in (first, second, answer)] == ["0", "1", "answer"]
    for row in (first, second, answer):
        assert row.keys() >= FIXED_KEYS
    assert first["bytes"] == 256
    assert first["bytes-by-type"] == {"float32": 256, "float16": 128, "int8": 64}
    assert first["macs"] == 9 * 4 * 64 and first["linearised-bits"] > second["linearised-bits"] > 0
    assert first["bits-beyond-label"] > answer["bits-beyond-label"]
    assert second["attack"]["mse"] > 0 and answer["attack"] is None
    assert [row["recommended"] for row in (first, second, answer)] == [False, True, False]
    sentence = output.splitlines()[-1]
    assert sentence.startswith("Cut at 1 and add noise") and "label only" in output
    assert f"{NET}, on 40 images of digits." in output
    page = unescape((tmp_path / "report.html").read_text())
    assert sentence in page and "<svg" in page
    assert "so agreement with its answers without noise" in output  # the net knows no digits
    assert "agreement, %" in output and "points of agreement with the answers" in sentence
    assert "so agreement with its answers without noise" in page and ">agreement, %<" in page
    assert not {row["accuracy-is-of-labels"] for row in (first, second, answer)} - {False}
    for text in (output, page):
        assert "accuracy, %" not in text and "of accuracy," not in text
    assert "max-loss 1, max-macs 1e+06; seed 0." in page and "torch 2." in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cuts.json", "report.html"]
    assert page.count("data:image/png;base64,") == 6 + 2 * (6 + 6 + 6) + 6
    assert "each scale is the same for all rows" in page
    assert "for the first only" not in page and "25 %" not in page


def test_large_images_have_maps_of_the_first(tmp_path: Path) -> None:
    """What is exposed and what stays unknown, once a cut, and the page says so."""
    words = ["--images", "24", "--size", "72", "--out", str(tmp_path)]
    words += ["--attack", "fedcel.attacks.kernel_ridge:KernelRidge"]
    assert main(["cuts", f"{__name__}:build_wide", "--data", "digits", *words]) == 0
    page = unescape((tmp_path / "report.html").read_text())
    pictures = re.findall(r'alt="(.*) (\d): "', page)
    assert pictures.count(("rebuilt at 1", "6")) == 1
    for name in ("1 exposed", "1 unknown", "unknown without a message"):
        assert [place for title, place in pictures if title == name] == ["1"]
    assert "drawn for the first only" in page and "off by about 25 %" in page
    assert json.loads((tmp_path / "cuts.json").read_text())[0]["attack"]["mse"] > 0


def test_messages_of_few_values(tmp_path: Path) -> None:
    """They are measured and attacked as they are sent, and the page says who chose them."""
    words = ["--data", "digits", "--images", "80", "--at", "0", "--values", "3"]
    assert main(["cuts", NET, *words, "--out", str(tmp_path)]) == 0
    row, _ = json.loads((tmp_path / "cuts.json").read_text())
    assert row["shape"] == [3] and row["bytes"] == 12
    assert row["attack"] is None or row["attack"]["mse"] > 0
    page = unescape((tmp_path / "report.html").read_text())
    assert "at most 3 values, which as many other images decided" in page and "on 40 images" in page


def test_an_estimated_error_has_its_interval() -> None:
    """Lanczos' method has an error of its own beside that of few images; Jacobians have none."""
    images = torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    encoder, _ = fedcel.split(build_net(), "0")
    exact, free = (
        linearise(encoder, images, noise=0.1, dense=dense).measure() for dense in (True, False)
    )
    assert format_error(exact) == f"{exact.mmse:.4f}"
    interval = free.mmse_half_width + free.mmse_error
    assert format_error(free) == f"{free.mmse:.4f} ± {interval:.4f}"


def test_limits_that_nothing_meets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The nearest cut is named, and all that was measured is written; exit 1."""
    words = ["--images", "40", "--attack", "none", "--max-bytes", "8", "--out", str(tmp_path)]
    assert main(["cuts", NET, "--data", "digits", *words]) == 1
    assert "None of 2 cuts meets the limits; 1 comes nearest: 32 bytes" in capsys.readouterr().err
    rows = json.loads((tmp_path / "cuts.json").read_text())
    assert not any(row["recommended"] for row in rows)
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize("error", [RuntimeError("defect"), FailedError("killed")])
def test_a_crash_is_no_answer(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 3: 1 says that no cut meets the limits. A defect has its traceback."""

    def crash(*_: object) -> None:
        raise error

    monkeypatch.setattr("sims.auditing.cuts.compare_model_cuts", crash)
    assert main(["cuts", NET, "--data", "digits"]) == 3
    printed = capsys.readouterr().err
    assert f"fedcel: {error}" in printed or f"RuntimeError: {error}" in printed
    assert ("Traceback" in printed) == (not isinstance(error, FailedError))


def test_the_chart_names_the_cuts_that_matter() -> None:
    """Good cuts have a name each, all others one; each measure has its panel."""
    images = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    cuts = fedcel.compare_cuts(build_net(), images, at=["0", "1"])
    first, last = cuts.cuts
    worse = [replace(last, layer=f"deep{n}", macs=last.macs + n) for n in (1, 2)]
    charts = chart_cuts(replace(cuts, cuts=[first, last, *worse]))
    (title, linearised), (exact_title, exact) = charts.items()
    assert cuts.recommended is last and "linearised bits" in title
    assert "exact bits" in exact_title and exact_title.endswith("of these 20 images")
    names = {s.name: [point.name for point in s.points] for s in linearised.series}
    assert names["→ 1"] == ["1"] and {"deep1", "deep2"} <= {*names["other cuts"]}
    (answer,) = (
        point for s in exact.series for point in s.points if point.name == cuts.answer.layer
    )
    assert answer.y == cuts.answer.exact_bits


def test_a_program_of_torch_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is cut at the names that its module had."""
    batch = {0: torch.export.Dim("batch", min=1, max=4096)}
    program = torch.export.export(build_net(), (torch.rand(2, 1, 8, 8),), dynamic_shapes=(batch,))
    torch.export.save(program, tmp_path / "net.pt2")
    words = ["--images", "20", "--attack", "none", "--at", "0"]
    assert main(["cuts", str(tmp_path / "net.pt2"), "--data", "digits", *words]) == 0
    text = capsys.readouterr().out
    assert "Cut at 0" in text and "exact bits" in text and "unseen images" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([NET, "--max-bits", "1", "--min-mse", "0.1"], "both limit the leak"),
        ([NET, "--max-loss", "-1"], "max-loss is -1"),
        ([NET, "--all", "--at", "0"], "leave one of them out"),
        ([NET, "--at", "2.5"], "cut at one of"),
        ([NET, "--size", "20"], "--size and --grey"),
        ([f"{__name__}:Branching"], "test_cuts.py, line"),
        (["net.onnx"], "an ONNX file without layers"),
        (["."], "a run, which is cut already"),
        ([NET, "--images", "5"], "--images"),
        ([NET, "--images", "60", "--values", "31"], "must be 62 or more with values 31"),
        (["nowhere:net", "--attack", "kernelridge"], "--attack is 'kernelridge'; did you mean"),
        (["nowhere:net", "--attack", "decoder,rmle"], "must be one attack"),
        (["nowhere:net", "--attack", "optimal"], "which rebuilds nothing"),
        (["nowhere:net", "--attack", "shadow"], "needs more than messages"),
        (["nowhere:net", "--attack", "logit-inversion*4"], "needs more than messages"),
    ],
)
def test_refusals(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each in a line that says what is wrong; exit 2."""
    assert main(["cuts", *words, "--data", "digits"]) == 2
    assert message in capsys.readouterr().err
