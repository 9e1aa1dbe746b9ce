"""Attacks on an attribute: the trained one finds what there is and not more; both give rows."""

import pytest
import torch
from torch import nn

from fedcel.attacks import AttackedAttributes, run_attacks
from fedcel.attacks.attribute_inference import score_attribute_reader, train_attribute_reader
from fedcel.data import Images
from fedcel.leakage import SmashedData
from fedcel.nets import Cut, SplitNet
from fedcel.settings import AttackSettings
from tests.fedcel.seeded import seeded


def corners(seed: int, count: int) -> tuple[Images, torch.Tensor]:
    """Return images whose first two pixels are near a corner: the label is the first's side.

    The attribute is whether both sides differ: no linear reader of the pixels names it.
    """
    stream = seeded(seed)
    sides = torch.randint(2, (count, 2), generator=stream)
    x = torch.rand(count, 6, generator=stream)
    x[:, :2] = 0.25 + 0.5 * sides + 0.05 * x[:, :2]
    return Images(x[:, None, None, :], sides[:, 0]), sides[:, 0] ^ sides[:, 1]


def observe(sigma: float) -> SmashedData:
    """Return the first two pixels with noise."""
    pick = nn.Linear(6, 2, bias=False)
    with torch.no_grad():
        pick.weight.copy_(torch.eye(2, 6))
    encoder = nn.Sequential(nn.Flatten(), pick)
    return SmashedData(SplitNet(encoder, nn.Identity(), Cut(sigma), 2))


@pytest.mark.parametrize(("sigma", "low", "high"), [(0.01, 0.97, 1.0), (100.0, 0.4, 0.6)])
def test_reads_what_is_there(sigma: float, low: float, high: float) -> None:
    """All of it where the noise is small, a guess where it hides everything."""
    own, attributes = corners(0, 200)
    targets, truth = corners(1, 200)
    stream = seeded(2)
    reader = train_attribute_reader(observe(sigma), own, attributes, budget=0.25, generator=stream)
    accuracy = score_attribute_reader(reader, observe(sigma), targets, truth, generator=stream)
    assert low <= accuracy <= high


def test_the_training_ends_when_its_time_is_up() -> None:
    """One epoch, and a row that says so."""
    own, attributes = corners(0, 120)
    targets, truth = corners(1, 80)
    settings = AttackSettings(names="attribute", seeds=1, seconds=1e-9)
    rows = run_attacks(
        [observe(0.3)], settings, own, targets, seed=0,
        attributes=AttackedAttributes(attributes, truth),
    ).rows  # fmt: skip
    assert rows[1].attribute_accuracy is not None
    assert rows[1].share_of_steps == pytest.approx(1 / 240)
    assert rows[0].share_of_steps is None


def test_rows_of_the_optimal_and_the_trained_attacker() -> None:
    """The optimal one is never worse; without attributes a row says so."""
    own, attributes = corners(0, 120)
    targets, truth = corners(1, 80)
    settings = AttackSettings(names="attribute", seeds=1)
    rows = run_attacks(
        [observe(0.3)], settings, own, targets, seed=0,
        attributes=AttackedAttributes(attributes, truth),
    ).rows  # fmt: skip
    exact, trained = rows
    assert (exact.knowledge, trained.knowledge) == ("white-box", "held-out")
    assert exact.attribute_bits is not None and exact.attribute_cap is not None
    assert 0 < exact.attribute_bits < exact.attribute_cap <= 1
    assert exact.attribute_accuracy is not None and trained.attribute_accuracy is not None
    assert exact.attribute_accuracy > trained.attribute_accuracy - 0.05
    assert trained.attribute_accuracy > exact.attribute_by_label + 0.05
    (skipped,) = run_attacks([observe(0.3)], settings, own, targets, seed=0).rows
    assert skipped.skipped is not None and "data.labels" in skipped.skipped
