"""Leak of any encoder: against a brute-force computation, closed forms, and bad input."""

import json
from dataclasses import replace
from math import erfc, log, log2, pi, sqrt

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcel.leakage import (
    Leakage,
    certificate,
    image_leak,
    measure_attribute_leakage,
    measure_leakage,
    optimal_leak,
)
from fedcel.leakage.messages import disturb_features
from sequences import measure_sequences
from tests.fedcel.elsewhere import ELSEWHERE, Elsewhere
from tests.fedcel.seeded import as_images, pixels, seeded
from tests.fedcel.test_torch_state import float64_default

Table = NDArray[np.float64]


def brute_force(
    z: Table, y: NDArray[np.int64], sigma: Table, draws: int, generator: np.random.Generator
) -> dict[str, tuple[float, float]]:
    """Return mean and standard error of the three numbers, by products of densities."""
    count = len(z)
    sent = z + sigma * generator.standard_normal((draws, *z.shape))
    gap = (sent[:, :, None] - z) / sigma  # (draws, senders, candidates, values)
    density = np.prod(np.exp(-(gap**2) / 2) / (sigma * sqrt(2 * pi)), axis=3)
    own = density[:, np.arange(count), np.arange(count)]
    same = y[:, None] == y
    equal = (z[:, None] == z).all(2)
    beaten = (np.where(equal, 0, density) > own[:, :, None]).any(2)
    scores = {
        "information_bits": np.log2(own / density.mean(2)),
        "bits_beyond_label": np.log2(own / ((density * same).sum(2) / same.sum(1))),
        "identification": ~beaten / equal.sum(1),
    }
    return {
        name: (values.mean(), sqrt(values.var(0, ddof=1).sum() / draws) / count)
        for name, values in scores.items()
    }


@pytest.mark.parametrize("seed", range(60))
def test_agrees_with_brute_force(seed: int) -> None:
    """Unequal classes, duplicates, one noise or one a feature; to 4.5 standard errors."""
    generator = np.random.default_rng(seed)
    count, width = int(generator.integers(2, 9)), int(generator.integers(1, 4))
    z = generator.normal(size=(count, width))
    z[generator.random(count) < 0.2] = z[0]
    y = generator.integers(0, 3, count) ** 2
    sigma = generator.uniform(0.2, 2, width if seed % 2 else 1)
    truth = brute_force(z, y, np.broadcast_to(sigma, width), 1000, generator)
    leak = measure_leakage(
        features=z, labels=y, noise=sigma if seed % 2 else float(sigma[0]), candidates=count
    )
    for name, half_width in (
        ("information_bits", leak.information_half_width),
        ("bits_beyond_label", leak.beyond_label_half_width),
        ("identification", leak.identification_half_width),
    ):
        mean, error = truth[name]
        measured = getattr(leak, name)
        standard_error = sqrt(error**2 + (half_width / 1.96) ** 2)
        assert abs(measured - mean) < 4.5 * standard_error + 1e-9, name


def points(seed: int = 0, count: int = 60) -> tuple[Tensor, Tensor]:
    """Return features (count, 5) of three classes of unequal size."""
    stream = seeded(seed)
    y = (torch.arange(count) % 6).clamp_max(2)
    return torch.rand(3, 5, generator=stream)[y] + 0.2 * torch.randn(count, 5, generator=stream), y


@pytest.mark.parametrize(("sigma", "dropout"), [(0.3, 0.0), (0.0, 0.0), (0.3, 0.4), (0.0, 0.4)])
def test_the_same_as_the_optimal_attacker_of_a_run(sigma: float, dropout: float) -> None:
    """One channel, two ways in: equal within the noise of 200 draws."""
    z, y = points()
    seen, images = pixels(sigma, dropout), as_images(z)
    one = optimal_leak(seen, images, y, torch.Generator(), draws=200)
    other = measure_leakage(seen.net.encode, images, y, noise=sigma, dropout=dropout, draws=200)
    assert other.information_bits == pytest.approx(one.information_bits, abs=0.03)
    assert other.bits_beyond_label == pytest.approx(one.bits_beyond_label, abs=0.03)
    assert other.identification == pytest.approx(one.identification, abs=0.02)
    assert other.cap_bits == one.cap_bits
    assert other.cap_beyond_label == pytest.approx(one.cap_beyond_label)


