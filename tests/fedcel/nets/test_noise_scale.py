"""Noise whose standard deviation is learned: its bounds, its law, its place in the net."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedcel.nets import (
    Cut,
    FlatNet,
    Mlp,
    NoiseScale,
    NoiseScales,
    NoiseShape,
    SplitNet,
    build_net,
    whiten_features,
)
from tests.fedcel.seeded import seeded as stream

SHAPE = (1, 4, 4)


def make_net(shape: NoiseShape) -> SplitNet:
    """Return a small net whose noise is learned."""
    return build_net(Mlp(features=5, width=7, noise=0.4), SHAPE, 3, stream(3), noise_shape=shape)


def draw_scale(net: SplitNet, seed: int = 1) -> None:
    """Give the scale's parameters values that differ."""
    for parameter in net.noise_scale.parameters():
        nn.init.normal_(parameter, generator=stream(seed))


@pytest.mark.parametrize("shape", ["feature", "image"])
def test_it_starts_at_the_cuts_own_noise(shape: NoiseShape) -> None:
    """Exactly 1, and all other parameters are those of the net without it."""
    net, plain = make_net(shape), make_net("one")
    x = torch.rand(6, *SHAPE, generator=stream())
    z = net.encode(x)
    assert torch.equal(z, plain.encode(x))
    scale = net.scale_noise(z)
    assert torch.equal(scale, torch.ones(6, 5))
    assert torch.equal(whiten_features(z, scale), z)
    assert torch.equal(net.add_noise(z, stream()), plain.add_noise(z, stream()))
    assert torch.equal(net.answer(z), plain.answer(z))


@settings(deadline=None, max_examples=30)
@given(st.floats(-1e6, 1e6), st.floats(1.01, 100))
def test_it_is_bounded(exponent: float, limit: float) -> None:
    """However large its parameters, and near 0 it is their exponential."""
    layer = NoiseScale(2, is_of_image=False, limit=limit)
    nn.init.constant_(layer.bias, exponent)
    scale = layer(torch.zeros(3, 2))
    assert ((scale <= limit * 1.001) & (scale >= 0.999 / limit)).all()
    nn.init.constant_(layer.bias, 1e-3)
    torch.testing.assert_close(layer(torch.zeros(3, 2)), torch.full((3, 2), 1e-3).exp())


def test_of_an_image_it_follows_the_features() -> None:
    """W z + b, row by row; one a feature knows no image."""
    z = torch.rand(6, 5, generator=stream())
    by_feature, by_image = make_net("feature"), make_net("image")
    for net in (by_feature, by_image):
        draw_scale(net)
    first, second = by_feature.scale_noise(z), by_image.scale_noise(z)
    assert torch.equal(first, first[:1].expand(6, -1))
    assert (second.std(0) > 0.01).all()
    layer = by_image.noise_scale
    assert isinstance(layer, NoiseScale)
    exponent = z @ layer.weight.T + layer.bias
    limit = torch.log(torch.tensor(8.0))
    torch.testing.assert_close(second, torch.exp(limit * torch.tanh(exponent / limit)))
    assert (by_image.noise_shape, by_feature.noise_shape) == ("image", "feature")


@pytest.mark.parametrize("shape", ["feature", "image"])
def test_it_is_in_the_devices_half_of_the_vector(shape: NoiseShape) -> None:
    """Frozen with the encoder, sent with it, before the head."""
    flat = FlatNet(make_net(shape))
    device = [value.numel() for value in flat.net.device_parameters().values()]
    assert flat.device_size == sum(device) == len(flat.vector) - 3 * 5 - 3
    flat.load(torch.arange(len(flat.vector)).float())
    last = flat.net.noise_scale.bias
    assert torch.equal(last, torch.arange(flat.device_size - 5, flat.device_size).float())
    copy = make_net(shape)
    copy.load_device_parameters(flat.net.device_parameters())
    x = torch.rand(2, *SHAPE, generator=stream())
    first, second = (net.scale_noise(net.encode(x)) for net in (copy, flat.net))
    assert torch.equal(first, second)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1), st.floats(0.05, 3))
