"""Every kind of loss and defence holds its contract."""

import pytest

from fedcel.losses import TermLoss
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
from tests.fedcel.losses.single import bind_rival, options

CASES: dict[str, CEL] = {
    **{kind: options(kind=kind) for kind in CEL.list_names() if kind != "none"},
    "linear": Plain(penalty="linear"),
    "pooled": Plain(penalty="linear", pool="mean"),
    "clusters": Cluster(penalty="linear", clusters=2),
    "clusters by count": Cluster(penalty="linear", clusters=0),
    "diagonal": Cluster(penalty="linear", clusters=2, clustering="diagonal"),
    "full": Cluster(penalty="linear", clusters=2, clustering="full"),
    "truncated": Cluster(penalty="linear", clusters=2, clustering="truncated-k-means"),
    **{mode: Gated(penalty="linear", attention=mode) for mode in MODES},
    "hybrid": Hybrid(penalty="linear", clusters=2),
    "lower information": MutualInformation(bound="lower"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_conditional_entropy_holds_its_contract(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No truncated cluster is too wide: members that are left out have no gradient."""
    if name == "truncated":
        monkeypatch.setattr("fedcel.losses.cel.kmeans.OUTLIER_FACTOR", 100.0)

    def build() -> TermLoss:
        positions = 2 if name == "pooled" else 1
        return TermLoss(CASES[name].bind(CutShape(3, 4 * positions, 1.0, positions)))

    check_cel(build)


@pytest.mark.parametrize("rival", [NoPeek(), Adversarial()], ids=["nopeek", "adversarial"])
def test_a_defence_holds_its_contract(
    rival: NoPeek | Adversarial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small adversary that steps far."""
    monkeypatch.setattr("fedcel.losses.defences.adversarial.WIDTH", 32)
    monkeypatch.setattr("fedcel.losses.defences.adversarial.Adversarial.rate", 0.01)
    check_defence(lambda: TermLoss(bind_rival(rival).term))