def test_limits_of_the_noise() -> None:
    """Towards 0 all that tells distinct features apart, at 0 too; towards infinity nothing."""
    z, y = points()
    z[1] = z[7]  # of one class
    all_but_one = (58 * log2(60) + 2 * log2(30)) / 60
    for sigma in (0.0, 1e-12, 1e-6):
        leak = measure_leakage(features=z, labels=y, noise=sigma)
        assert leak.information_bits == pytest.approx(all_but_one)
        assert leak.identification == pytest.approx(59 / 60, abs=2e-3)
        missed = 0 if sigma == 0 else -log(0.025) / (60 * 54)  # an event that no message showed
        assert leak.identification_half_width == pytest.approx(missed)
        assert leak.information_half_width == pytest.approx(missed * log2(60), abs=1e-6)
    leak = measure_leakage(features=z, labels=y, noise=1e6)
    assert leak.information_bits == pytest.approx(0, abs=1e-4)
    assert leak.bits_beyond_label == pytest.approx(0, abs=1e-4)
    assert leak.identification == pytest.approx(leak.identification_candidates**-1, abs=0.02)


def test_few_draws_are_not_sure_of_what_they_did_not_see() -> None:
    """Two points four deviations apart: .97725 identified, which 16 messages show in .69 of seeds.

    All 16 right leave .23 more: the interval holds in 95 % of seeds, less three standard errors.
    """
    z = torch.tensor([[0.0], [4.0]])
    leaks = [measure_leakage(features=z, noise=1.0, draws=8, seed=seed) for seed in range(200)]
    right = 1 - erfc(2 / sqrt(2)) / 2
    gaps = [abs(leak.identification - right) for leak in leaks]
    widths = [leak.identification_half_width for leak in leaks]
    assert np.mean(np.less_equal(gaps, widths)) > 0.9
    assert min(widths) == pytest.approx(-log(0.025) / 16)
    assert any("100.0% ± 23.1%" in str(leak) for leak in leaks)


def test_one_image_a_class_has_no_bits_beyond_it() -> None:
    """An undefended encoder tells all 4.32 bits; beyond labels that occur once there are none."""
    leak = measure_leakage(features=torch.eye(20), labels=torch.arange(20), noise=0.01)
    assert (leak.bits_beyond_label, leak.cap_beyond_label) == (0, 0)
    bits, picked, _ = str(leak).splitlines()
    assert "0.00 of 0.00" not in bits
    assert bits.startswith("One message tells the best possible attacker 4.32 ± 0.01 of 4.32 bits")
    assert "each label occurs once and names its image, so there are no bits beyond it" in bits
    assert "but the label" not in picked


def test_a_limit_above_all_there_is_says_so() -> None:
    """Noise of a thousandth beside 400 features: thousands of bits are no limit, the words say."""
    z = torch.randn(60, 400, generator=seeded(0))
    leak = measure_leakage(features=z, labels=torch.arange(60) % 3, noise=1e-3)
    assert leak.population_bits > 1000
    assert "this measurement gives no limit" in str(leak)
    assert "at most about" not in str(leak)
    assert str(round(leak.population_bits)) not in str(leak)


def test_features_wider_than_images_tell_what_their_span_tells() -> None:
    """Rotated into more dimensions than images, equal features stay equal and all bits stay."""
    narrow = torch.randn(40, 6, generator=seeded(0), dtype=torch.float64)
    narrow[1] = narrow[0]
    axes = torch.linalg.qr(torch.randn(900, 6, generator=seeded(1), dtype=torch.float64)).Q
    leaks = [
        measure_leakage(features=z, labels=torch.arange(40) % 2, noise=0.7, draws=1000)
        for z in (narrow, narrow @ axes.T)
    ]
    for name in ("information_bits", "bits_beyond_label", "identification"):
        less, more = (getattr(leak, name) for leak in leaks)
        assert less == pytest.approx(more, abs=0.04)
    assert leaks[0].certificate_bits == pytest.approx(leaks[1].certificate_bits)


