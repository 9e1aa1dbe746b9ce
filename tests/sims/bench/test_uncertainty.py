"""The table of uncertainties: members are averaged, points are points, strangers are told."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedcel.errors import FedcelError, RunError, SettingsError
from fedcel.metrics import calibration
from fedcel.posterior.predict import predict
from fedcel.runs import run_folder
from fedcel.seeding import make_generator
from fedcel.settings import parse_settings
from sims.bench import scenario, uncertainty
from sims.bench.scenario import Cell
from sims.bench.shifted_images import parse_shifts
from sims.results.records import UncertaintyRow

RAW: dict[str, Any] = {
    "engine": "local",
    "clients": 2,
    "rounds": 6,
    "local.steps": 10,
    "chain.burn-in": 0.5,
    "chain.scope": "full",
    "privacy.epsilons": "4",
}


def cells() -> list[Cell]:
    """Return two points of an ensemble and a posterior, of one seed."""
    return [
        Cell(
            scenario.make_plain_variant(name)._replace(title=name.partition("-")[0]),
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
    told = uncertainty.measure_models(members, None)
    assert told["nll"] == pytest.approx(calibration.nll((each[0] + each[1]) / 2, y))
    assert told["nll"] < sum(calibration.nll(p, y) for p in each) / 2  # Jensen
    same = uncertainty.measure_models(members, parse_settings({**RAW, "seed": 0}))
    assert same["auroc"] == pytest.approx(0.5)
    scores = uncertainty.score_cells(made, tmp_path)
    assert [(s.name, s.runs, s.seed) for s in scores] == [("deep", 2, 0), ("posterior", 1, 0)]
    assert uncertainty.INFORMATION not in scores[0].scores  # its rounds have no noise
    assert scores[0].scores["client-drift"] > 0
    shifted = uncertainty.measure_models(members, None, parse_shifts("noisy"))
    assert shifted["nll-noisy"] > shifted["nll"] == told["nll"]
    assert shifted["nll-calibrated"] != shifted["nll"]
    lines = uncertainty.format_table(scores).splitlines()
    assert lines[0].startswith("| variant | accuracy")
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


def test_differences_are_paired_by_seed() -> None:
    """What a seed does to both cancels; a seed that one of them lacks is left out."""

    def score(name: str, seed: int, nll: float) -> UncertaintyRow:
        scores = {"nll": nll, "of a chain" if name == "ours" else "other": 1.0}
        return UncertaintyRow(
            name=name, title=name.upper(), strength=0.3, seed=seed, runs=1, scores=scores
        )

    ours = [score("ours", seed, 0.2 + seed) for seed in range(3)]
    base = [score("base", seed, 0.3 + seed) for seed in range(3)]
    text = uncertainty.format_table([*base, *ours], "base")
    assert "**At 0.3**" in text
    lines = text.split("Difference to BASE, paired by seed:")[1].strip().splitlines()
    assert [cell.strip() for cell in lines[2].split("|")[1:-1]] == [
        "OURS", "–", "-0.100 ± 0.000", "–", "–", "–"
    ]  # fmt: skip
    assert len(lines) == 3
    assert "-0.100 |" in uncertainty.format_table([base[0], *ours[:1], ours[2]], "base")
    assert "Difference" not in uncertainty.format_table([*base, *ours])
    with pytest.raises(SettingsError, match="--against is 'x', must be one of base, ours"):
        uncertainty.format_table([*base, *ours], "x")


def test_colour_does_not_meet_grey() -> None:
    """The remedy is said; grey images are resized."""
    small = uncertainty.resize_images(torch.rand(3, 1, 28, 28), torch.rand(2, 1, 8, 8))
    assert small.shape == (3, 1, 8, 8)
    with pytest.raises(RunError, match="3 channels"):
        uncertainty.resize_images(torch.rand(3, 3, 8, 8), torch.rand(2, 1, 8, 8))


@pytest.mark.parametrize(
    ("outside", "against", "reason"), [("idx", "none", "no folder"), ("none", "mine", "--against")]
)
def test_what_is_wrong_is_said_before_anything_is_trained(
    tmp_path: Path, outside: str, against: str, reason: str
) -> None:
    """Strangers that are not there, a variant that is none: no run is begun."""
    gone = str(tmp_path / "gone")
    with pytest.raises(FedcelError, match=reason):
        uncertainty.compare_calibration(
            "uncertainty",
            tmp_path / "out",
            jobs=1,
            overrides={},
            outside=outside,
            outside_path=gone,
            against=against,
        )
    assert not (tmp_path / "out").exists()
