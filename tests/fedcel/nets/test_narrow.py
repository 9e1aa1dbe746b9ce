"""Messages of few values: exact where the head is linear, near the best where it is not enough."""

import pytest
import torch
from torch import Tensor, nn

import fedcel
from fedcel.errors import NetError
from fedcel.nets.narrow import decompose_product

SHAPE = (2, 3, 4)


def make_features(count: int = 300) -> Tensor:
    """Features of unequal and correlated spread, with a mean."""
    mixing = torch.randn(24, 24) * torch.linspace(0.1, 2, 24)
    return (torch.randn(count, 24) @ mixing + 1).view(count, *SHAPE)


def make_head(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(24, classes))


def centre(logits: Tensor) -> Tensor:
    return logits - logits.mean(1, keepdim=True)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def test_few_values_tell_all_that_a_linear_head_reads() -> None:
    """Classes - 1 values, on images that chose none of them; more are not made."""
    head, features = make_head(5), make_features()
    with torch.no_grad():
        for values in (4, 16):
            encoder, rest = fedcel.narrow(nn.Identity(), head, features, values=values)
            fresh = make_features(50)
            message = encoder(fresh)
            assert message.shape == (50, 4)
            torch.testing.assert_close(
                centre(rest(message)), centre(head(fresh)), atol=1e-3, rtol=1e-3
            )


def test_fewer_values_lose_no_more_than_they_must() -> None:
    """The error of the logits is that of their own best approximation, to a few percent."""
    head, features = make_head(8), make_features(2000)
    encoder, rest = fedcel.narrow(nn.Identity(), head, features, values=3)
    with torch.no_grad():
        logits, guessed = centre(head(features)), centre(rest(encoder(features)))
    least = torch.linalg.svdvals(logits - logits.mean(0))[3:].square().sum()
    error = (logits - guessed).square().sum()
    assert 1 - 1e-4 <= error / least <= 1.05


@pytest.mark.parametrize("count", [20, 200])
def test_a_product_is_decomposed_by_its_factors(count: int) -> None:
    """With fewer rows than columns and with more: the product is what its parts give."""
    first, second = torch.randn(30, 24), torch.randn(count, 24)
    u, shares, v = decompose_product(first, second)
    torch.testing.assert_close((u * shares @ v).float(), first @ second.T, atol=1e-4, rtol=1e-4)
    assert len(shares) == min(24, count)
    torch.testing.assert_close(u.T @ u, torch.eye(len(shares)).double())


def test_noise_harms_each_value_alike() -> None:
    """A unit in each value moves the logits equally far; spreads are in falling order."""
    head, features = make_head(5), make_features(4000)
    encoder, rest = fedcel.narrow(nn.Identity(), head, features, values=4)
    with torch.no_grad():
        effects = centre(rest(torch.eye(4))) - centre(rest(torch.zeros(4, 4)))
        spreads = encoder(features).std(0)
    torch.testing.assert_close(effects.norm(dim=1), torch.ones(4), atol=0.05, rtol=0)
    assert torch.equal(spreads, spreads.sort(descending=True).values)


def test_a_head_may_work_in_place_and_in_double_precision() -> None:
    head = nn.Sequential(nn.ReLU(inplace=True), make_head(5)).double()
    features = make_features().double()
    before = features.clone()
    encoder, rest = fedcel.narrow(nn.Identity(), head, features, values=20)
    assert torch.equal(features, before)
    with torch.no_grad():
        agrees = rest(encoder(features)).argmax(1) == head(features.clone()).argmax(1)
    assert agrees.double().mean() > 0.9


def test_halves_are_those_given() -> None:
    """Layers and modes are shared, not copied; the same seed gives the same maps."""
    head, features = make_head(5).train(), make_features()
    halves = [fedcel.narrow(nn.Identity(), head, features, values=3, seed=s) for s in (1, 1, 2)]
    assert halves[0][1][2] is head and head.training
    messages = [encoder(features) for encoder, _ in halves]
    assert torch.equal(messages[0], messages[1]) and not torch.equal(messages[0], messages[2])


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        (24, ValueError, "values is 24, must be below the 24 of the cut"),
        (21, ValueError, "values is 21, .* at most 20, the number of images"),
        (0, ValueError, "values is 0, must be 1 or more"),
    ],
)
def test_refusals(values: int, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        fedcel.narrow(nn.Identity(), make_head(5), make_features(20), values=values)


def test_a_head_that_reads_nothing_is_refused() -> None:
    head = make_head(3)
    nn.init.zeros_(head[1].weight)  # type: ignore[index]
    with pytest.raises(NetError, match="depend on no value"):
        fedcel.narrow(nn.Identity(), head, make_features(), values=2)