def test_wide_features_are_measured_in_little_memory() -> None:
    """Of the messages of 64 images of 50 000 features only what tells these apart is drawn."""
    messages = disturb_features(torch.eye(64, 50_000).double(), torch.ones(50_000).double())
    observed = messages.sample(torch.arange(64), seeded(0))
    assert observed.shape == (64, 64)
    distances = messages.law(observed).diff(dim=1)
    assert distances.isfinite().all()


def measure_all(z: Tensor) -> list[float]:
    y = torch.arange(60) % 3
    stream = seeded(0)
    leak = optimal_leak(pixels(0.3), as_images(z), y, stream)
    return [*measure_features(z), leak.information_noise_half_width]


def measure_features(z: Tensor) -> list[float]:
    y = torch.arange(60, device="cpu") % 3
    noise = torch.full((z.shape[1],), 0.3, dtype=torch.float32, device="cpu")
    stream = [torch.Generator("cpu").manual_seed(0) for _ in range(2)]
    scenes = z.reshape(20, 3, -1)
    return [
        measure_leakage(
            features=z, labels=y, noise=0.3, feature_range=(-9.0, 9.0)
        ).information_bits,
        measure_leakage(features=z, labels=y, noise=0.3, dropout=0.2).information_half_width,
        measure_attribute_leakage(features=z, attributes=y, noise=0.3).bits,
        image_leak(z, y, 3, noise=noise, generator=stream[0], dropout=0.1).information,
        measure_sequences(scenes, y[:20], 0.3, stream[1], lengths=[2])[0].bits,
        certificate(z, y, 0.3, 10).bits,
    ]


def test_global_settings_and_gradients_change_nothing() -> None:
    """Another default type, inference mode, features with a gradient: the same numbers."""
    z = points()[0].float()
    kept, wanted = z.clone(), measure_all(z)
    with torch.inference_mode():
        assert measure_all(z) == wanted
        assert measure_all(z.clone()) == wanted
    with float64_default():
        assert measure_all(z) == wanted
    with torch.autocast("cpu", torch.bfloat16), torch.device("meta"), np.errstate(all="raise"):
        assert measure_features(z) == wanted[:-1]
    assert measure_all(z.clone().requires_grad_()) == wanted
    assert measure_all(z.half()) == pytest.approx(wanted, abs=0.01)
    assert torch.equal(z, kept)


def test_a_law_of_ones_own_that_works_in_place_changes_no_features() -> None:
    """The caller's array is not what a law and a sampler get."""
    z = np.random.default_rng(0).normal(size=(12, 3))
    kept = z.copy()

    def log_prob(observed: Tensor, features: Tensor) -> Tensor:
        distances = torch.cdist(observed, features)
        features.zero_()
        return -distances.square() / 2

    def sampler(features: Tensor, generator: torch.Generator) -> Tensor:
        return features.add_(torch.randn(features.shape, generator=generator))

    measure_leakage(features=z, log_prob=log_prob, sampler=sampler)
    assert np.array_equal(z, kept)


def test_a_small_noise_far_from_zero_is_exact() -> None:
    """Pairs a noise apart, each pair a billion noises from the next: the bits of two points."""
    stream = seeded(0)
    z = torch.randn(20, 3, generator=stream, dtype=torch.float64).repeat_interleave(2, 0)
    z[1::2, 0] += 1.5e-9
    y = torch.arange(40) // 2
    near = measure_leakage(features=z, labels=y, noise=1e-9, draws=200)
    z = 1e3 * torch.arange(20.0, dtype=torch.float64).repeat_interleave(2)[:, None]
    z[1::2, 0] += 1.5
    far = measure_leakage(features=z, labels=y, noise=1.0, draws=200)
    assert near.bits_beyond_label == pytest.approx(far.bits_beyond_label, abs=0.02)
    assert near.information_bits == pytest.approx(far.information_bits, abs=0.02)


