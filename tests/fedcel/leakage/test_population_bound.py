"""Bounds for unseen images: above the truth as often as promised, and only where they must be."""

from dataclasses import dataclass
from math import log, log2

import numpy as np
import pytest
import torch
from torch import Tensor

from fedcel.errors import NetError
from fedcel.leakage import (
    GaussianMessages,
    PopulationBound,
    bound_population,
    measure_leakage,
)
from fedcel.leakage.population_bound import (
    Component,
    bound_under_law,
    fit_law,
    gaussian_divergence,
    limit_mean,
    project,
)
from tests.fedcel.seeded import pixels, seeded

SIGMA = 0.5


@dataclass(frozen=True)
class GaussianClasses:
    """Three classes, features of each N(centre, diag(spread^2)): the information is known."""

    width: int

    @property
    def spread(self) -> Tensor:
        """Standard deviation of each feature within a class."""
        return torch.linspace(0.1, 1, self.width, dtype=torch.float64) / 2

    @property
    def bits(self) -> float:
        """I(image; message | label) of the population."""
        return float(torch.log1p((self.spread / SIGMA).square()).sum()) / 2 / log(2)

    def draw(self, count: int, seed: int) -> GaussianMessages:
        stream = seeded(seed)
        y = torch.arange(count) % 3
        centres = 2 * torch.eye(3, self.width, dtype=torch.float64)
        gap = torch.randn(count, self.width, generator=stream, dtype=torch.float64)
        noise = torch.full((1, self.width), SIGMA, dtype=torch.float64)
        return GaussianMessages(centres[y] + self.spread * gap, noise, y)


def test_dimensions_common_to_all_images_are_dropped_without_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 2 000 features of 60 images the bound is the same, in their span and in all features."""
    classes = GaussianClasses(2000)
    parts = classes.draw(30, 0), classes.draw(30, 1)
    quick = bound_population(*parts)
    monkeypatch.setattr("fedcel.leakage.population_bound.WIDE", 10**9)
    slow = bound_population(*parts)
    assert quick.information == pytest.approx(slow.information)
    assert quick.beyond_label == pytest.approx(slow.beyond_label)


def test_holds_as_often_as_it_says() -> None:
    """60 draws of 120 images: 57 of 60 limits are above the truth, to 3 standard errors."""
    truth = GaussianClasses(4)
    law = fit_law(truth.draw(600, 10_000))
    held = 0
    excess = []
    for seed in range(60):
        limits = bound_under_law(truth.draw(120, seed), law).beyond_label
        held += limits.student >= truth.bits
        excess.append(limits.mean - truth.bits)
    assert held >= 52
    assert 0 < np.mean(excess) < 0.05  # the excess is KL(messages || law): small, never below 0


def test_is_wrong_where_the_law_is_fitted_to_the_evaluated_images() -> None:
    """Few images, many features: most limits are below the truth; with other images none is."""
    truth = GaussianClasses(100)
    broken, sound = 0, 0
    for seed in range(5):
        evaluated, others = truth.draw(30, seed), truth.draw(30, 500 + seed)
        broken += bound_population(evaluated, evaluated).beyond_label.student < truth.bits
        sound += bound_population(evaluated, others).beyond_label.student >= truth.bits
    assert broken == 5
    assert sound == 5


def bounded_draw(count: int, seed: int) -> tuple[GaussianMessages, float]:
    """Return messages of features that are 0 or 1, one a class's image, and their information."""
    stream = seeded(seed)
    z = torch.randint(2, (count, 1), generator=stream).double()
    noise = torch.full((1, 1), SIGMA, dtype=torch.float64)
    grid = torch.linspace(-5, 6, 20_001, dtype=torch.float64)
    density = torch.exp(-((grid[:, None] - torch.tensor([0.0, 1])) ** 2) / (2 * SIGMA**2))
    both = density.mean(1)
    nats = torch.xlogy(density, density / both[:, None]).mean(1)
    bits = float(torch.trapezoid(nats, grid) / torch.trapezoid(both, grid)) / log(2)
    return GaussianMessages(z, noise, torch.zeros(count, dtype=torch.long)), bits


