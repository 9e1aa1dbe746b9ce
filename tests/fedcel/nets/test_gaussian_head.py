"""The head of a Gaussian in bins: its probabilities, its gradients, what it learns."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from fedcel.errors import NetError
from fedcel.nets import Mlp, build_net
from fedcel.nets.gaussian_head import GaussianHead, log_interval


def set_constant(head: GaussianHead, mean: float, exponent: float) -> None:
    """Have the head answer everything with one Gaussian."""
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        head.mean.bias.fill_((mean - 0.5) * head.classes)
        layer = head.log_sd
        (layer.bias if isinstance(layer, nn.Linear) else layer.value).fill_(exponent)


@pytest.mark.parametrize("is_heteroscedastic", [False, True])
def test_bins_have_the_gaussians_probabilities(is_heteroscedastic: bool) -> None:
    """Against the error function; the outer bins are open, so that all add up to 1."""
    head = GaussianHead(3, 5, is_heteroscedastic=is_heteroscedastic).double()
    set_constant(head, 0.3, 0.5)
    deviation = math.exp(1 + 4 * math.tanh(0.125)) / 5
    edges = [-math.inf, 0.2, 0.4, 0.6, 0.8, math.inf]
    phi = [0.5 * (1 + math.erf((edge - 0.3) / deviation / math.sqrt(2))) for edge in edges]
    expected = torch.tensor([b - a for a, b in pairwise(phi)]).double()
    logits = head(torch.randn(4, 3).double())
    torch.testing.assert_close(logits.exp(), expected.expand(4, -1))
    torch.testing.assert_close(logits.softmax(1), logits.exp())


@pytest.mark.parametrize("mean", [-50.0, 0.0, 0.5, 50.0])
@pytest.mark.parametrize("exponent", [-100.0, 0.0, 100.0])
def test_far_bins_have_finite_logits_and_gradients(mean: float, exponent: float) -> None:
    """In float32, at both ends of the standard deviation."""
    head = GaussianHead(2, 10, is_heteroscedastic=True)
    set_constant(head, mean, exponent)
    logits = head(torch.ones(1, 2))
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in head.parameters())


def test_an_interval_far_out_keeps_its_digits() -> None:
    """On both sides; Phi itself is 1 there in double precision."""
    left = log_interval(torch.tensor(-41.0).double(), torch.tensor(-40.0).double())
    right = log_interval(torch.tensor(40.0).double(), torch.tensor(41.0).double())
    assert left == right
    assert float(left) == pytest.approx(
        -(40**2) / 2 - math.log(40 * math.sqrt(2 * math.pi)), abs=1e-3
    )


def test_it_learns_which_answers_are_sure() -> None:
    """Targets of sd .05 on one side and .2 on the other; one sd for all is in between."""
    stream = torch.Generator().manual_seed(0)
    side = torch.arange(2000) % 2
    y = 0.525 + torch.where(side == 1, 0.2, 0.05) * torch.randn(2000, generator=stream)
    bins = (20 * y).long().clamp(0, 19)
    x = side[:, None].float()
    deviations = []
    for is_heteroscedastic in (True, False):
        torch.manual_seed(0)
        head = GaussianHead(1, 20, is_heteroscedastic=is_heteroscedastic)
        adam = torch.optim.Adam(head.parameters(), 0.1)
        for _ in range(200):
            adam.zero_grad()
            nn.functional.cross_entropy(head(x), bins).backward()
            adam.step()
        with torch.no_grad():
            mean, deviation = head.describe(torch.tensor([[0.0], [1.0]]))
        assert mean[:, 0].tolist() == pytest.approx([0.525, 0.525], abs=0.02)
        deviations.append(deviation.expand(2, 1)[:, 0].tolist())
    assert deviations[0] == pytest.approx([0.05, 0.2], rel=0.15)
    assert deviations[1][0] == deviations[1][1]
    assert 0.07 < deviations[1][0] < 0.18


@pytest.mark.parametrize("head", ["gaussian", "heteroscedastic"])
def test_a_net_has_it(head: str) -> None:
    """By its setting; of one class there is nothing to tell."""
    net = Mlp.model_validate({"head": head})
    split = build_net(net, (1, 1, 10), 10, torch.Generator().manual_seed(0))
    assert isinstance(split.head, GaussianHead)
    assert split.answer(torch.rand(3, 64)).shape == (3, 10)
    with pytest.raises(NetError, match="1 class"):
        build_net(net, (1, 1, 10), 1, torch.Generator())


@pytest.mark.parametrize(("raw", "bins"), [(-1000.0, "0.05"), (1000.0, "148")])
def test_the_page_states_the_limits_of_s(raw: float, bins: str) -> None:
    """In bins, whatever was learned; the page of the regression rounds them."""
    head = GaussianHead(4, 10, is_heteroscedastic=True)
    set_constant(head, 0.5, raw)
    _, deviation = head.describe(torch.zeros(1, 4))
    assert float(deviation.detach()) * 10 == pytest.approx(float(bins), rel=0.01)
    page = Path(__file__).parents[3] / "docs" / "how-to" / "train-a-regression.md"
    assert f"{bins} bins" in page.read_text()