def test_a_law_of_the_users_own() -> None:
    """Gaussian noise written by hand gives what `noise` gives; nothing is certified of it."""
    z, y = points()

    def draw(features: Tensor, generator: torch.Generator) -> Tensor:
        return features + 0.3 * torch.randn(features.shape, generator=generator).double()

    def log_prob(observed: Tensor, features: Tensor) -> Tensor:
        return torch.cdist(observed, features).square() / (-2 * 0.3**2)

    own = measure_leakage(features=z, labels=y, log_prob=log_prob, sampler=draw, draws=100)
    gaussian = measure_leakage(features=z, labels=y, noise=0.3, draws=100)
    assert own.information_bits == pytest.approx(gaussian.information_bits, abs=0.03)
    assert own.certificate_bits is None
    assert own.certificate_beyond_label is None
    assert "never above" not in str(own)


def test_the_bits_stay_below_what_is_certified() -> None:
    """To Monte Carlo error, with labels and without; the same bound with and without them."""
    z, y = points()
    for noise in (0.1, 0.3, 1.0):
        leak = measure_leakage(features=z, labels=y, noise=noise)
        assert leak.information_bits <= leak.certificate_bits + leak.information_half_width
        assert leak.bits_beyond_label <= leak.certificate_beyond_label + 0.05
        without = measure_leakage(features=z, noise=noise)
        assert without.information_bits == leak.information_bits
        assert without.certificate_bits >= leak.certificate_bits
        assert without.bits_beyond_label is None
        assert without.cap_beyond_label is None


def test_features_on_another_device_give_the_same() -> None:
    """Nothing on the way mixes devices; what comes back is on the processor."""
    z, y = points(count=18)
    here = measure_leakage(features=z, labels=y, noise=0.3)
    dropped = measure_leakage(features=z, labels=y, noise=0.3, dropout=0.2)
    with Elsewhere():
        there = measure_leakage(features=z.to(ELSEWHERE), labels=y, noise=0.3)
        dropped_there = measure_leakage(
            features=z.to(ELSEWHERE), labels=y.to(ELSEWHERE), noise=0.3, dropout=0.2
        )
    assert there.to_dict() == pytest.approx(here.to_dict())
    assert dropped_there.to_dict() == pytest.approx(dropped.to_dict())
    assert there.identified.device == torch.device("cpu")


class Unsteady(nn.Module):
    """An encoder with a layer of each kind that acts differently in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(5), nn.Dropout(0.5))
        self.frozen = nn.Dropout(0.5).eval()

    def forward(self, images: Tensor) -> Tensor:
        return self.frozen(self.layers(images))


def test_a_module_is_left_as_it_was() -> None:
    """Run in evaluation mode without a gradient; each part's mode and its buffers stay."""
    encoder, (z, y) = Unsteady(), points()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    images = z[:, None].double().numpy()  # another type than the parameters'
    leak = measure_leakage(encoder, images, y.numpy(), noise=0.3)
    assert leak.bits_beyond_label is not None
    assert encoder.training
    assert encoder.layers[2].training
    assert not encoder.frozen.training
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert encoder.layers[1].weight.grad is None
    direct = measure_leakage(features=z / sqrt(1 + 1e-5), labels=y, noise=0.3)
    assert leak.information_bits == pytest.approx(direct.information_bits, abs=1e-4)


def test_any_function_is_an_encoder() -> None:
    """One that gives arrays, features of several dimensions, or takes whole numbers."""
    words = torch.arange(12).view(6, 2)

    def encode(batch: Tensor) -> NDArray[np.float32]:
        return np.eye(12, dtype=np.float32)[batch.numpy()]  # (B, 2, 12)

    leak = measure_leakage(encode, words, noise=1e-3)
    assert leak.information_bits == pytest.approx(log2(6))