def test_the_law_is_that_of_normal_values(seed: int, sigma: float) -> None:
    """Differences are those of torch's normal distribution, determinant included."""
    seen, z = torch.randn(2, 4, 3, generator=stream(seed), dtype=torch.float64)
    scale = torch.rand(4, 3, generator=stream(seed + 1), dtype=torch.float64) + 0.1
    ours = Cut(sigma).log_prob(seen, z, scale)
    theirs = torch.distributions.Normal(z, sigma * scale).log_prob(seen[:, None]).sum(2)
    torch.testing.assert_close(ours - ours[:, :1], theirs - theirs[:, :1])


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1), st.floats(0.05, 3), st.floats(0.2, 5))
def test_a_constant_scale_is_another_sigma(seed: int, sigma: float, factor: float) -> None:
    """The same law as without a scale, up to rounding."""
    seen, z = torch.randn(2, 4, 3, generator=stream(seed), dtype=torch.float64)
    scale = torch.full((4, 3), factor, dtype=torch.float64)
    torch.testing.assert_close(
        Cut(sigma).log_prob(seen, z, scale), Cut(sigma * factor).log_prob(seen, z)
    )


def test_features_of_equal_law_have_equal_likelihood() -> None:
    """Copies of an image tie to the last bit, wherever they stand."""
    z = torch.rand(20, 3, generator=stream())[[0] * 9 + list(range(1, 12))]
    scale = torch.rand(20, 3, generator=stream(1))[[0] * 9 + list(range(1, 12))] + 0.5
    log_probs = Cut(0.1).log_prob(torch.rand(7, 3, generator=stream(2)), z, scale)
    assert torch.equal(log_probs[:, :9], log_probs[:, :1].expand(-1, 9))


@pytest.mark.parametrize("cut", [Cut(0.3, 0.5), Cut(0.0, 0.5)], ids=str)
def test_dropped_values_have_no_scaled_law(cut: Cut) -> None:
    """Nobody computes it, so nobody pretends to."""
    with pytest.raises(ValueError, match="dropout 0 and sigma above 0"):
        cut.log_prob(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2))


@pytest.mark.parametrize("shape", ["feature", "image"])
def test_the_gradient_of_a_message(shape: NoiseShape) -> None:
    """By finite differences, in double precision, of encoder and scale alike."""
    net = make_net(shape).double()
    draw_scale(net)
    x = torch.rand(3, *SHAPE, generator=stream(), dtype=torch.float64)
    flat = FlatNet(net)
    start = flat.vector.clone()

    def loss(vector: Tensor) -> Tensor:
        flat.load(vector)
        return net.add_noise(net.encode(x), stream(7)).square().sum()

    gradient = flat.gradient(loss(start).unsqueeze(0))[0, : flat.device_size].clone()
    assert (gradient[-5:] != 0).all()
    for place in [0, flat.device_size // 2, *range(flat.device_size - 5, flat.device_size)]:
        shift = torch.zeros_like(start)
        shift[place] = 1e-6
        with torch.no_grad():
            slope = (loss(start + shift) - loss(start - shift)) / 2e-6
        torch.testing.assert_close(gradient[place], slope, rtol=1e-4, atol=1e-6)


def test_several_encoders_in_a_row() -> None:
    """Each scales its own features."""
    nets = [make_net("image"), make_net("feature")]
    for seed, net in enumerate(nets):
        draw_scale(net, seed)
    z = torch.rand(4, 10, generator=stream())
    parts = [net.scale_noise(part) for net, part in zip(nets, torch.chunk(z, 2, 1), strict=True)]
    row = NoiseScales([net.noise_scale for net in nets if net.noise_scale is not None])
    assert torch.equal(row(z), torch.cat([part for part in parts if part is not None], 1))
