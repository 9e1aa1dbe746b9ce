"""Relinearised posterior means: exact where they can be, and never guided by the targets."""

from itertools import pairwise
from math import pi

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from fedcel.attacks.gauss_newton import GaussNewton, measure_noise, relinearise
from fedcel.attacks.kernel_ridge import KernelRidge
from fedcel.attacks.score_card import mse
from fedcel.data import Images
from fedcel.errors import DataError, NetError
from fedcel.leakage import ImagePrior, SmashedData, fit_image_prior
from fedcel.nets import Cut, SplitNet
from fedcel.testing.attacks import check_attack, load_digit_targets
from fedcel.testing.attacks import make_stream as stream
from tests.fedcel.attacks.undefended import class_means, train_undefended
from tests.fedcel.leakage.test_linearised import covariance_of

SHAPE, VALUES, FEATURES, SIGMA = (1, 4, 4), 16, 6, 0.3


def draw_classes(count: int, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Gaussian images of some classes with means of their own, and their labels."""
    root = torch.randn(VALUES, VALUES, generator=stream(9)).double() / 20
    labels = torch.arange(count) % classes
    means = 0.5 + torch.rand(classes, VALUES, generator=stream(3)).double() / 4
    flat = means[labels] + torch.randn(count, VALUES, generator=stream(1)).double() @ root.T
    return flat.view(count, *SHAPE), labels


def make_encoder(is_bent: bool) -> nn.Sequential:
    """Linear encoder, or one with bends, in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        first, last = nn.Linear(VALUES, VALUES), nn.Linear(VALUES, FEATURES)
    nn.init.orthogonal_(first.weight, 3.0, generator=stream(5))
    layers = [nn.Flatten(), first, nn.Tanh(), last] if is_bent else [nn.Flatten(), last]
    return nn.Sequential(*layers).double()


def case(is_bent: bool = False) -> tuple[nn.Sequential, Tensor, Tensor, ImagePrior, Tensor]:
    """Encoder, messages of five images, prior means, prior and noise."""
    images, labels = draw_classes(400)
    encoder, prior = make_encoder(is_bent), fit_image_prior(images, labels)
    with torch.no_grad():
        sent = encoder(images[:5])
    observed = sent + SIGMA * torch.randn(sent.shape, generator=stream(2)).double()
    noise = torch.full((FEATURES,), SIGMA, dtype=torch.float64)
    return encoder, observed, prior.means.expand(5, *prior.means.shape), prior, noise


def test_linear_encoder_of_gaussian_classes() -> None:
    """The posterior mean of a mixture of Gaussians by matrices, after one step and more."""
    encoder, observed, means, prior, noise = case()
    covariance, weight = covariance_of(prior), encoder[1].weight.detach()
    gram = weight @ covariance @ weight.T + SIGMA**2 * torch.eye(FEATURES).double()
    with torch.no_grad():
        gaps = observed[:, None] - encoder(prior.means)
    gain = torch.linalg.solve(gram, weight @ covariance)
    images = prior.means.flatten(1) + gaps @ gain
    evidence = MultivariateNormal(torch.zeros(FEATURES).double(), gram).log_prob(gaps)
    wanted = torch.einsum("tk,tkd->td", evidence.softmax(1), images)
    path = relinearise(encoder, observed, means, prior=prior, noise=noise, steps=3)
    for estimate in list(path)[1:]:
        torch.testing.assert_close(estimate.images.flatten(2), images, rtol=0, atol=1e-10)
        average = torch.einsum("tk,tk...->t...", (-estimate.nats).softmax(1), estimate.images)
        torch.testing.assert_close(average.flatten(1), wanted, rtol=0, atol=1e-10)
        rebuilt = estimate.to_images().flatten(1)
        torch.testing.assert_close(rebuilt, wanted.clamp(0, 1).float())


def test_nats_are_minus_log_densities() -> None:
    """Of image and message, up to constants of the noise and the prior's determinant."""
    encoder, observed, means, prior, noise = case(is_bent=True)
    *_, estimate = relinearise(encoder, observed, means, prior=prior, noise=noise, steps=2)
    image, nats = estimate.images[1, 2], estimate.nats[1, 2]
    covariance = covariance_of(prior)
    law = MultivariateNormal(prior.means[2].flatten(), covariance)
    with torch.no_grad():
        gap = observed[1] - encoder(image[None])[0]
    message = gap.square().sum() / (2 * SIGMA**2)
    wanted = message - law.log_prob(image.flatten())
    constant = (covariance.logdet() + VALUES * torch.tensor(2 * pi).log()) / 2
    torch.testing.assert_close(nats, wanted - constant)


def test_steps_never_lose_likelihood() -> None:
    """On an encoder with bends, whose full steps may overshoot; the gradient ends near 0."""
    encoder, observed, means, prior, noise = case(is_bent=True)
    path = [
        estimate.nats
        for estimate in relinearise(
            encoder, observed, means, prior=prior, noise=noise / 10, steps=30
        )
    ]
    for before, after in pairwise(path):
        assert (after <= before).all()
    assert (path[1] < path[0]).all()
    assert (path[-2] - path[-1]).max() < 1e-6 * path[0].max()


def test_the_noise_is_measured() -> None:
    """Of each value; a thousandth of the messages' deviation where there is none."""
    x = load_digit_targets()[0].x
    net = train_undefended(0.3, 1)
    noise = measure_noise(SmashedData(net), x, stream())
    torch.testing.assert_close(noise, torch.full_like(noise, 0.3), rtol=0.2, atol=0)
    silent = SmashedData(SplitNet(net.encoder, net.head, Cut(0.0), net.features))
    spread = net.encode(x).detach().var(0).mean().sqrt()
    least = measure_noise(silent, x, stream())
    torch.testing.assert_close(least, (1e-3 * spread).expand_as(least))


def test_the_contract() -> None:
    check_attack(GaussNewton, budget=1.0)


def test_nearer_than_the_regression_that_it_starts_from() -> None:
    """On an undefended net with bends, where the regression is far below the class mean."""
    known, targets = load_digit_targets()
    seen = SmashedData(train_undefended(0.1, 2))
    observed = seen.sample(targets.x, stream())
    errors = [
        mse(attack.reconstruct(seen, known, observed, 1.0, stream(1)), targets.x)
        for attack in (GaussNewton(), KernelRidge())
    ]
    assert errors[0] < 0.9 * errors[1]


def test_much_noise_leaves_the_class() -> None:
    """Sigma 3 on a net made for it: nearer than the regression, by classes and their chances."""
    known, targets = load_digit_targets()
    seen = SmashedData(train_undefended(3.0, 1))
    observed = seen.sample(targets.x, stream())
    rebuilt = GaussNewton().reconstruct(seen, known, observed, 1.0, stream(1))
    regressed = KernelRidge().reconstruct(seen, known, observed, 1.0, stream(1))
    assert mse(rebuilt, targets.x) < mse(regressed, targets.x)
    assert mse(rebuilt, targets.x) < 1.3 * mse(class_means(targets.y, known), targets.x)


@pytest.mark.parametrize("cut", [Cut(0.1, 0.4), Cut(0.0)], ids=["dropout", "noiseless"])
def test_other_laws_count_as_noise(cut: Cut) -> None:
    """Dropped values and messages without noise: nearer than the class mean."""
    known, targets = load_digit_targets()
    net = train_undefended(0.1, 2)
    seen = SmashedData(SplitNet(net.encoder, net.head, cut, net.features))
    observed = seen.sample(targets.x, stream())
    rebuilt = GaussNewton().reconstruct(seen, known, observed, 1.0, stream(1))
    assert mse(rebuilt, targets.x) < 0.9 * mse(class_means(targets.y, known), targets.x)


def test_images_that_are_all_alike_are_refused() -> None:
    seen = SmashedData(train_undefended())
    same = Images(torch.full((9, 1, 8, 8), 0.5), torch.zeros(9, dtype=torch.long))
    with pytest.raises(DataError, match="raise data.auxiliary"):
        GaussNewton().reconstruct(seen, same, seen.sample(same.x, stream()), 1.0, stream())


def test_large_messages_of_large_images_are_refused() -> None:
    """Jacobians of more values than memory has room for: what is too much, and the remedy."""
    images = torch.rand(9, 1, 80, 80, generator=stream())
    seen = SmashedData(SplitNet(nn.Flatten(), nn.Identity(), Cut(0.1), 6400))
    known, observed = Images(images, torch.zeros(9, dtype=torch.long)), images.flatten(1)
    with pytest.raises(NetError, match="6400 values and images 6400, too many for a Jacobian"):
        GaussNewton().reconstruct(seen, known, observed, 1.0, stream())
