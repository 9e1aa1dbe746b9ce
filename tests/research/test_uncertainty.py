"""The table of uncertainties: members are averaged, points are points, strangers are told."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import uncertainty
from fedcel.errors import FedcelError, RunError
from fedcel.metrics import calibration
from fedcel.posterior.predict import predict
from fedcel.runs import run_folder
from fedcel.settings import parse_settings
from fedcel.torch_state import make_generator
from sims.bench import make_plain_variant
from sims.bench.scenario import Cell

RAW: dict[str, Any] = {
    "engine": "local",
    "clients": 2,
    "rounds": 6,
    "local.steps": 10,
    "chain.burn-in": 0.5,
    "chain.scope": "full",
}


def cells() -> list[Cell]:
    """Return two points of an ensemble and a posterior, of one seed."""
    return [
        Cell(
            make_plain_variant(name)._replace(title=name.partition("-")[0]),
            None,
            parse_settings(RAW | change),
        )
        for name, change in (
            ("deep-member-1", {"temperature": 0.0}),
            ("deep-member-2", {"temperature": 0.0, "net.seed": 1}),
            ("posterior", {}),
        )
    ]


def test_members_are_one_line_and_strangers_are_told_apart(tmp_path: Path) -> None:
    """The ensemble's accuracy and NLL are of the mean probability of two last models."""
    made = cells()
    for cell in made:
        assert uncertainty.train_cell(cell, tmp_path) == cell.name
    found = uncertainty.group_cells(made, tmp_path)
    assert [(one.title, len(one.runs[0])) for one in found] == [("deep", 2), ("posterior", 1)]
    members = [run_folder.read_run(path) for path in found[0].runs[0]]
    assert not torch.equal(members[0].model, members[1].model)
    x, y = members[0].splits.test
    each = [
        predict(m.flat, [m.model], x, make_generator(0, "test-noise"), scope="full").probabilities
        for m in members
    ]
    told = uncertainty.measure_models(members)
    assert told["nll"] == pytest.approx(calibration.nll((each[0] + each[1]) / 2, y))
    assert told["nll"] < sum(calibration.nll(p, y) for p in each) / 2  # Jensen
    same = uncertainty.measure_models(members, x)
    assert same["auroc"] == pytest.approx(0.5)
    scores = list(uncertainty.score_cells(made, tmp_path))
    assert [(s.name, s.runs, s.seed) for s in scores] == [("deep", 2, 0), ("posterior", 1, 0)]
    assert uncertainty.INFORMATION not in scores[0].scores  # its rounds have no noise
    assert scores[0].scores["client-drift"] > 0
    shifted = uncertainty.measure_models(members, shifted=True)
    assert shifted["nll-noisy"] > shifted["nll"] == told["nll"]
    assert shifted["nll-turned"] > shifted["nll"] != shifted["nll-calibrated"]
    lines = uncertainty.format_table(scores).splitlines()
    assert lines[0].startswith("| strength | variant | accuracy")
    assert lines[2].endswith("| 2 |")
    assert lines[3].endswith("| 1 |")
    change = {"temperature": 0.0, "engine": "auto", "local.at-once": 1}
    same_model = made[0]._replace(settings=parse_settings(RAW | change))
    assert uncertainty.train_cell(same_model, tmp_path) == made[0].name
    other = made[0]._replace(settings=parse_settings(RAW | {"temperature": 0.0, "rounds": 7}))
    with pytest.raises(RunError, match="made with other settings"):
        uncertainty.train_cell(other, tmp_path)


def test_rounds_are_summed_where_each_has_a_bound(tmp_path: Path) -> None:
    """Nats add up over rounds and members; one round without noise leaves nothing to say."""
    for name, changes in (("a", {}), ("b", {}), ("c", {"no": 1.0})):
        events = [
            {"client-drift": 1.0, "update-information": 2.0},
            {"client-drift": 3.0, "r-hat": 1.2, "ess": 9.0, "update-information": 5.0},
        ]
        if changes:
            del events[0]["update-information"]
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.jsonl").write_text("\n".join(map(json.dumps, events)))
    both = uncertainty.measure_rounds([tmp_path / "a", tmp_path / "b"])
    assert both == {"update-information": 14.0, "client-drift": 2.0, "r-hat": 1.2, "ess": 9.0}
    assert "update-information" not in uncertainty.measure_rounds([tmp_path / "a", tmp_path / "c"])


def test_means_have_a_line_for_each_strength_and_variant() -> None:
    """Over seeds; a dash for a score that was not measured."""
    rows = [
        uncertainty.UncertaintyRow(
            name="head", title="HEAD", strength=0.3, seed=seed, runs=4, scores={"nll": 0.2 + seed}
        )
        for seed in range(3)
    ]
    (_, _, line) = uncertainty.format_table(rows).splitlines()
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells == ["0.3", "HEAD", "–", "1.200 ± 2.484", "–", "–", "–", "4"]


def test_colour_does_not_meet_grey() -> None:
    """The remedy is said; grey images are resized."""
    small = uncertainty.resize_images(torch.rand(3, 1, 28, 28), torch.rand(2, 1, 8, 8))
    assert small.shape == (3, 1, 8, 8)
    with pytest.raises(RunError, match="3 channels"):
        uncertainty.resize_images(torch.rand(3, 3, 8, 8), torch.rand(2, 1, 8, 8))


def test_lacking_strangers_are_refused_before_anything_is_trained(tmp_path: Path) -> None:
    """No run is begun."""
    with pytest.raises(FedcelError, match="no folder"):
        uncertainty.compare_calibration(
            "uncertainty", tmp_path / "out", jobs=1, overrides={}, outside=str(tmp_path / "gone")
        )
    assert not (tmp_path / "out").exists()


def test_one_temperature_undoes_overconfidence() -> None:
    """Labels drawn of p, told as p^3: t is 3 again; what is calibrated keeps t = 1."""
    stream = torch.Generator().manual_seed(1)
    p = torch.randn(20_000, 4, generator=stream, dtype=torch.float64).softmax(1)
    labels = torch.multinomial(p, 1, generator=stream)[:, 0]
    sharp = uncertainty.apply_temperature(p, 1 / 3)
    assert uncertainty.fit_temperature(sharp, labels) == pytest.approx(3, rel=0.03)
    assert uncertainty.fit_temperature(p, labels) == pytest.approx(1, rel=0.03)
    torch.testing.assert_close(uncertainty.apply_temperature(sharp, 3.0), p)


def test_images_are_turned_about_their_centre() -> None:
    """A centred disc stays; a bar does not, and each image turns one way or the other."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, 33), torch.linspace(-1, 1, 33), indexing="ij")
    disc, bar = (x**2 + y**2 < 0.5).float(), (x.abs() < 0.2).float()
    stream = torch.Generator().manual_seed(0)
    turned = uncertainty.turn_images(torch.stack([disc] * 8 + [bar] * 8)[:, None], stream)
    assert (turned[:8, 0] - disc).abs().mean() < 0.03
    assert (turned[8:, 0] - bar).abs().mean() > 0.1
    assert len(torch.unique(turned[8:].flatten(1), dim=0)) == 2


def test_noise_is_of_the_stated_size() -> None:
    """Grey images get noise of .2; black ones stay in [0, 1]."""
    stream = torch.Generator().manual_seed(0)
    noisy = uncertainty.add_pixel_noise(torch.full((50, 1, 8, 8), 0.5), stream)
    assert noisy.std().item() == pytest.approx(0.2, rel=0.05)
    assert uncertainty.add_pixel_noise(torch.zeros(5, 1, 8, 8), stream).min() == 0
