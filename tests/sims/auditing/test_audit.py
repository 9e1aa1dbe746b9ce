"""`fedcel audit` on encoders and images of every kind, as a user types it."""

import json
import os
import re
from dataclasses import replace
from html import unescape
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import fedcel
from fedcel.attacks import Decoder, attack_clock
from fedcel.data import Digits, Npz, Source, load_splits
from fedcel.errors import DataError, NetError
from fedcel.leakage import LeakTarget
from fedcel.runs import run_folder
from fedcel.settings import DataSettings, Scalar, Settings, parse_settings
from sims import progress
from sims.auditing import AuditPlan, audit_encoder
from sims.auditing.find_images import draw_images, find_source
from sims.commands.main import main
from sims.commands.onnx_export import convert_encoder
from sims.engines import local
from tests.sims.auditing import test_load_encoder

ENCODER = "tests.sims.auditing.test_load_encoder:ENCODER"
EXAMPLES = Path(__file__).parents[3] / "examples" / "library"
BITS = ["--attacks", "none"]


def test_the_bits_are_those_of_measure_leakage(capsys: pytest.CaptureFixture[str]) -> None:
    """On the images that were drawn, and printed in the same words."""
    words = ["--noise", "0.3", "--images", "200", *BITS]
    assert main(["audit", ENCODER, "--data", "digits", *words]) == 0
    images, *_ = draw_images(Digits(), 200)
    leak = fedcel.measure_leakage(test_load_encoder.ENCODER, images.x, images.y, noise=0.3)
    shown = capsys.readouterr().out.splitlines()
    lines = str(leak).splitlines()
    assert shown[0] == lines[0] and [line for line in shown if line in lines] == lines
    assert f"Encoder: Sequential of {ENCODER}." in shown


