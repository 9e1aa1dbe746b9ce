"""Linear channels with known answers, bounds that no attacker passes, and refusals."""

import time
from collections.abc import Callable
from importlib import import_module
from math import e, log, log2, pi
from typing import Any
from weakref import ref

import pytest
import torch
from jaxtyping import Float
from scipy.linalg import hadamard
from torch import Tensor, nn

from fedcel.errors import NetError
from fedcel.leakage import (
    ImagePrior,
    LinearisedLeak,
    LocalChannel,
    fit_image_prior,
    image_picture,
    linearise,
    map_leak,
    measure_leakage,
    measure_linearised,
)
from fedcel.leakage.channel_numbers import (
    compute_errors,
    compute_nats,
    draw_signs,
    estimate_numbers,
    find_rules,
    solve_exactly,
    van_trees_bound,
)
from fedcel.metrics import round_up

SHAPE = (1, 4, 4)
VALUES, FEATURES, SIGMA = 16, 6, 0.3


def draw_images(count: int, seed: int = 0, shape: tuple[int, ...] = SHAPE) -> Tensor:
    """Correlated Gaussian images around .5, in float64."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.Size(shape).numel()
    root = torch.randn(values, values, generator=torch.Generator().manual_seed(9)) / 20
    flat = torch.randn(count, values, generator=generator).double() @ root.double().T
    return (flat + 0.5).view(count, *shape)


def linear_net(seed: int = 1, features: int = FEATURES) -> nn.Sequential:
    """Linear encoder with a bias, in float64."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(VALUES, features)).double()


