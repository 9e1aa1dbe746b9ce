"""Every kind of loss and defence holds its contract."""

import pytest

from fedcel.losses.cel import (
    CEL,
    Cluster,
    CutShape,
    Gated,
    Hybrid,
    MutualInformation,
    Plain,
)
from fedcel.losses.defences import Adversarial, NoPeek
from fedcel.testing import check_cel, check_defence
from tests.fedcel.losses.cel.gates import MODES
from tests.fedcel.losses.single import TermLoss, bind_rival, options

CASES: dict[str, CEL] = {
    "plain": Plain(penalty="linear"),
    "pooled": Plain(penalty="linear", pool="mean"),
    "clusters": Cluster(penalty="linear", clusters=2),
    "clusters by count": Cluster(penalty="linear", clusters=0),
    "small reservoir": Cluster(penalty="linear", clusters=1),
    "diagonal": Cluster(penalty="linear", clusters=2, clustering="diagonal"),
    "full": Cluster(penalty="linear", clusters=2, clustering="full"),
    "truncated": Cluster(penalty="linear", clusters=2, clustering="truncated-k-means"),
    **{mode: Gated(penalty="linear", attention=mode) for mode in MODES},
    "hybrid": Hybrid(penalty="linear", clusters=2),
    "hybrid by default": Hybrid(penalty="linear"),
    "information": options(kind="mutual-information"),
    "lower information": MutualInformation(bound="lower"),
}


def test_every_kind_is_a_case() -> None:
    """But for none and a loss of the user's own, which have contracts of their own."""
    assert {cel.kind for cel in CASES.values()} == set(CEL.list_names()) - {"none"}


@pytest.mark.parametrize("name", CASES)
def test_a_conditional_entropy_holds_its_contract(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draw of 3 examples a class has a centre that is none of them.

    No truncated cluster is too wide: members that are left out have no gradient.
    """
    if name == "truncated":
        monkeypatch.setattr("fedcel.losses.cel.kmeans.OUTLIER_FACTOR", 100.0)
    if name == "small reservoir":
        monkeypatch.setattr("fedcel.losses.cel.cluster.RESERVOIR_SIZE", 3)

    def build() -> TermLoss:
        positions = 2 if name == "pooled" else 1
        loss = CASES[name].bind(CutShape(3, 4 * positions, 1.0, positions))
        assert loss is not None
        return TermLoss(loss)

    check_cel(build)


@pytest.mark.parametrize("rival", [NoPeek(), Adversarial()], ids=["nopeek", "adversarial"])
def test_a_defence_holds_its_contract(
    rival: NoPeek | Adversarial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small adversary that steps far."""
    monkeypatch.setattr("fedcel.losses.defences.adversarial.WIDTH", 32)
    monkeypatch.setattr("fedcel.losses.defences.adversarial.Adversarial.rate", 0.01)
    check_defence(lambda: TermLoss(bind_rival(rival).term))