def test_bernstein_holds_for_a_law_that_is_no_gaussian() -> None:
    """Two points seen through noise, by quadrature; the safe limit always, both above the mean."""
    reference, bits = bounded_draw(400, 999)
    law = fit_law(reference)
    held = 0
    for seed in range(30):
        drawn, _ = bounded_draw(50, seed)
        limits = bound_under_law(drawn, law, feature_range=(0.0, 1.0)).beyond_label
        assert bits < limits.bernstein
        assert limits.mean < limits.student < limits.bernstein
        held += limits.student >= bits
    assert 0 < bits < 1
    assert held >= 26


def test_the_range_bounds_every_divergence() -> None:
    """The limit's range is not exceeded in any corner, by law fitted far away from it."""
    noise = torch.full((1, 3), 0.1, dtype=torch.float64)
    labels = torch.zeros(8, dtype=torch.long)
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 3)
    near = 0.5 + 0.001 * torch.randn(50, 3, generator=seeded(0)).double()
    bound = bound_population(
        GaussianMessages(corners, noise, labels),
        GaussianMessages(near, noise, torch.zeros(50, dtype=torch.long)),
        feature_range=(0.0, 1.0),
    )
    weight = 7 * log(2 / 0.025) / (3 * 7)  # both limits hold together
    wide = 3 / 2 * log(1 + 0.25 / 0.01)
    largest = (wide - log(weight / (1 + weight))) / log(2)
    limits = bound.beyond_label
    # All corners are alike, so that only the range is added to the mean.
    assert limits.bernstein == pytest.approx(limits.mean + largest * weight, rel=1e-6)
    assert limits.mean <= largest


def test_empirical_bernstein_by_hand() -> None:
    """0, 1, 2, 3 nats in [0, 4] with delta .1: theorem 4 of Maurer and Pontil, times the range."""
    limits = limit_mean(torch.tensor([0.0, 1, 2, 3], dtype=torch.float64), 4.0, 0.1)
    nats = 1.5 + (2 * (5 / 3) * log(20) / 4) ** 0.5 + 7 * 4 * log(20) / 9
    assert limits.bernstein == pytest.approx(nats / log(2))
    assert limits.student == pytest.approx((1.5 + 1.637744 * (5 / 3 / 4) ** 0.5) / log(2), 1e-5)


def test_divergence_against_torch() -> None:
    """Of a Gaussian with a full covariance, noise of each image's own."""
    stream = seeded(0)
    mean = torch.randn(5, 4, generator=stream).double()
    deviation = torch.rand(5, 4, generator=stream).double() + 0.5
    axes = torch.linalg.qr(torch.randn(4, 2, generator=stream).double())[0]
    part = Component(1.0, torch.ones(4).double(), axes, torch.tensor([3.0, 2]).double(), 1.5)
    covariance = 1.5 * torch.eye(4).double() + axes @ torch.diag(part.variances - 1.5) @ axes.T
    law = torch.distributions.MultivariateNormal(part.mean, covariance)
    messages = torch.distributions.MultivariateNormal(mean, torch.diag_embed(deviation.square()))
    exact = torch.distributions.kl_divergence(messages, law)
    given = GaussianMessages(mean, deviation, torch.zeros(5, dtype=torch.long))
    torch.testing.assert_close(gaussian_divergence(project(given, part), part), exact)