def test_three_lines_and_a_short_name() -> None:
    """Words for people, plain numbers for machines, no number of a single image in either."""
    z, y = points()
    for labels in (y, None):
        leak = measure_leakage(features=z, labels=labels, noise=0.3)
        assert len(str(leak).splitlines()) == 3
        assert len(repr(leak)) < 200
        assert json.loads(json.dumps(leak.to_dict())) == leak.to_dict()
        assert "information" not in leak.to_dict()
        assert len(leak.identified) == len(leak.information) == 60
    assert f"{leak.information_bits:.2f} ± " in str(leak)
    assert "of 5.91 bits" in str(leak)
    assert "60 images" in str(leak)


def test_what_was_not_learned_is_said() -> None:
    """An accuracy within its interval of the most frequent class's share makes the verdict."""
    z, y = points()  # two thirds of class 2

    def said(**accuracy: object) -> Leakage:
        return measure_leakage(features=z, labels=y, noise=0.3, **accuracy)

    share = float((y == 2).double().mean())
    for accuracy in (0.1, share, 0.72):
        leak = said(accuracy=accuracy)
        assert leak.verdict is not None
        assert str(leak).startswith("Nothing was learned")
        assert len(str(leak).splitlines()) == 3
    assert said(accuracy=0.95).verdict is None
    assert "95.0%" in str(said(accuracy=0.95))
    assert said(accuracy=0.72, accuracy_count=10_000).verdict is None
    constant, right = torch.zeros(60, 3), nn.functional.one_hot(y).float()
    constant[:, 2] = 1
    assert "Nothing was learned" in str(said(logits=constant))
    assert said(logits=right.numpy()).accuracy == 1


def test_features_far_below_the_noise_are_no_privacy() -> None:
    """Around 0 they are not equal, yet hardly tell a class; zero is printed unsigned."""
    z, y = points()
    leak = measure_leakage(features=1e-5 * (z - z.mean(0)), labels=y, noise=0.3)
    assert leak.verdict is not None and "no head is right more than 0.0 points more" in leak.verdict
    assert str(leak).startswith(leak.verdict)
    printed = str(replace(leak, bits_beyond_label=-1e-9, information_bits=-1e-9))
    assert "-0.00" not in printed and "attacker 0.00 ±" in printed


def test_the_gain_over_a_guess_is_a_bound() -> None:
    """Two classes at a tenth of the noise to either side: Bayes' rule gains 4.0 points."""
    features = torch.tensor([[-0.1], [0.1]]).repeat(30, 1)
    leak = measure_leakage(features=features, labels=torch.tensor([0, 1]).repeat(30), noise=1.0)
    bayes = 100 * (float(torch.special.ndtr(torch.tensor(0.1))) - 0.5)
    stated = float(leak.verdict.split("more than ")[1].split()[0])
    assert bayes <= stated <= 1.3 * bayes


def test_a_collapsed_encoder_is_said_by_itself() -> None:
    """Equal features, or nearly equal ones below the noise; not what comes through the noise."""
    z, y = points()
    for collapsed in (torch.ones(60, 5), torch.ones(60, 5) + 1e-5 * z):
        leak = measure_leakage(features=collapsed, labels=y, noise=0.3)
        assert "collapsed" in leak.verdict
        assert "collapsed" in str(leak).splitlines()[0]
        assert leak.bits_beyond_label == pytest.approx(0, abs=1e-2)
    for sound in (z + 1e4, z * 1e-5):
        leak = measure_leakage(features=sound, labels=y, noise=0.3 * float(sound.std()))
        assert leak.verdict is None