def bent_net(seed: int, features: int = FEATURES) -> nn.Sequential:
    """Small encoder with bends and a sigmoid cut."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        first, last = nn.Linear(VALUES, 24), nn.Linear(24, features)
    for layer in (first, last):
        nn.init.orthogonal_(layer.weight, 2.0, generator=torch.Generator().manual_seed(seed))
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), last, nn.Sigmoid())


def apply_covariance(prior: ImagePrior, images: Tensor, power: float = 1.0) -> Tensor:
    """C x, or a power of C."""
    return prior.from_coefficients(prior.to_coefficients(images) * prior.variances**power)


def covariance_of(prior: ImagePrior) -> Float[Tensor, "d d"]:
    """C as a matrix."""
    values = prior.variances.numel()
    units = torch.eye(values, dtype=torch.float64).view(-1, *prior.shape)
    return apply_covariance(prior, units).view(values, values)


def assert_equal(found: Tensor, expected: Tensor) -> None:
    """Of the same numbers in another order of sums, in float64."""
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def check_estimate(free: LinearisedLeak, exact: LinearisedLeak) -> None:
    """Of the same images and prior: off by Lanczos' bounds and the random vectors' chance only.

    The chance is two standard errors of the differences, image by image.
    """
    assert torch.equal(free.places, exact.places)
    for name in ("bits", "mmse"):
        gaps = getattr(free, f"image_{name}") - getattr(exact, f"image_{name}")
        chance = 2 * float(gaps.std()) / len(gaps) ** 0.5
        allowed = min(getattr(free, f"{name}_error") + chance, 0.1 * getattr(exact, name))
        assert abs(float(gaps.mean())) < allowed


@pytest.mark.parametrize("messages", [1, 4])
@pytest.mark.parametrize("features", [FEATURES, 2 * VALUES])
def test_linear_encoder_of_gaussian_images(messages: int, features: int) -> None:
    """Bits, errors, bound and Fisher information by matrices; maps are the diagonals."""
    images, net = draw_images(400), linear_net(features=features)
    prior = fit_image_prior(images)
    weight = net[1].weight.detach() * messages**0.5 / SIGMA  # of all messages together
    covariance = covariance_of(prior)
    gram = torch.eye(features).double() + weight @ covariance @ weight.T
    posterior = covariance - covariance @ weight.T @ torch.linalg.solve(gram, weight @ covariance)
    information = weight.T @ weight
    leak = measure_linearised(net, images, noise=SIGMA / messages**0.5, prior=prior)
    together = measure_linearised(net, images, noise=SIGMA, prior=prior).sequences[messages // 4]
    assert together == pytest.approx((messages, leak.bits, leak.mmse), rel=1e-10)
    assert leak.bits == pytest.approx(float(gram.logdet()) / 2 / log(2), abs=1e-10)
    assert leak.mmse == pytest.approx(float(posterior.trace()) / VALUES, abs=1e-10)
    assert leak.bound == pytest.approx(leak.mmse, abs=1e-10)
    assert leak.dfil == pytest.approx(float(information.trace()) / VALUES, rel=1e-10)
    precision = information + torch.linalg.inv(covariance)
    assert leak.fsinfo == pytest.approx(
        float(precision.logdet()) / VALUES - log(2 * pi * e), abs=1e-8
    )
    assert leak.prior_variance == pytest.approx(float(covariance.trace()) / VALUES, rel=1e-10)
    assert leak.estimator == "exact"
    assert leak.bits_error == leak.mmse_error == 0
    maps = map_leak(net, images[:2], noise=SIGMA / messages**0.5, prior=prior)
    picture = image_picture(net, images[0], noise=SIGMA, prior=prior, messages=messages)
    numbers = (picture.bits, picture.mmse, picture.dfil, picture.fsinfo)
    assert numbers == pytest.approx((leak.bits, leak.mmse, leak.dfil, leak.fsinfo), rel=1e-10)
    assert_equal(picture.maps.information[0], maps.information[0])
    assert_equal(picture.maps.deviation[0], maps.deviation[0])
    for place in range(2):
        assert_equal(maps.information[place].flatten(), information.diagonal())
        assert_equal(maps.deviation[place].flatten() ** 2, posterior.diagonal())
    assert_equal(maps.prior_deviation.flatten() ** 2, covariance.diagonal())


def test_posterior_mean_in_draws() -> None:
    """The mean of images given messages has the error that the channel says, in 1e5 draws."""
    images, net = draw_images(300), linear_net()
    prior = fit_image_prior(images)
    generator = torch.Generator().manual_seed(3)
    count = 100_000
    mean = prior.class_means(None, count)
    drawn = torch.randn(count, VALUES, generator=generator).double().view(-1, *SHAPE)
    sent_images = mean + apply_covariance(prior, drawn, 0.5)
    noise = SIGMA * torch.randn(count, FEATURES, generator=generator).double()
    with torch.no_grad():
        observed = net(sent_images) + noise
        gap = observed - net(mean)

    def find_means(around: Tensor, rows: slice) -> Tensor:
        channel = LocalChannel(net, around[rows], noise=SIGMA)
        changes = channel.solve(observed[rows], around[rows] - mean[rows], prior)
        return mean[rows] + prior.from_coefficients(changes)

    guesses = find_means(mean, slice(None))
    weight, covariance = net[1].weight.detach(), covariance_of(prior)
    gram = SIGMA**2 * torch.eye(FEATURES).double() + weight @ covariance @ weight.T
    closed = mean.flatten(1) + gap @ torch.linalg.solve(gram, weight @ covariance)
    torch.testing.assert_close(guesses.flatten(1), closed, rtol=0, atol=1e-10)
    few = slice(100)
    around = find_means(sent_images, few)
    torch.testing.assert_close(around, guesses[few], rtol=0, atol=1e-10)  # linear anywhere
    leak = measure_linearised(net, images, noise=SIGMA, prior=prior)
    error = float((guesses - sent_images).square().mean())
    assert error == pytest.approx(leak.mmse, rel=0.01)


def test_estimates_agree_with_jacobians() -> None:
    """Lanczos' numbers lie within the error that they state, and so does a bent net's bound."""
    images, net = draw_images(200), bent_net(2, 12)
    prior = fit_image_prior(images)
    exact, free = (
        linearise(net, images, noise=0.05, prior=prior, count=80, dense=dense).measure()
        for dense in (True, False)
    )
    assert free.estimator == "lanczos"
    assert 0 < free.bits_error < 0.1 * exact.bits
    check_estimate(free, exact)
    assert f"about {free.bits:.1f} ± {round_up(free.bits_half_width + free.bits_error, 1)}" in str(
        free
    )
    assert f"{free.mmse:.4f} ± {round_up(free.mmse_half_width + free.mmse_error, 4)}" in str(free)
    assert exact.bits_uncertainty == exact.bits_half_width  # nothing is estimated
    assert free.bound < exact.bound <= exact.mmse
    assert exact.dfil == pytest.approx(free.dfil, rel=0.2)


def test_without_chance_the_bounds_hold_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the rows of Hadamard's matrix signs have no chance: means of w^T f w are the traces."""
    net, images = bent_net(2, VALUES).double(), draw_images(3)
    prior = fit_image_prior(draw_images(200))
    for image in images:
        channel = LocalChannel(net, image[None], noise=0.05)
        bits, errors = [], []
        for row in torch.from_numpy(hadamard(VALUES)).double():
            monkeypatch.setattr(
                "fedcel.leakage.channel_numbers.draw_signs",
                lambda shape, _, signs=row: signs.expand(shape),
            )
            numbers = estimate_numbers(channel, prior, torch.Generator())
            bits.append(compute_nats(numbers.information))
            errors.append(compute_errors(numbers.errors))
        exact = solve_exactly(channel, prior)
        for ends, truth in (
            (torch.stack(bits).mean(0), compute_nats(exact.information)),
            (torch.stack(errors).mean(0), compute_errors(exact.errors)),
        ):
            assert ends.min() < truth < ends.max() < 1.25 * ends.min()