def test_noise_in_units_of_the_features(capsys: pytest.CaptureFixture[str]) -> None:
    """A multiple of their standard deviation over the images, which is stated."""
    words = ["audit", ENCODER, "--data", "digits", "--images", "200", *BITS]
    assert main([*words, "--noise", "0.5sd"]) == 0
    relative = capsys.readouterr().out
    images, *_ = draw_images(Digits(), 200)
    with torch.no_grad():
        spread = float(test_load_encoder.ENCODER(images.x).var(0).mean().sqrt())
    assert f"their standard deviation is {spread:.3g}" in relative
    assert main([*words, "--noise", repr(0.5 * spread)]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == relative.splitlines()[:2]
    assert main([*words, "--noise", "halfsd"]) == 2
    assert "such as 0.5sd" in capsys.readouterr().err


def build_classifier() -> nn.Module:
    """Digits by the nearest class mean: a whole model, cut behind its first layer."""
    images, labels = load_splits(DataSettings(), 3, 0).training
    means = torch.stack([images[labels == digit].mean(0).flatten() for digit in range(10)])
    first, last = nn.Linear(64, 32), nn.Linear(32, 10)
    with torch.no_grad():
        basis = torch.linalg.svd(means, full_matrices=True).Vh[:32]
        first.weight.copy_(basis)
        first.bias.zero_()
        last.weight.copy_(2 * means @ basis.T)
        last.bias.copy_(-means.square().sum(1))
    return nn.Sequential(nn.Sequential(nn.Flatten(), first), last)


TARGET = ["audit", f"{__name__}:build_classifier", "--data", "digits", "--images", "200", *BITS]


@pytest.mark.parametrize(
    ("words", "target"),
    [
        (["--target-bits", "6"], {"bits": 6.0, "mse": None}),
        (["--target-bits", "6", "--per-feature"], {"bits": 6.0, "mse": None}),
        (["--target-mse", "0.03"], {"bits": None, "mse": 0.03}),
    ],
)
def test_noise_for_a_target(
    words: list[str],
    target: dict[str, float | None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The leak meets it; noise, and the accuracy that is left, are those of an audit with it."""
    assert main([*TARGET, "--at", "0", *words, "--out", str(tmp_path)]) == 0
    first, second, *lines = capsys.readouterr().out.splitlines()
    record = json.loads((tmp_path / "audit.json").read_text())
    noise, picture = record["noise"], record["leak"]["linearised"]
    assert record["target"] == target
    key = "bits" if target["mse"] is None else "mmse"
    assert picture[key] == pytest.approx(target["bits"] or target["mse"])
    assert f"{noise:.4g} ({record['noise-in-sd']:.3g} times that of the features)" in first
    accuracy = record["accuracy"]
    assert accuracy["is_of_labels"] and 0.2 < accuracy["noisy"] < accuracy["clean"]
    assert f"right in {accuracy['noisy']:.1%} of cases" in second
    assert [part["messages"] for part in record["sequences"]] == [1, 4, 16, 64, 256]
    assert record["sequences"][0]["bits"] == pytest.approx(picture["bits"])
    page = (tmp_path / "report.html").read_text()
    assert "Several messages of one image" in page and first in unescape(page)
    assert 'alt="sent 1: "' in page  # beside its map, also where nothing was attacked
    if "--per-feature" in words:
        deviations = np.array(record["noise-per-feature"])
        assert deviations.min() < noise < deviations.max() and len(deviations) == 32
        assert np.sqrt(np.mean(deviations**2)) == pytest.approx(noise)
        return
    assert main([*TARGET, "--at", "0", "--noise", repr(noise)]) == 0
    again = capsys.readouterr().out.splitlines()
    assert second in again
    assert sorted(line for line in again if line != second) == sorted(lines[:-1])


def build_backbone() -> nn.Module:
    """Two layers that give channels of pixels: no classifier."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.Conv2d(4, 5, 2))


def test_a_model_without_classes_has_no_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    """Its rest is no head."""
    words = ["--at", "0", "--target-bits", "6", "--images", "60", *BITS]
    assert main(["audit", f"{__name__}:build_backbone", "--data", "digits", *words]) == 0
    output = capsys.readouterr().out
    assert "which leaves 6 bits" in output and "With this noise" not in output


def test_an_encoder_without_a_gradient_is_told_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an ONNX file the picture is not estimated, and no noise is found for a target."""
    path = tmp_path / "encoder.onnx"
    model = convert_encoder(test_load_encoder.ENCODER, (1, 8, 8))
    path.write_bytes(model.SerializeToString())
    words = ["audit", str(path), "--data", "digits", "--images", "30", *BITS]
    assert main([*words, "--noise", "0.1"]) == 0
    assert "without a gradient; a module or a .pt2 file has one" in capsys.readouterr().out
    assert main([*words, "--target-bits", "3"]) == 2
    assert "--target-bits 3 needs the estimate" in capsys.readouterr().err


def test_targets_that_no_noise_is_found_for(capsys: pytest.CaptureFixture[str]) -> None:
    """A line each with the nearest value, or the reason; exit 2."""
    for words, reason in (
        (["--target-mse", "0.5"], "must be below 0.0"),
        (["--target-bits", "1e9"], "which one message tells with next to no noise"),
        (["--target-bits", "6", "--dropout", "0.1"], "features are dropped at random"),
    ):
        assert main([*TARGET, *words]) == 2
        assert reason in capsys.readouterr().err


def test_attacks_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page has the lines, the score card and the pictures; audit.json has all numbers."""
    words = ["--noise", "0.1", "--images", "60", "--targets", "20", "--attacks", "kernel-ridge"]
    assert main(["audit", ENCODER, "--data", "digits", *words, "--out", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "kernel-ridge, rebuilds an image" in output and f"report: {tmp_path}" in output
    record = json.loads((tmp_path / "audit.json").read_text())
    assert record["noise"] == 0.1 and record["targets"] == 20
    assert record["leak"]["candidates"] == 60 and "kernel-ridge" in record["attacks"]
    page = (tmp_path / "report.html").read_text()
    # Originals and one attack; of five images these and three rows of maps.
    assert page.count("data:image/png;base64,") == 2 * 12 + 4 * 5
    assert "unknown without a message" in page
    assert 0 < record["leak"]["linearised"]["mmse"] < record["leak"]["linearised"]["prior_variance"]
    assert "bits beyond the label" in page and "Gaussian noise of standard deviation 0.1" in page


def test_an_interrupted_audit_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the second attack: bits and first attack are in the file, the bits printed; exit 130."""
    words = ["audit", ENCODER, "--data", "digits", "--noise", "0.1", "--images", "60"]
    words += ["--targets", "20", "--attacks", "kernel-ridge,decoder", "--budget", "0.05"]
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    whole = json.loads((tmp_path / "whole" / "audit.json").read_text())
    assert "attacks-missing" not in whole

    def interrupt(*_: object, **__: object) -> None:
        record = json.loads((tmp_path / "cut" / "audit.json").read_text())
        assert record["attacks"].keys() == {"kernel-ridge"}
        raise KeyboardInterrupt

    capsys.readouterr()
    monkeypatch.setattr(Decoder, "reconstruct", interrupt)
    assert main([*words, "--out", str(tmp_path / "cut")]) == 130
    output, error = capsys.readouterr()
    path = tmp_path / "cut" / "audit.json"
    assert error.endswith(f"fedcel: interrupted; what was found until then is kept in {path}\n")
    assert "bits about the image" in output
    record = json.loads(path.read_text())
    assert record.pop("attacks-missing") == ["decoder"]
    assert record["leak"] == whole["leak"]
    assert record["attacks"] == {"kernel-ridge": whole["attacks"]["kernel-ridge"]}
    assert not (tmp_path / "cut" / "report.html").exists()


def test_exact_bits_are_kept_before_the_picture_is_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The estimate takes the longest where there is no attack; a stop there loses no bits."""
    words = ["audit", ENCODER, "--data", "digits", "--noise", "0.1", "--images", "60", *BITS]
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    whole = json.loads((tmp_path / "whole" / "audit.json").read_text())
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert len(lines) == len({*lines})
    estimate = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr("sims.auditing.audit.measure_linearised", estimate)
    assert main([*words, "--out", str(tmp_path / "cut")]) == 130
    kept = json.loads((tmp_path / "cut" / "audit.json").read_text())
    assert kept["leak"]["linearised"] is None and whole["leak"]["linearised"] is not None
    assert kept["leak"] | {"linearised": None} == whole["leak"] | {"linearised": None}
    assert lines[0] in capsys.readouterr().out


def test_attacks_find_alone_what_they_find_together() -> None:
    """One call of `invert` each, so that each is kept: the numbers are those of one call.

    Up to rounding, which depends on where the images lie in memory.
    """
    images, *_ = draw_images(Digits(), 60)
    names = ("kernel-ridge", "decoder")
    plan = AuditPlan(model=ENCODER, data="digits", noise=0.1, images=60, targets=20, attacks=names)
    audit = audit_encoder(replace(plan, budget=0.05))
    together = fedcel.invert(
        test_load_encoder.ENCODER,
        images.x[:20],
        images.y[:20],
        auxiliary=images.x[20:],
        auxiliary_labels=images.y[20:],
        noise=0.1,
        attacks=names,
        budget=0.05,
    )
    assert audit.inversion is not None
    alone, whole = (found.to_dict() for found in (audit.inversion, together))
    assert alone.keys() == whole.keys() == set(names)
    for name in names:
        assert alone[name] == pytest.approx(whole[name], rel=1e-6)


def test_attacks_end_after_some_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The share of their steps is told; one that would take hours is left out, and why."""
    pytest.importorskip("matplotlib")
    clock = SimpleNamespace(monotonic=iter(range(10**9)).__next__)
    monkeypatch.setattr(attack_clock, "time", clock)
    words = ["audit", ENCODER, "--data", "digits", "--images", "60", "--noise", "0.1"]
    words += ["--out", str(tmp_path / "a")]
    assert main([*words, "--attacks", "decoder", "--seconds", "30"]) == 0
    record = json.loads((tmp_path / "a" / "audit.json").read_text())
    share = record["attacks-stopped"]["decoder"]
    assert 0 < share < 0.5 and record["seconds-limit"] == 30
    sentence = f"decoder was stopped at 30 s, {share:.0%} of its steps."
    assert sentence in capsys.readouterr().out
    assert sentence in (tmp_path / "a" / "report.html").read_text()
    monkeypatch.setattr(attack_clock, "MOST_SECONDS", 10)
    assert main([*words, "--attacks", "decoder,kernel-ridge"]) == 0
    record = json.loads((tmp_path / "a" / "audit.json").read_text())
    assert [*record["attacks"]] == ["kernel-ridge"]
    assert record["attacks-skipped"]["decoder"].startswith("it would take about")
    assert "decoder is left out: it would take about" in capsys.readouterr().err
    assert "decoder is left out: it would" in (tmp_path / "a" / "report.html").read_text()
    assert main([*words, "--seconds", "-1"]) == 2
    assert "--seconds is -1, must be a finite number, 0 or more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--target-bits", "6", "--noise", "1"], "leave one of them out"),
        (["--target-bits", "6", "--target-mse", "1"], "both are given; give one of them"),
        (["--target-bits", "-6"], "--target-bits is -6"),
        (["--noise", "1", "--per-feature"], "give --target-bits or --target-mse"),
        (["--noise", "nan"], "--noise is nan"),
        (["--noise", "inf"], "--noise is inf"),
        (["--noise", "1", "--dropout", "nan"], "--dropout is nan"),
        (["--noise", "1", "--budget", "0"], "--budget is 0"),
        (["--noise", "1", "--std", "0"], "--std has 0, must be above 0"),
        (["--noise", "1", "--attacks", "decoder,decodr"], "did you mean 'decoder'"),
        (["--noise", "1", "--attacks", "optimal"], "'optimal', which rebuilds nothing"),
    ],
)
def test_options_are_checked_before_anything_is_read(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The encoder is not looked for: it may take minutes to load, and images to read."""
    assert main(["audit", "nowhere:at_all", "--data", "digits", *words]) == 2
    error = capsys.readouterr().err
    assert reason in error and "Traceback" not in error


def test_one_image_a_class_is_told_in_bits_about_the_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines, bar and table lead with what there is; no bits beyond labels that occur once."""
    images, *_ = draw_images(Digits(), 20)
    np.savez(tmp_path / "faces.npz", x_train=images.x.numpy(), y_train=np.arange(20))
    words = ["--noise", "0.001", *BITS, "--out", str(tmp_path / "audit")]
    assert main(["audit", ENCODER, "--data", str(tmp_path / "faces.npz"), *words]) == 0
    said = capsys.readouterr().out
    assert said.startswith("One message tells the best possible attacker 4.32 ± 0.01 of 4.32 bits")
    assert "each label occurs once" in said
    page = (tmp_path / "audit" / "report.html").read_text()
    assert "4.32 of 4.32 bits" in page
    assert "<th>bits beyond the label" not in page and "0.00 of 0.0" not in page


def train(folder: Path, **change: Scalar) -> Settings:
    """Train a run of three clients, which is not measured; return its settings."""
    settings = parse_settings({"clients": 3, **change})
    run_folder.create_run(folder, settings)
    local.train_locally(settings, folder, lambda _: None, measure=False)
    return settings


def test_a_run_is_audited_with_its_own_noise(tmp_path: Path) -> None:
    """Nothing but the folder and the images is needed."""
    folder = tmp_path / "run"
    settings = train(folder, **{"rounds": 2, "local.steps": 2, "temperature": 0.0})
    audit = audit_encoder(AuditPlan(model=str(folder), data="digits", attacks=(), images=100))
    assert audit.noise == settings.net.noise and audit.leak.candidates == 100
    assert audit.note.startswith("None of the images was trained on.")
    assert audit.leak.verdict is None


def test_a_run_at_another_noise(tmp_path: Path) -> None:
    """The accuracy is that of its heads, whose samples are averaged, with that noise."""
    folder = tmp_path / "run"
    train(folder, **{"rounds": 12, "chain.burn-in": 0.7})
    plan = AuditPlan(model=str(folder), data="digits", attacks=(), images=200)
    hidden = audit_encoder(replace(plan, target=LeakTarget(bits=0.5)))
    clear = audit_encoder(replace(plan, noise=1e-6))
    assert hidden.leak.linearised_bits == pytest.approx(0.5)
    assert clear.accuracy is not None and hidden.accuracy is not None
    assert clear.accuracy.noisy == clear.accuracy.clean == hidden.accuracy.clean > 0.8
    assert hidden.accuracy.is_of_labels and hidden.accuracy.noisy < clear.accuracy.noisy
    assert hidden.leak.accuracy == hidden.accuracy.noisy


def test_images_of_the_training_are_not_measured() -> None:
    """An encoder leaks less of them: three times less where it fits them closely."""
    splits = load_splits(DataSettings(), 3, 0)
    drawn, *_ = draw_images(Digits(), 2000, trained_on=splits.training)
    seen = {image.numpy().tobytes() for image in splits.training.x}
    assert len(drawn.y) == 800 and not any(x.numpy().tobytes() in seen for x in drawn.x)


def test_a_run_that_learned_nothing_is_no_private_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its folder says so; so does the audit, and `privacy` recommends nothing."""
    folder = str(tmp_path / "run")
    keys = ["rounds=2", "local.rate=0.0001", "local.steps=2", "temperature=0", "data.test=120"]
    few = [*BITS, "--images", "100"]
    words = [word for key in keys for word in ("--set", key)]
    assert main(["simulate", "digits", "--engine", "local", *words, "--out", folder]) == 0
    capsys.readouterr()
    monkeypatch.setattr("sims.answers.VALIDATION_ANSWERS", 40)
    assert main(["audit", folder, "--data", "digits", *few]) == 0
    assert capsys.readouterr().out.startswith("Nothing was learned (accuracy")
    assert main(["audit", folder, "--data", "digits", "--noise", "0.01", *few]) == 0
    assert "Nothing was learned (accuracy" in capsys.readouterr().out
    assert main(["privacy", folder, "--clips", "1", "--epsilons", "1"]) == 0
    output = capsys.readouterr().out
    assert "nothing was learned" in output and "set it with" not in output


@pytest.mark.long
def test_a_backbone_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worked example, with weights that a file holds."""
    from torchvision.models import resnet18

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    torch.save(resnet18().state_dict(), "resnet18.pth")
    plan = AuditPlan(
        model="backbone:Encoder", data="digits", noise=0.5, size=32, images=60, attacks=()
    )
    assert audit_encoder(plan).leak.candidates == 60


def test_the_columns_of_a_table_are_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command's own option, which the refusal of two columns of numbers names."""
    pixels = np.random.default_rng(0).integers(0, 255, (12, 8, 8), dtype=np.uint8)
    encoded = [BytesIO() for _ in pixels]
    for file, picture in zip(encoded, pixels, strict=True):
        Image.fromarray(picture).save(file, "png")
    pictures = [file.getvalue() for file in encoded]
    columns = {"image": pictures, "digit": [k % 3 for k in range(12)], "age": list(range(12))}
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table(columns), path)
    words = ["audit", ENCODER, "--noise", "0.01", *BITS]
    assert main([*words, "--data", str(path)]) == 2
    assert "set --label-column to its name" in capsys.readouterr().err
    assert main([*words, "--data", str(path), "--label-column", "digit"]) == 0
    assert "of 2.00 bits about the image" in capsys.readouterr().out
    assert main([*words, "--data", "digits", "--label-column", "digit"]) == 2
    assert "'digit', and digits has no columns; leave it out" in capsys.readouterr().err


def test_images_of_many_sizes_are_told_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other commands have the setting of the same name."""
    for number in range(6):
        (tmp_path / str(number % 2)).mkdir(exist_ok=True)
        Image.new("L", (8, 8 + number // 4)).save(tmp_path / str(number % 2) / f"{number}.png")
    assert main(["audit", ENCODER, "--data", str(tmp_path), "--noise", "1", *BITS]) == 2
    assert "set --size to the side, such as 32" in capsys.readouterr().err


def test_each_part_that_takes_long_says_how_much_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And how long the others take: of reading, and of the messages that are drawn."""
    pixels = np.random.default_rng(0).integers(0, 255, (600, 8, 8), dtype=np.uint8)
    for number, picture in enumerate(pixels):
        (tmp_path / str(number % 2)).mkdir(exist_ok=True)
        Image.fromarray(picture).save(tmp_path / str(number % 2) / f"{number}.png")
    monkeypatch.setattr(progress, "LINE_SECONDS", -1)
    assert main(["audit", ENCODER, "--data", str(tmp_path), "--noise", "1", *BITS]) == 0
    said = capsys.readouterr().err
    assert re.search(r"reading the images of .*: 300 of 600 pictures, about \d+ s left", said)
    assert re.search(r"measuring the bits .*: \d+ of \d+ messages, about \d+ s left", said)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--data", "nowhere", "--noise", "1"], "'nowhere' is no folder or file"),
        (["--data", "digits", "--noise", "1", "--size", "9"], "refuses images"),
        (["--data", "digits"], "--noise is missing"),
    ],
)
def test_wrong_words_are_refused_in_a_line(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2, no traceback."""
    assert main(["audit", ENCODER, *words, "--images", "40"]) == 2
    error = capsys.readouterr().err
    assert reason in error and "Traceback" not in error


BLIND = nn.Sequential(
    nn.Conv2d(1, 2, 3), nn.Sequential(nn.BatchNorm2d(2, track_running_stats=False))
)


class Lost(nn.Module):
    """Raises what nobody foresaw."""

    def forward(self, images: Tensor) -> Tensor:
        """Look a layer up that is not there."""
        return {"layer": images}["layers"]


LOST = Lost()


class Threshold(nn.Module):
    """Works in place, or on a copy of its own."""

    def __init__(self, *, copies: bool) -> None:
        super().__init__()
        self.copies = copies

    def forward(self, images: Tensor) -> Tensor:
        if self.copies:
            images = images.clone()
        images[images < 0.6] = 0
        return images.flatten(1)


IN_PLACE, ON_COPY = Threshold(copies=False), Threshold(copies=True)
DEEP = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(9), nn.Flatten(), nn.Linear(2, 3))


@pytest.mark.parametrize(
    ("model", "words", "reason"),
    [
        ("BLIND", [], "layer '1.0' (BatchNorm2d) has no running statistics: features depend on"),
        ("ENCODER", ["--output", "pooled"], "--output is 'pooled'"),
        ("ENCODER", [], "refuses images (2, 3, 9, 9) of torch.float32: RuntimeError: "),
        ("LOST", [], "KeyError: 'layers' ("),
    ],
)
def test_faults_are_found_before_the_images_are_read(
    model: str,
    words: list[str],
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By the encoder alone, or by two pictures of many: the third is none and is never met."""
    side = 8 if model == "ENCODER" and words else 9
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.new("RGB", (side, side)).save(tmp_path / name / "0.png")
    Image.new("RGB", (side, side)).save(tmp_path / "a" / "1.png")
    (tmp_path / "b" / "2.png").write_bytes(b"no picture")
    if model == "ENCODER" and "--output" in words:
        words = [*words, "--grey"]
    reference = ENCODER if model == "ENCODER" else f"{__name__}:{model}"
    assert main(["audit", reference, "--data", str(tmp_path), "--noise", "1", *words]) == 2
    error = capsys.readouterr().err
    assert reason in error and "Traceback" not in error


def test_images_too_small_for_the_layers_behind_the_cut() -> None:
    """The encoder takes them, the rest of the model does not: refused with the way out."""
    plan = AuditPlan(model=f"{__name__}:DEEP", at="0", data="digits", noise=0.1, images=20)
    with pytest.raises(NetError, match=r"shape \(1, 8, 8\): its layers behind '0' say .*--size"):
        audit_encoder(plan)


def test_a_path_says_what_reads_it(tmp_path: Path) -> None:
    """Folders by what is in them, files by their ending, sources by their name."""
    pictures = np.random.default_rng(0).integers(0, 255, (6, 8, 8), dtype=np.uint8)
    for number, picture in enumerate(pictures):
        folder = tmp_path / "pictures" / str(number % 2)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(folder / f"{number}.png")
    np.savez(tmp_path / "own.npz", x_train=pictures, y_train=[0, 1] * 3)
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").touch()
    (tmp_path / "cifar").mkdir()
    (tmp_path / "cifar" / "data_batch_1.bin").touch()
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "train.parquet").touch()
    kinds = {
        "pictures": "image-folder",
        "own.npz": "npz",
        "mnist": "idx",
        "cifar": "cifar",
        "table": "huggingface",
    }
    for name, kind in kinds.items():
        assert find_source(str(tmp_path / name)) == (kind, str(tmp_path / name))
    assert find_source("digits") == ("digits", "none")
    assert find_source("package.module:read") == ("package.module:read", "none")
    (tmp_path / "odd.txt").touch()
    with pytest.raises(DataError, match="is a file of none of the kinds"):
        find_source(str(tmp_path / "odd.txt"))
    for path, message in (
        ("C:\\photos", "is no folder or file, or does not exist"),
        ("C:photos", "is no folder or file, or does not exist"),
        ("../photos:old/", "is no folder or file, or does not exist"),
        ("https://example.org/a:b", "is an address, and nothing is downloaded; fetch"),
        ("photos\udcff", "must be of characters that UTF-8 has; rename"),
        ("x" * 300, "is no folder or file, or does not exist"),
    ):
        with pytest.raises(DataError, match=message):
            find_source(path)
    source, path = find_source(str(tmp_path / "pictures"))
    assert len(draw_images(Source.model_validate({"source": source, "path": path}), 4)[0].y) == 4


def test_images_of_a_test_part_are_taken(tmp_path: Path) -> None:
    """An encoder leaks otherwise of images that it was trained on."""
    splits = load_splits(DataSettings(), 8, 0)
    x, y = splits.training
    np.savez(
        tmp_path / "own.npz",
        x_train=x.numpy(),
        y_train=y.numpy(),
        x_test=splits.test.x.numpy(),
        y_test=splits.test.y.numpy(),
    )
    data = Npz(path=str(tmp_path / "own.npz"))
    drawn, note, _ = draw_images(data, 1000)
    assert "test part" in note and "no test part" in draw_images(Digits(), 9)[1]
    assert len(drawn.y) == len(splits.test.y)
    assert (drawn.x.sum((1, 2, 3)).sort()[0] == splits.test.x.sum((1, 2, 3)).sort()[0]).all()


def test_labels_are_numbered_by_the_audit_itself(tmp_path: Path) -> None:
    """A sample of a thousand classes has gaps: which images are alike is all that is asked."""
    x, y = load_splits(DataSettings(), 8, 0).training
    odd = np.array([994, 3, 2_000_000_000])[y.numpy() % 3]
    np.savez(tmp_path / "own.npz", x_train=x.numpy(), y_train=odd, z=odd)
    images, note, _ = draw_images(Npz(path=str(tmp_path / "own.npz")), 50)
    assert sorted(set(images.y.tolist())) == [0, 1, 2]
    assert note.endswith("Of the source: arrays that are left out: z.")


def test_a_name_that_is_no_text_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bytes that are no UTF-8, as other systems leave them: exit 2, a line, nothing written."""
    pixels = np.random.default_rng(0).integers(0, 255, (12, 8, 8), dtype=np.uint8)
    path = tmp_path / os.fsdecode(b"caf\xe9.npz")
    np.savez(path, x_train=pixels, y_train=np.arange(12) % 2)
    words = ["audit", ENCODER, "--data", str(path), "--noise", "1", *BITS]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "must be of characters that UTF-8 has; rename the file or folder" in error
    assert not (tmp_path / "out" / "audit.json").exists()