FEATURES, LABELS = points()
LAW = {"log_prob": lambda observed, features: observed @ features.T, "sampler": lambda z, g: z}
REFUSALS = [
    ({"features": None}, "give an encoder and images, or features"),
    ({"encoder": nn.Identity(), "images": FEATURES}, "give an encoder and images, or features"),
    ({"features": FEATURES[0]}, r"features are of shape \(5,\), must be \(N, D\)"),
    ({"features": FEATURES[:1], "labels": None}, "there is 1 image, must be 2 or more"),
    ({"features": FEATURES / 0}, "hold NaN or infinity, first in row 0"),
    ({"features": "no"}, "features are str, must be a tensor or an array"),
    ({"labels": LABELS[:9]}, r"labels are of shape \(9,\), must be \(60,\)"),
    ({"labels": LABELS.float()}, "labels are of type torch.float32, must be whole numbers"),
    ({"labels": ["cat", "dog"] * 30}, "labels are list, must be .* numbers .* numpy.unique"),
    ({"labels": LABELS - 1}, "labels hold -1"),
    ({"noise": None}, "noise is missing"),
    ({"noise": -0.1}, "noise is -0.1.*must be finite and at least 0"),
    ({"noise": float("nan")}, "noise is nan, must be finite"),
    ({"noise": [0.1, 0.2, 0.0, 0.1, 0.1]}, "noise is 0 for some features only; must be above 0"),
    (
        {"noise": lambda z: torch.ones_like(z) * (torch.arange(5) > 0)},
        "is 0 for some features only",
    ),
    (
        {"reference_features": FEATURES[:, :4], "reference_labels": LABELS},
        "reference images have 4 features, the images 5",
    ),
    ({"noise": [0.1, 0.2]}, r"noise is of shape \(2,\), must be one number or \(5,\)"),
    ({"dropout": 1.0}, "dropout is 1.0, must be at least 0 and below 1"),
    ({"candidates": 1}, "candidates is 1, must be 2 or more"),
    ({"draws": 1}, "draws is 1, must be 2 or more"),
    (LAW, "log_prob is given beside noise"),
    ({"noise": None, "sampler": LAW["sampler"]}, "log_prob is missing"),
    ({"accuracy": 96.0}, "accuracy is 96.0, must be in"),
    ({"accuracy": 0.9, "logits": FEATURES}, "accuracy and logits are both given"),
    ({"accuracy_count": 9}, "accuracy_count is 9 without accuracy"),
    ({"accuracy": 0.9, "labels": None}, "labels are missing"),
    ({"accuracy": 0.9, "labels": LABELS * 0}, "labels are all of one class"),
    ({"logits": FEATURES[:, :2]}, r"logits are of shape \(60, 2\) and labels go up to 2"),
    (
        {"labels": LABELS + 2 * 10**9, "logits": FEATURES},
        r"must be \(60, C\), column c for label c: number .*unique",
    ),
    ({"dropout": "0.3"}, "dropout is '0.3', must be a float, at least 0 and below 1"),
    ({"accuracy": "0.9"}, "accuracy is '0.9', must be a float"),
    ({"accuracy": 0.9, "accuracy_count": 2.5}, "accuracy_count is 2.5, must be 1 or more, a whole"),
    ({"draws": 2.5}, "draws is 2.5, must be 2 or more, a whole number"),
    ({"candidates": 2.5}, "candidates is 2.5, must be 2 or more, a whole number"),
    ({"seed": "1"}, "seed is '1', must be a whole number"),
    ({"feature_range": "0,1"}, "feature_range are str, must be a tensor or an array of numbers"),
    ({"feature_range": (0, 1, 2)}, r"feature_range is \(0, 1, 2\), must be two finite numbers"),
    ({"logits": FEATURES * torch.nan}, "logits hold NaN"),
]


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(("arguments", "message"), REFUSALS)
def test_bad_input_is_refused(arguments: dict[str, object], message: str) -> None:
    """ValueError: what it is, and what is allowed."""
    sound = {"features": FEATURES, "labels": LABELS, "noise": 0.3}
    with pytest.raises(ValueError, match=message):
        measure_leakage(**(sound | arguments))


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (lambda images: images[0], "must be floating numbers of shape"),
        (lambda images: images.long(), "must be floating numbers of shape"),
        (lambda images: images[:1], "must be floating numbers of shape"),
        (nn.functional.dropout, "draws random numbers"),
    ],
)
def test_an_encoder_that_is_none_is_refused(encoder: object, message: str) -> None:
    """One of another shape or type, and one whose features are random."""
    with pytest.raises(ValueError, match=message):
        measure_leakage(encoder, FEATURES, noise=0.3)