@pytest.mark.parametrize("dense", [True, False])
def test_one_channel_at_a_time(dense: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features with a graph, and Jacobians, go before those of other images are computed."""
    module, kept = import_module("fedcel.leakage.linearised"), list[ref[object]]()
    most = 0

    def watch(thing: object) -> None:
        nonlocal most
        kept.append(ref(thing))
        most = max(most, sum(other() is not None for other in kept))

    class Watched(LocalChannel):
        """A channel that is counted as long as anything holds it."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            watch(self)

        def jacobians(self, prior: ImagePrior) -> Float[Tensor, "B F d"]:
            """Compute A Q, which is counted, too."""
            found = super().jacobians(prior)
            watch(found)
            return found

    monkeypatch.setattr(module, "LocalChannel", Watched)
    monkeypatch.setattr(module, "VALUES_AT_ONCE", 1)
    linearise(bent_net(2), draw_images(12), noise=0.1, count=12, dense=dense)
    assert len(kept) == 12 * (1 + dense)
    assert most <= 3  # a channel, its Jacobian, and the Jacobian that is being added


def find_ends(
    root: Tensor, start: Tensor, function: Callable[[Tensor], Tensor], **options: Any
) -> Tensor:
    """Two ends between which w^T f(H^T H) w lies, for H = root^T, by a number of steps."""
    rule = find_rules(
        lambda v: v @ root, lambda h: root @ h, start, function=function, tolerance=0.0, **options
    )
    return rule.apply(function)[:, 0]


def test_quadrature_brackets_a_form() -> None:
    """Few steps give two ends, as many as there are eigenvalues give the number itself."""
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(60, 40, generator=generator).double() / 8**0.5
    start = torch.randn(60, generator=generator).double()
    nodes, vectors = torch.linalg.eigh(root @ root.T)
    weights = (start @ vectors) ** 2
    for function in (torch.log1p, lambda values: 1 / (1 + values)):
        truth = (weights * function(nodes.clamp_min(0))).sum()
        for steps in (4, 8, 12):
            ends = find_ends(root, start, function, steps=steps)
            assert ends.min() < truth < ends.max()
            assert (ends[0] - ends[1]).abs() < 20 * truth / steps**2
        ends = find_ends(root, start, function, steps=60)
        torch.testing.assert_close(ends, truth.expand(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_factors_keep_the_bounds_and_narrow_them(dtype: torch.dtype) -> None:
    """Of the posterior's trace, at any gain, over eight decades of eigenvalues."""
    generator = torch.Generator().manual_seed(1)
    sizes = torch.logspace(2, -2, 300).double()
    root = sizes[:, None] * torch.randn(300, 80, generator=generator).double() / 80**0.5
    start, scale = sizes * draw_signs((300,), generator), (1 + sizes**2 / 30) ** -0.35
    nodes, vectors = torch.linalg.eigh(root @ root.T)
    weights = (start @ vectors) ** 2
    widths = []
    for factors in (scale, None):
        rule = find_rules(
            lambda v: v @ root.to(dtype),
            lambda h: root.to(dtype) @ h,
            start.to(dtype),
            function=lambda values: 1 / (1 + values),
            scale=None if factors is None else factors.to(dtype),
            tolerance=0.0,
            steps=25,
        )
        for gain in (0.1, 1.0, 10.0):
            truth = (weights / (1 + gain * nodes.clamp_min(0))).sum()
            low, high = compute_errors(rule, gain)[:, 0] / truth
            assert low < 1.001 and high > 0.999
            if gain == 1:
                widths.append(float(high - low))
    assert widths[0] < 0.5 * widths[1]


class Doubled(nn.Sequential):
    """A layer, and another one of its output: the sum of both."""

    def forward(self, x: Tensor) -> Tensor:
        """Return y + second(y), y = first(x)."""
        first = self[0](x)
        return first + self[1](first)


def test_convolutions_are_differentiated_as_pytorch_does() -> None:
    """Grouped, strided, dilated and one-dimensional ones, and stored statistics of a batch.

    Those behind a convolution are part of it, also where its output is used once more.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            Doubled(nn.Conv2d(2, 16, 3, stride=(2, 1), padding=1), nn.BatchNorm2d(16)),
            nn.SiLU(),
            nn.BatchNorm2d(16),
            nn.Conv2d(16, 16, 3, padding=(2, 1), dilation=(2, 1), groups=16, bias=False),
            nn.BatchNorm2d(16, affine=False),
            nn.Conv2d(16, 8, 3, padding=1, groups=4),
            nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=2),
            nn.Conv2d(8, 3, 1, padding=1),
            nn.Conv2d(3, 3, 3, padding="same"),
            nn.Flatten(2),
            nn.Conv1d(3, 2, 3),
        ).double()
        net(torch.rand(20, 2, 6, 5).double())  # statistics
        net.eval().requires_grad_(requires_grad=False)
        image, direction = torch.rand(2, 1, 2, 6, 5).double()
    channel = LocalChannel(net, image, noise=1.0)
    with torch.no_grad():
        torch.testing.assert_close(channel.features, net(image).flatten(1))
    jacobian = torch.autograd.functional.jacobian(lambda x: net(x).flatten(), image).flatten(1)
    torch.testing.assert_close(channel.push(direction)[0], jacobian @ direction.flatten())
    unit = torch.arange(channel.width).double()
    torch.testing.assert_close(channel.pull(unit[None]).flatten(), unit @ jacobian)
    nodes, pending = set(), [channel.features.grad_fn]
    while pending:
        node = pending.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            pending += [below for below, _ in node.next_functions]
    names = [node.name() for node in nodes]
    assert "ConvolutionBackward" in names  # of ours; PyTorch's are ConvolutionBackward0
    assert names.count("AddcmulBackward0") == 1  # of the normalisation that no convolution precedes
    assert not any(name.startswith("NativeBatchNorm") for name in names)


class Preactivated(nn.Sequential):
    """A block whose shortcut is added in place."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x + layers(x)."""
        changed: Tensor = super().forward(x)
        changed += x
        return changed


def test_layers_in_place_behind_a_convolution() -> None:
    """Normalisation takes what they wrote, and not the convolution's own output."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.BatchNorm2d(4),
            Preactivated(nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1)),
            nn.BatchNorm2d(4),
            nn.Conv2d(4, 4, 3),
            nn.BatchNorm2d(4),
        ).double()
        net(torch.rand(20, 1, 4, 4).double())  # statistics
        net.eval().requires_grad_(requires_grad=False)
        image = torch.rand(1, 1, 4, 4).double()
    channel = LocalChannel(net, image, noise=1.0)
    with torch.no_grad():
        torch.testing.assert_close(channel.features, net(image).flatten(1))
    jacobian = torch.autograd.functional.jacobian(lambda x: net(x).flatten(), image).flatten(1)
    torch.testing.assert_close(channel.push(image)[0], jacobian @ image.flatten())


def test_threads_change_no_number() -> None:
    """Of estimates and of maps: each image has random vectors of its own."""

    class Keeping(nn.Module):
        """Encoder that keeps what it computes between two of its steps."""

        def forward(self, x: Tensor) -> Tensor:
            self.kept = x.flatten(1)
            time.sleep(0.02)
            return self.kept[:, ::40].sin() @ self.kept.new_ones(len(self.kept[0, ::40]), 50)

    images = draw_images(8, shape=(3, 40, 40))
    prior = fit_image_prior(images)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            leak = linearise(Keeping(), images, noise=0.1, prior=prior, dense=False).measure()
            maps = map_leak(Keeping(), images[:2], noise=0.1, prior=prior)
            found.append((leak.image_bits, leak.image_mmse, maps.deviation))
    finally:
        torch.set_num_threads(before)
    for numbers in found[1:]:
        assert all(map(torch.equal, numbers, found[0]))


def test_large_images_have_a_stationary_prior() -> None:
    """Above 1 024 values the covariance is diagonal in the cosine transform of channels."""
    shape = (3, 24, 16)
    rough = draw_images(12, shape=(3, 6, 4))
    images = nn.functional.interpolate(rough, shape[1:], mode="bilinear")
    images = images + 0.01 * draw_images(12, 5, (1, *shape[1:]))
    prior = fit_image_prior(images, torch.arange(12) % 3)
    assert prior.rotation is None
    back = prior.from_coefficients(prior.to_coefficients(images))
    torch.testing.assert_close(back, images)
    means = prior.class_means(torch.arange(12) % 3, 12)
    power = float((images - means).square().sum()) / 9  # 12 images, 3 means
    assert float(prior.variances.sum()) == pytest.approx(power)
    assert float(prior.pixel_variances().sum()) == pytest.approx(power)
    unit = torch.zeros(1, *shape).double()
    unit[0, 1, 3, 5] = 1
    own = float((apply_covariance(prior, unit) * unit).sum())
    assert float(prior.pixel_variances()[1, 3, 5]) == pytest.approx(own)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.ReLU(), nn.Flatten())
    exact = linearise(net, images, noise=0.02, prior=prior, dense=True).measure()
    free = linearise(net, images, noise=0.02, prior=prior, dense=False).measure()
    check_estimate(free, exact)


def test_small_sets_are_shrunk() -> None:
    """Of few images chance correlations are taken out; of many none are."""
    few, many = fit_image_prior(draw_images(10)), fit_image_prior(draw_images(20_000))
    truth = covariance_of(many)
    raw = torch.cov(draw_images(10).flatten(1).T)
    assert (covariance_of(few) - truth).norm() < (raw - truth).norm()
    torch.testing.assert_close(
        truth, torch.cov(draw_images(20_000).flatten(1).T), rtol=0, atol=1e-4
    )
    assert (few.variances > 0).all()


def test_information_falls_with_noise_and_processing() -> None:
    """More noise and what is computed from features tell less."""
    images, net = draw_images(100), bent_net(4)
    prior = fit_image_prior(images)

    def measure(encoder: nn.Module, noise: float) -> tuple[float, float]:
        leak = measure_linearised(encoder, images, noise=noise, prior=prior)
        return leak.bits, -leak.mmse

    bits = [measure(net, sigma) for sigma in (0.01, 0.1, 0.4)]
    assert bits == sorted(bits, reverse=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        mixing = nn.Linear(FEATURES, FEATURES)
    nn.init.orthogonal_(mixing.weight)
    turned = nn.Sequential(net, mixing)
    assert measure(turned, 0.1) == pytest.approx(measure(net, 0.1), rel=1e-5)
    part = nn.Sequential(turned, nn.Flatten(), nn.Unflatten(1, (2, 3)))
    kept = measure_linearised(lambda x: part(x)[:, 0], images.float(), noise=0.1, prior=prior)
    assert kept.bits < measure(net, 0.1)[0]


def test_noise_that_depends_on_the_image() -> None:
    """I = sum grad f grad f^T / v + 1/2 grad v grad v^T / v^2, by autograd."""
    net = bent_net(5).double()
    images = draw_images(4)

    def deviate(z: Tensor) -> Tensor:
        return 0.1 + 0.3 * z**2

    channel = LocalChannel(net, images, noise=deviate)
    rows = torch.stack([channel.pull(unit.expand(4, -1)) for unit in torch.eye(12)], 1)
    rows = rows.flatten(2).double()
    for place, image in enumerate(images):
        jacobian = torch.autograd.functional.jacobian(lambda x: net(x[None])[0], image)
        z = net(image[None])[0].detach()
        variance = deviate(z) ** 2
        of_variance = (2 * deviate(z) * 0.6 * z)[:, None] * jacobian.view(FEATURES, -1)
        of_mean = jacobian.view(FEATURES, -1)
        truth = of_mean.T @ (of_mean / variance[:, None])
        truth += of_variance.T @ (of_variance / variance[:, None] ** 2) / 2
        torch.testing.assert_close(rows[place].T @ rows[place], truth, rtol=1e-5, atol=1e-5)
    push = channel.push(images)
    torch.testing.assert_close(push.double(), torch.einsum("bfd,bd->bf", rows, images.flatten(1)))


def test_noise_without_a_gradient_is_a_constant() -> None:
    """Of a single image, too, where no other shows that it depends on the features."""
    net, image = bent_net(5).double(), draw_images(1)
    constant = LocalChannel(net, image, noise=lambda z: torch.full_like(z, 0.3).detach())
    of_mean, of_noise = constant.push(image).chunk(2, 1)
    torch.testing.assert_close(of_mean, LocalChannel(net, image, noise=0.3).push(image))
    assert not of_noise.any()
    with pytest.raises(ValueError, match="noise depends on the features and has no gradient"):
        LocalChannel(net, image, noise=lambda z: 0.1 + z.detach().square())


def test_a_gradient_without_a_gradient() -> None:
    """PyTorch has no second derivative of Hardsigmoid: products with A are differences."""
    torch.manual_seed(0)
    images = torch.rand(40, 1, 3, 3)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(9, 20), nn.Hardsigmoid())
    prior = fit_image_prior(images)
    found = measure_linearised(encoder, images, noise=0.1, prior=prior)

    class Composed(nn.Module):
        """The same, of layers that PyTorch differentiates as often as asked."""

        def forward(self, x: Tensor) -> Tensor:
            value: Tensor = (encoder[:2](x) / 6 + 0.5).clamp(0, 1)
            return value

    same = measure_linearised(Composed(), images, noise=0.1, prior=prior)
    assert found.bits == pytest.approx(same.bits, rel=1e-3)
    assert found.mmse == pytest.approx(same.mmse, rel=1e-3)


def test_bound_lies_below_the_bayes_error_of_a_mixture() -> None:
    """A mixture's Fisher information is at most that of its parts; its posterior by quadrature."""
    grid = torch.linspace(-6, 6, 4001).double()
    for spread in (0.1, 0.3, 1.0):
        for slope in (0.5, 3.0):
            for sigma in (0.05, 0.3, 1.0):
                parts = torch.stack([-(((grid - c) / spread) ** 2) / 2 for c in (-1.0, 0.0, 1.5)])
                density = (parts.exp() * torch.tensor([0.5, 0.2, 0.3])[:, None]).sum(0)
                density = density / density.sum()
                features = torch.tanh(slope * grid)
                fisher = (density * (slope * (1 - features**2) / sigma) ** 2).sum()
                sent = torch.linspace(-1 - 5 * sigma, 1 + 5 * sigma, 801).double()
                nats = -(((sent[:, None] - features) / sigma) ** 2) / 2
                joint = nats.exp() * density
                total = joint.sum(1, keepdim=True).clamp_min(1e-300)
                mean = (joint * grid).sum(1) / total[:, 0]
                second = (joint * grid**2).sum(1) / total[:, 0]
                weight = total[:, 0] / total.sum()
                bayes = float((weight * (second - mean**2)).sum())
                bound = van_trees_bound(fisher[None], torch.tensor([spread**2]).double())
                assert float(bound) < bayes


def train_decoders(sent: Tensor, images: Tensor, generator: torch.Generator) -> float:
    """Train a linear decoder, and one with a hidden layer of random units, on half of the messages.

    Both are least-squares solutions, where any training by gradient ends. Returns the lower error
    on the other images, as a share of their variance.
    """
    standard = (sent - sent.mean(0)) / sent.std(0)
    weights = torch.randn(sent.shape[1], 32, generator=generator).double()
    hidden = torch.tanh(standard @ weights + torch.randn(32, generator=generator).double())
    half, errors = len(images) // 2, []
    for units in (standard, torch.cat([standard, hidden], 1)):
        inputs = nn.functional.pad(units, (0, 1), value=1.0)
        learned = torch.linalg.lstsq(inputs[:half], images[:half]).solution
        errors.append(float((inputs[half:] @ learned - images[half:]).square().mean()))
    return min(errors) / float((images[half:] - images.mean(0)).square().mean())


@pytest.mark.parametrize("seed", range(30))
def test_no_attacker_passes_the_bound(seed: int) -> None:
    """The best of the decoders that 1 000 messages train stays above it, on 1 000 others."""
    net, generator = bent_net(seed), torch.Generator().manual_seed(seed)
    images = draw_images(2000, seed)
    prior = fit_image_prior(images)
    sigma = (0.02, 0.1, 0.4)[seed % 3]
    leak = measure_linearised(net, images, noise=sigma, prior=prior, count=30, seed=seed)
    with torch.no_grad():
        sent = net(images.float()).double()
    sent = sent + sigma * torch.randn(sent.shape, generator=generator)
    error = train_decoders(sent, images.flatten(1), generator)
    assert (leak.bound - leak.bound_half_width) / leak.prior_variance < error < 1
    assert leak.bound <= leak.mmse + leak.bound_half_width
    assert leak.bound > 0.2 * leak.prior_variance


def test_measure_leakage_brings_it_along() -> None:
    """Of a module with Gaussian noise; of no law of its own, no features and no dropout."""
    images, labels = draw_images(100).float(), torch.arange(100) % 4
    net = bent_net(3)
    leak = measure_leakage(net, images, labels, noise=SIGMA)
    alone = measure_linearised(net, images, labels, noise=SIGMA, count=100)
    assert leak.linearised is not None
    assert leak.linearised.to_dict() == alone.to_dict() == leak.to_dict()["linearised"]
    assert str(leak).endswith(str(alone))
    assert (leak.linearised_bits, leak.linearised_mse) == (alone.bits, alone.mmse)
    assert (leak.fisher_per_pixel, leak.fsinfo) == (alone.dfil, alone.fsinfo)
    assert leak.mse_bound == alone.bound
    with torch.no_grad():
        features = net(images)
    blind = measure_leakage(features=features, labels=labels, noise=SIGMA)
    assert blind.linearised is blind.linearised_bits is blind.linearised_mse is None
    assert blind.fisher_per_pixel is blind.fsinfo is blind.mse_bound is None
    assert blind.linearised_obstacle is leak.linearised_obstacle is None
    assert "not estimated" not in str(blind) + str(leak)


def send_laplace(features: Tensor, generator: torch.Generator) -> Tensor:
    """Features with Laplace noise of scale 1."""
    drawn = torch.rand(features.shape, generator=generator).to(features) - 0.5
    return features - drawn.sign() * torch.log1p(-2 * drawn.abs())


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ({"noise": SIGMA, "dropout": 0.1}, "features are dropped at random"),
        ({"noise": 0.0}, "there is no noise"),
        (
            {"log_prob": lambda z, f: -torch.cdist(z, f, p=1), "sampler": send_laplace},
            "the messages have a law of your own, and it needs Gaussian noise",
        ),
    ],
)
def test_why_a_picture_is_not_estimated(messages: dict[str, Any], reason: str) -> None:
    """In the last line and among the numbers, where the messages are the reason."""
    images = draw_images(30).float()
    leak = measure_leakage(bent_net(3), images, **messages)
    assert leak.linearised is None and leak.to_dict()["linearised_obstacle"] == reason
    last = str(leak).splitlines()[-1]
    assert last == f"How much of the picture a message tells is not estimated: {reason}."


def test_words_and_numbers() -> None:
    """Words name class or image, and what is an estimate or a bound; numbers go into JSON."""
    images, labels = draw_images(100), torch.arange(100) % 4
    with_labels = measure_linearised(linear_net(), images, labels, noise=SIGMA)
    without = measure_linearised(linear_net(), images, noise=SIGMA)
    assert "beyond its label" in str(with_labels)
    assert "its label included" in str(without)
    assert "not a bound" in str(without)
    numbers = with_labels.to_dict()
    assert numbers["is_beyond_label"] is True
    assert all(isinstance(value, int | float | str) for value in numbers.values())
    assert numbers["bits"] == with_labels.bits
    assert with_labels.psnr == pytest.approx(-10 * log2(with_labels.mmse) / log2(10))
    little = 1e-3 * with_labels.mmse_half_width
    slope = -10 * log2(1 - little / with_labels.mmse) / log2(10) / little
    assert with_labels.psnr_half_width == pytest.approx(
        slope * with_labels.mmse_half_width, rel=1e-2
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": 0.0}, "above 0"),
        ({"noise": [0.1] * 5 + [0.0]}, "above 0"),
        ({"noise": 0.1 + torch.rand(50, FEATURES)}, r"give a function|must be one number"),
        ({"count": 1}, "count is 1"),
        ({"labels": torch.arange(50)}, "beyond the first of each class"),
        ({"prior": fit_image_prior(draw_images(9, shape=(1, 3, 3)))}, "of the same size"),
        (
            {"prior": fit_image_prior(draw_images(9)), "labels": torch.zeros(50).long()},
            "leave them out",
        ),
    ],
)
def test_refusals(options: dict[str, object], message: str) -> None:
    """Each is refused with its value and the remedy."""
    options = {"noise": SIGMA, **options}
    with pytest.raises(ValueError, match=message):
        measure_linearised(linear_net(), draw_images(50), **options)  # type: ignore[arg-type]


def test_features_and_gradients_must_be_finite() -> None:
    """NaN is no leak."""
    images = draw_images(20)
    with pytest.raises(ValueError, match="NaN or infinity"):
        measure_linearised(lambda x: x.flatten(1).log() * torch.nan, images, noise=0.1)
    with pytest.raises(NetError, match="gradient holds NaN"):
        measure_linearised(lambda x: (x.flatten(1) * 0).sqrt(), images, noise=0.1)
    with pytest.raises(NetError, match=r"without a gradient.*give a PyTorch module"):
        measure_linearised(lambda x: x.flatten(1).detach(), images, noise=0.1)
    with pytest.raises(ValueError, match="divide bytes by 255"):
        measure_linearised(linear_net(), (images * 255).byte(), noise=0.1)
    with pytest.raises(ValueError, match="nothing to leak"):
        fit_image_prior(torch.ones(9, 2, 2))