def test_groups_within_a_class_are_found() -> None:
    """Four far points a class: 2 bits beyond the label, where one Gaussian says more."""

    def draw(seed: int) -> GaussianMessages:
        stream = seeded(seed)
        y = torch.arange(800) % 2
        corner = torch.randint(4, (800,), generator=stream)
        z = torch.stack([corner % 2, corner // 2, y], 1).double() * 20
        return GaussianMessages(z, torch.ones(1, 3).double(), y)

    bound = bound_population(draw(0), draw(1))
    assert 2 <= bound.beyond_label.student < 2.15
    assert 3 <= bound.information.student < 3.15


def test_noise_of_each_images_own() -> None:
    """No Bernstein limit, as other images' noise is not known; equal rows change nothing else."""
    truth = GaussianClasses(3)
    evaluated, reference = truth.draw(90, 0), truth.draw(90, 1)

    def spell_out(messages: GaussianMessages) -> GaussianMessages:
        return messages._replace(deviation=messages.deviation.expand(90, 3))

    limits = (-10.0, 10.0)
    bound = bound_population(evaluated, reference, feature_range=limits)
    spelt = bound_population(spell_out(evaluated), spell_out(reference), feature_range=limits)
    assert spelt.beyond_label.bernstein is None
    assert spelt.beyond_label.student == pytest.approx(bound.beyond_label.student)
    louder = evaluated._replace(deviation=4 * spell_out(evaluated).deviation)
    quiet = bound_population(louder, reference._replace(deviation=louder.deviation))
    assert quiet.beyond_label.student < bound.beyond_label.student / 2


def test_a_class_without_reference_images_and_many_features() -> None:
    """The law of all stands in; more features than images need no table of their products."""
    truth = GaussianClasses(4)
    reference = truth.draw(90, 1)
    known = reference.take((reference.labels < 2).nonzero()[:, 0])
    bound = bound_population(truth.draw(60, 0), known)
    assert bound.beyond_label.student > truth.bits
    wide = GaussianClasses(3000)
    found = bound_population(wide.draw(30, 0), wide.draw(90, 1))
    assert found.beyond_label.student > wide.bits


def test_of_messages_and_through_the_library() -> None:
    """`SmashedData` states the law; with reference images as with the law itself; then halves."""
    truth = GaussianClasses(4)
    evaluated, reference = truth.draw(120, 0), truth.draw(300, 1)
    stated = pixels(SIGMA).describe_features(evaluated.mean, evaluated.labels)
    assert torch.equal(stated.mean, evaluated.mean)
    assert torch.equal(stated.deviation, evaluated.deviation)
    assert pixels(0.0).describe_features(evaluated.mean, evaluated.labels) is None
    bound = bound_population(evaluated, reference)
    leak = measure_leakage(
        features=evaluated.mean, labels=evaluated.labels, noise=SIGMA,
        reference_features=reference.mean, reference_labels=reference.labels,
    )  # fmt: skip
    assert leak.population_beyond_label == pytest.approx(bound.beyond_label.student)
    assert leak.population_bits == pytest.approx(bound.information.student)
    assert leak.population_bits_bernstein is None
    assert leak.population_images == 120
    assert f"at most about {bound.beyond_label.student:.2f} and" in str(leak)
    assert "an approximation by Student's t, which assumes that no rare image tells" in str(leak)
    assert "Warning" not in str(leak)
    halves = measure_leakage(
        features=evaluated.mean, labels=evaluated.labels, noise=SIGMA, feature_range=(-20.0, 20.0)
    )
    assert halves.population_images == 60
    assert halves.population_beyond_label > truth.bits
    proven = f"at most {halves.population_beyond_label_bernstein:.2f} and"
    assert f"{proven}" in str(halves)
    assert "with 95 % confidence, if the encoder was not trained on them; Student's" in str(halves)
    few = measure_leakage(features=evaluated.mean[:19], noise=SIGMA)
    assert few.population_bits is None
    assert "Other images leak otherwise" in str(few)


def draw_rare(rare: int, seed: int) -> GaussianMessages:
    """Return messages of 400 features of spread .05, and of so many images in 100 of spread 10."""
    stream = seeded(seed)
    spread = torch.where(torch.arange(100) < rare, 10.0, 0.05)[:, None]
    mean = (spread * torch.randn(100, 400, generator=stream)).double()
    return GaussianMessages(mean, torch.ones(1, 400).double(), torch.zeros(100, dtype=torch.long))


@pytest.mark.parametrize(("rare", "known"), [(0, 0), (1, 0), (0, 1), (2, 0)])
def test_warns_of_images_that_are_rare_and_tell_most(rare: int, known: int) -> None:
    """Of one in 300 Student's limit knows nothing where none is evaluated; one in the law tells."""
    truth = 400 * log2(1 + 10**2) / 2 / 300 + 400 * log2(1 + 0.05**2) / 2
    limits = bound_population(draw_rare(rare, 0), draw_rare(known, 1)).beyond_label
    assert (limits.student < truth) == (rare == 0)
    assert limits.is_heavy_tailed == (rare + known > 0)
    if known:
        features = torch.cat([draw_rare(rare, 0).mean, draw_rare(known, 1).mean])
        assert "Warning: a few of these images do" in str(
            measure_leakage(features=features, noise=1.0)
        )


@pytest.mark.parametrize(("width", "count"), [(1, 200), (4, 60), (64, 12), (400, 60)])
def test_does_not_warn_of_gaussian_images(width: int, count: int) -> None:
    """Neither in many features nor in one."""
    truth = GaussianClasses(width) if width > 3 else None
    for seed in range(8):
        if truth is None:
            z = torch.randn(2 * count, 1, generator=seeded(seed)).double()
            noise, y = torch.ones(1, 1).double(), torch.zeros(2 * count, dtype=torch.long)
            both = GaussianMessages(z, noise, y)
        else:
            both = truth.draw(2 * count, seed)
        rows = torch.arange(2 * count)
        bound = bound_population(both.take(rows[:count]), both.take(rows[count:]))
        assert not bound.beyond_label.is_heavy_tailed
        assert not bound.information.is_heavy_tailed


def test_beyond_the_label_is_a_part_of_all() -> None:
    """Classes of one or two reference images: their laws are worse than that of all classes."""
    stream = seeded(0)
    noise = torch.ones(1, 20).double()
    above = 0
    for _ in range(6):
        z, y = torch.randn(80, 20, generator=stream).double(), torch.arange(80) % 40
        rows = torch.randperm(80, generator=stream)
        evaluated, reference = (
            GaussianMessages(z[part], noise, y[part]) for part in rows.tensor_split(2)
        )
        bound = bound_population(evaluated, reference, feature_range=(-3.0, 3.0))
        assert bound.beyond_label.student <= bound.information.student
        assert bound.beyond_label.bernstein <= bound.information.bernstein
        above += bound.beyond_label.mean > bound.information.mean
    assert above > 0


def one_bit() -> PopulationBound:
    """Return the bound of messages that tell next to nothing."""
    noise = torch.ones(1, 2).double()
    z = torch.zeros(40, 2).double()
    y = torch.arange(40) % 2
    return bound_population(GaussianMessages(z, noise, y), GaussianMessages(z, noise, y))


def test_a_collapsed_encoder_tells_nothing() -> None:
    """All features are equal: 0 bits, no error of a spread that is 0."""
    assert one_bit().information.student == pytest.approx(0, abs=1e-6)
    assert one_bit().confidence == 0.95
    assert log2(40) > one_bit().beyond_label.mean >= 0


def test_refuses_nonsense() -> None:
    """What is wrong, its value, what is allowed."""
    truth = GaussianClasses(2)
    good = truth.draw(30, 0)
    with pytest.raises(ValueError, match="1 evaluated messages with 1 labels"):
        bound_population(good.take(torch.tensor([0])), good)
    with pytest.raises(ValueError, match=r"noise of reference messages is 0\.0"):
        bound_population(good, good._replace(deviation=torch.zeros(1, 2)))
    with pytest.raises(ValueError, match="evaluated messages have 2 values, reference messages 3"):
        bound_population(good, GaussianClasses(3).draw(9, 0))
    with pytest.raises(NetError, match="NaN"):
        bound_population(good._replace(mean=good.mean * torch.nan), good)
    with pytest.raises(ValueError, match="features have a mean square of"):
        bound_population(good, good, feature_range=(0.0, 1.0))
    z, y = good.mean, good.labels
    with pytest.raises(ValueError, match="30 of 30 images are reference images"):
        measure_leakage(lambda x: x, z, y, noise=1.0, reference_images=z, reference_labels=y)
    half = z.bfloat16()  # which NumPy does not have
    with pytest.raises(ValueError, match="30 of 30 images are reference images"):
        measure_leakage(lambda x: x, half, y, noise=1.0, reference_images=half, reference_labels=y)
    with pytest.raises(ValueError, match="labels and reference_labels belong together"):
        measure_leakage(features=z, labels=y, noise=1.0, reference_features=z)
    with pytest.raises(ValueError, match="reference_labels are given without"):
        measure_leakage(features=z, labels=y, noise=1.0, reference_labels=y)
    with pytest.raises(ValueError, match="both given"):
        measure_leakage(features=z, noise=1.0, reference_features=z, reference_images=z)
    with pytest.raises(ValueError, match=r"feature_range is \(1\.0, 0\.0\)"):
        measure_leakage(features=z, noise=1.0, feature_range=(1.0, 0.0))