def test_a_law_that_is_none_is_refused() -> None:
    """Another shape, NaN, and a law that is not the sampler's."""

    def measure(log_prob: object, sampler: object = lambda z, g: z) -> None:
        measure_leakage(features=FEATURES, log_prob=log_prob, sampler=sampler)

    for wrong in (lambda o, z: o, lambda o, z: o @ z.T * torch.nan):
        with pytest.raises(ValueError, match=r"log_prob gives .*, must be \(\d+, 60\)"):
            measure(wrong)
    with pytest.raises(ValueError, match="minus infinity for a message under all features"):
        measure(lambda o, z: o @ z.T * 0 - torch.inf)
    with pytest.raises(ValueError, match="the sampler gives"):
        measure(lambda o, z: o @ z.T, lambda z, g: z[:1])


@pytest.mark.parametrize("seed", range(20))
def test_noise_of_each_image_agrees_with_brute_force(seed: int) -> None:
    """The law has a determinant of its own for each image; the certificate is above it."""
    generator = np.random.default_rng(seed)
    z, y = generator.normal(size=(6, 2)), np.array([0, 0, 0, 1, 1, 1])
    sigma = generator.uniform(0.2, 2, (6, 2))
    draws = 20_000
    rows = np.arange(6).repeat(draws)
    sent = z[rows] + sigma[rows] * generator.normal(size=(len(rows), 2))
    nats = (-(((sent[:, None] - z) / sigma) ** 2) / 2 - np.log(sigma)).sum(2)
    own = nats[np.arange(len(rows)), rows]
    same = y[rows][:, None] == y
    information = (own - np.log(np.exp(nats).mean(1))) / log(2)
    beyond = (own - np.log((np.exp(nats) * same).sum(1) / 3)) / log(2)
    noise = torch.from_numpy(sigma)
    leak = measure_leakage(features=z, labels=y, noise=lambda _: noise, draws=4000, candidates=6)
    assert leak.information_bits == pytest.approx(information.mean(), abs=0.03)
    assert leak.bits_beyond_label == pytest.approx(beyond.mean(), abs=0.03)
    assert leak.information_bits <= leak.certificate_bits + 0.03


def test_noise_as_a_function_of_the_features() -> None:
    """Where it is the same for all images, the numbers are those of one a feature, to the bit."""
    z, y = points()
    sigma = torch.tensor([0.1, 0.2, 0.4, 0.8, 1.6])
    one = measure_leakage(features=z, labels=y, noise=sigma)
    other = measure_leakage(features=z, labels=y, noise=lambda features: sigma.expand_as(features))
    assert one.to_dict() == other.to_dict()
    louder = measure_leakage(features=z, labels=y, noise=lambda features: 0.5 + features.square())
    assert louder.information_bits < one.information_bits


@pytest.mark.parametrize(
    ("noise", "dropout", "words"),
    [
        (torch.ones(60, 5), 0.0, None),
        (torch.rand(60, 5) - 1.0, 0.0, "must be finite and at least 0"),
        (torch.eye(60, 5), 0.0, "noise must be above 0 for all"),
        (torch.rand(60, 5) + 0.1, 0.5, "noise must be above 0 for all, dropout 0"),
        (torch.ones(5, 60), 0.0, r"a function of the features, which gives \(60, 5\)"),
        (torch.ones(1, 1), 0.0, r"noise is of shape \(1, 1\)"),
    ],
)
def test_noise_of_each_image_that_is_none(noise: Tensor, dropout: float, words: str | None) -> None:
    """Of a shape, a size or beside what has no known law."""
    z, y = points()
    if words is None:
        assert measure_leakage(features=z, labels=y, noise=lambda _: noise).information_bits > 0
        return
    with pytest.raises(ValueError, match=words):
        measure_leakage(features=z, labels=y, noise=lambda _: noise, dropout=dropout)
