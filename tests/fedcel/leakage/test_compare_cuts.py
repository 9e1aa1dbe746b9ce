"""Cuts of hand-made models, whose leak and best layer are known."""

from dataclasses import replace
from importlib import import_module
from math import log, log2
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import fedcel
from fedcel.errors import NetError, SettingsError
from fedcel.leakage.compare_cuts import (
    LEAST_NOISE,
    MOST_NOISE,
    SEARCH_STEPS,
    find_most_noise,
    noise_level,
)
from fedcel.leakage.image_prior import fit_image_prior
from fedcel.nets import TracedModel
from tests.fedcel.leakage.test_linearised import apply_covariance

SIDE = 4


class Funnel(nn.Module):
    """A model that spreads out the image, keeps its class only, and copies that in several ways."""

    def __init__(self) -> None:
        super().__init__()
        size = SIDE**2
        self.flat = nn.Flatten()
        self.spread = nn.Linear(size, 64, bias=False)
        self.gist = nn.Linear(64, 1, bias=False)
        self.copies = nn.Linear(1, 32, bias=False)
        self.answer = nn.Linear(32, 2, bias=False)
        with torch.no_grad():
            basis = torch.linalg.qr(
                torch.randn(64, size, generator=torch.Generator().manual_seed(0))
            )
            self.spread.weight.copy_(basis.Q)
            self.gist.weight.copy_(basis.Q.sum(1)[None] / 4)
            self.copies.weight.fill_(1.0)
            self.answer.weight.copy_(torch.tensor([[-1.0], [1.0]]).expand(2, 32) / 32)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits: whether the pixels' sum is above 0."""
        out: Tensor = self.answer(self.copies(self.gist(self.spread(self.flat(x)))))
        return out


def make_images(count: int = 80) -> tuple[Tensor, Tensor]:
    """Return noise around -0.5 and 0.5, and which of both."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(count) % 2
    noise = 0.5 * torch.randn(count, 1, SIDE, SIDE, generator=generator)
    return noise + labels[:, None, None, None] - 0.5, labels


@pytest.fixture(scope="module")
def funnel() -> fedcel.CutComparison:
    """Return the cuts of the funnel without limits of the leak."""
    return fedcel.compare_cuts(Funnel(), *make_images(), at="all")


def test_costs_and_leak_of_each_cut(funnel: fedcel.CutComparison) -> None:
    """Operations are those of the products; linearised bits follow the closed form."""
    assert [cut.layer for cut in funnel.cuts] == ["flat", "spread", "gist", "copies"]
    assert [cut.macs for cut in funnel.cuts] == [0, 1024, 1088, 1120]
    assert [cut.parameters for cut in funnel.cuts] == [0, 1024, 1088, 1120]
    assert [cut.bytes for cut in funnel.cuts] == [64, 256, 4, 128]
    assert funnel.answer.macs == 1184 and funnel.answer.bytes == 1
    images, labels = make_images()
    prior = fit_image_prior(images, labels)
    weight = torch.full((1, 1, SIDE, SIDE), 0.25, dtype=torch.float64)
    variance = float((weight * apply_covariance(prior, weight)).sum())
    gist, copies = funnel.cuts[2:]
    assert gist.leak_bits == pytest.approx(log2(1 + variance / gist.noise**2) / 2)
    assert copies.leak_bits == pytest.approx(log2(1 + 32 * variance / copies.noise**2) / 2)
    assert gist.linearised is not None and funnel.prior_mse == pytest.approx(prior.variance)


def test_noise_stays_within_the_loss(funnel: fedcel.CutComparison) -> None:
    """The accuracy with it is the model's less at most a point; a looser limit allows no less."""
    assert funnel.is_label_accuracy and funnel.accuracy > 0.95
    assert "points of accuracy on these 80 images" in str(funnel)
    assert funnel.accuracy_sentence.startswith("Without noise the model is right in ")
    for cut in funnel.cuts:
        assert cut.loss <= 1 + 1e-9 and cut.noise > 0
        assert cut.accuracy == pytest.approx(funnel.accuracy - cut.loss / 100)
        assert cut.loss_half_width > 100 * -log(0.025) / 80  # of an image that none of 80 shows
    looser = fedcel.compare_cuts(
        Funnel(), *make_images(), at="all", limits=fedcel.CutLimits(max_loss=10)
    )
    pairs = list(zip(funnel.cuts, looser.cuts, strict=True))
    assert all(tight.noise <= loose.noise for tight, loose in pairs)
    assert any(tight.noise < loose.noise for tight, loose in pairs)


def test_the_best_cut_is_found(funnel: fedcel.CutComparison) -> None:
    """The gist: wider layers before it tell more, and copies after it cost more."""
    limits = fedcel.CutLimits(max_bits=2)
    found = fedcel.compare_cuts(Funnel(), *make_images(), at="all", limits=limits)
    best = found.recommended
    assert best is not None and best.layer == "gist"
    assert str(found).startswith("Cut at gist and add noise of standard deviation")
    assert best.noise_for_leak is not None and best.noise_for_leak < best.noise
    assert best in found.pareto
    again = fedcel.compare_cuts(Funnel(), *make_images(), at="all", limits=limits)
    timeless = [
        [replace(cut, milliseconds=0.0).to_dict() for cut in x.cuts] for x in (found, again)
    ]
    assert timeless[0] == timeless[1]
    in_error = replace(found, limits=fedcel.CutLimits(min_mse=0.9 * found.prior_mse))
    assert in_error.recommended is not None and in_error.recommended.layer == "gist"


def test_a_message_of_one_value(funnel: fedcel.CutComparison) -> None:
    """Behind the wide layer it is what the gist is, the sum of pixels, and leaks as little."""
    images, labels = make_images(160)
    spread, gist = fedcel.compare_cuts(
        Funnel(), images, labels, at=["spread", "gist"], values=1
    ).cuts
    assert spread.shape == (1,) and spread.bytes == 4 and spread.macs == 1024 + 64
    assert gist.macs == 1088 and gist.parameters == 1088
    fresh, _ = make_images(40)
    with torch.no_grad():
        pairs = torch.stack([spread.encoder(fresh)[:, 0], fresh.flatten(1).sum(1)])
        assert abs(float(torch.corrcoef(pairs)[0, 1])) > 1 - 1e-5
        torch.testing.assert_close(spread.head(spread.encoder(fresh)), Funnel()(fresh))
    ratio = float(gist.rms / gist.noise * spread.noise / spread.rms)  # of noises that were found
    assert 2**spread.leak_bits * ratio == pytest.approx(2**gist.leak_bits, rel=0.1)
    assert spread.leak_bits < funnel.cuts[1].leak_bits / 5
    with pytest.raises(ValueError, match="39 images, must be 40 or more with values 3"):
        fedcel.compare_cuts(Funnel(), *make_images(39), values=3)


@pytest.mark.parametrize(
    ("limits", "nearest", "words"),
    [
        (fedcel.CutLimits(max_bytes=2), "gist", "4 bytes a message, at most 2 is allowed"),
        (fedcel.CutLimits(max_bits=2, max_macs=1080), "gist", "1.09 k operations, at most 1.08 k"),
        (fedcel.CutLimits(max_bits=1e-6), "copies", "bits beyond the label, at most"),
    ],
)
def test_the_nearest_of_none(
    funnel: fedcel.CutComparison, limits: fedcel.CutLimits, nearest: str, words: str
) -> None:
    """It is named, with what it misses."""
    found = replace(funnel, limits=limits)
    assert found.recommended is None and found.nearest.layer == nearest
    assert str(found).startswith(f"None of 4 cuts meets the limits; {nearest} comes nearest: ")
    assert words in str(found)


def test_the_answer_alone() -> None:
    """It tells the entropy of the answers within a class, and is named where it tells less."""
    images, labels = make_images()
    labels[:8] = 1 - labels[:8]
    found = fedcel.compare_cuts(Funnel(), images, labels, at=["spread"])
    with torch.no_grad():
        answers = Funnel()(images).argmax(1)
    shares = torch.stack([(answers[labels == y] == 1).double().mean() for y in (0, 1)])
    entropy = -(shares * shares.log2() + (1 - shares) * (1 - shares).log2()).mean()
    assert found.answer.exact_bits == pytest.approx(float(entropy), abs=1e-6)
    assert "The answer alone, where the device may compute it, tells less" in str(found)
    assert "tells less" not in str(replace(found, limits=fedcel.CutLimits(max_macs=1100)))


def test_labels_that_the_model_does_not_know() -> None:
    """Accuracy is agreement with the model itself, which starts at 1."""
    images, _ = make_images()
    found = fedcel.compare_cuts(Funnel(), images, torch.arange(80) // 2 % 5, at=["gist"])
    assert not found.is_label_accuracy and found.accuracy == 1 and found.has_classes
    assert "points of agreement with the answers without noise on these 80 images" in str(found)
    silent = replace(found, cuts=[replace(found.cuts[0], noise=0.0)])
    assert "costs more than 1 point of agreement with the answers" in str(silent)
    assert "of accuracy" not in str(found) + str(silent)
    assert "so agreement with its answers without noise" in found.accuracy_sentence
    alone = fedcel.compare_cuts(Funnel(), images, at=["gist"])
    assert not alone.has_classes and alone.unit == "bits about the image"


def test_a_pass_for_several_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """All layers of a pass are as they were given, and memory for one cut only changes nothing."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))
    images, labels = make_images()
    traced = TracedModel(model)
    together = traced.encode_at(["1", "2"])(images)
    for layer in ("1", "2"):
        torch.testing.assert_close(together[layer], traced.split(layer)[0](images))
    assert (together["1"] < 0).any()
    whole = fedcel.compare_cuts(model, images, labels, at=["1", "2"])
    monkeypatch.setattr(import_module("fedcel.leakage.compare_cuts"), "FEATURE_BYTES", 1)
    parts = fedcel.compare_cuts(model, images, labels, at=["1", "2"])
    for cut, other in zip(whole.cuts, parts.cuts, strict=True):
        assert cut.noise == other.noise and cut.leak_bits == other.leak_bits


def test_a_layer_within_another_keeps_the_name_that_was_given() -> None:
    """Though the block ends with the same value; asked for by both names, it has two rows."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(16, 8), nn.ReLU())
    model = nn.Sequential(nn.Flatten(), block, nn.Linear(8, 2))
    inner = fedcel.compare_cuts(model, *make_images(), at=["1.1", "1.0"])
    assert [cut.layer for cut in inner.cuts] == ["1.0", "1.1"]
    (outer,) = fedcel.compare_cuts(model, *make_images(), at=["1"]).cuts
    assert outer.layer == "1" and outer.macs == inner.cuts[1].macs
    both = fedcel.compare_cuts(model, *make_images(), at=["1.1", "1", "1"])
    assert [cut.layer for cut in both.cuts] == ["1", "1.1"]


def test_thinned_cuts() -> None:
    """None that computes nothing, sends more than an earlier one, or is followed at no cost."""
    layers = [nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 12), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(12, 4), nn.Linear(4, 2))
    found = fedcel.compare_cuts(model, *make_images())
    assert [cut.layer for cut in found.cuts] == ["2", "5"]


class Rows(nn.Module):
    """A layer that gives rows of so many values, several an image or one."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(-1, self.size)


class Infinite(nn.Module):
    """A layer that gives infinity, which the next turns into 0."""

    def forward(self, x: Tensor) -> Tensor:
        return x.square() / 0


@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
        (Funnel(), {"at": ["gists"]}, NetError, "cut at one of gist"),
        (
            nn.Sequential(Rows(8), Rows(16), nn.Linear(16, 2)),
            {"at": ["0"]},
            NetError,
            "layer '0' gives no row for each image",
        ),
        (
            nn.Sequential(nn.Flatten(), Infinite(), nn.Tanh(), nn.Linear(16, 2)),
            {"at": ["1"]},
            ValueError,
            "layer '1'",
        ),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 1)), {}, NetError, "give a classifier"),
        (nn.Sequential(nn.Linear(9, 2)), {}, NetError, "refuses images"),
        (nn.Linear(4, 2), {}, NetError, "cut nowhere"),
        (Funnel(), {"limits": fedcel.CutLimits(min_mse=9)}, ValueError, "who gets no message"),
    ],
)
def test_refusals(
    model: nn.Module, options: dict[str, object], error: type[Exception], message: str
) -> None:
    """Each says what is wrong."""
    with pytest.raises(error, match=message):
        fedcel.compare_cuts(model, *make_images(), **options)


@pytest.mark.parametrize(
    ("dtype", "options", "message"),
    [
        (torch.uint8, {}, "torch.uint8, must be .* floating numbers.*: divide bytes by 255"),
        (torch.float32, {"at": "copies"}, "at is 'copies', must be 'thinned', 'all' or a list"),
        (torch.float32, {"at": []}, r"at is \[\], must be"),
    ],
)
def test_images_and_layers_are_checked_first(
    dtype: torch.dtype, options: dict[str, Any], message: str
) -> None:
    """Bytes, one name as text, and no name at all are refused."""
    images, labels = make_images()
    with pytest.raises(ValueError, match=message):
        fedcel.compare_cuts(Funnel(), images.to(dtype), labels, **options)


def test_the_first_layer_with_nan_is_named() -> None:
    """Not the logits, which have it from there."""
    model = Funnel()
    with torch.no_grad():
        model.copies.weight[3] = torch.nan
    with pytest.raises(ValueError, match="features of layer 'copies'"):
        fedcel.compare_cuts(model, *make_images(), at="all")


def test_too_few_images_and_limits_that_say_nothing() -> None:
    with pytest.raises(ValueError, match="19 images, must be 20"):
        fedcel.compare_cuts(Funnel(), *make_images(19))
    with pytest.raises(SettingsError, match="both limit the leak"):
        fedcel.CutLimits(max_bits=1, min_mse=0.1)
    with pytest.raises(SettingsError, match="max-loss is -1"):
        fedcel.CutLimits(max_loss=-1)
    with pytest.raises(SettingsError, match="max-macs is 0"):
        fedcel.CutLimits(max_macs=0)


@given(st.floats(LEAST_NOISE, 0.9 * MOST_NOISE))
def test_a_threshold_is_found(threshold: float) -> None:
    """By neighbouring levels, with as many questions as there are steps."""
    asked = []

    def is_little(noise: float) -> bool:
        asked.append(noise)
        return noise <= threshold

    most = find_most_noise(is_little)
    step = (MOST_NOISE / LEAST_NOISE) ** (1 / (2**SEARCH_STEPS - 2))
    assert most <= threshold < step * most * (1 + 1e-9) and len(asked) == SEARCH_STEPS


def test_ends_of_the_search() -> None:
    """No noise is little enough, or all is."""
    assert find_most_noise(lambda _: False) == 0
    assert find_most_noise(lambda _: True) == pytest.approx(MOST_NOISE)
    assert noise_level(1) == LEAST_NOISE


@given(st.lists(st.integers(0, 9), min_size=255, max_size=255), st.integers(0, 9))
def test_a_looser_limit_allows_no_less(losses: list[int], limit: int) -> None:
    """Whatever the losses at each level, not only where they rise with the noise."""
    at = {noise_level(number): loss for number, loss in enumerate(losses, 1)}
    tight, loose = (
        find_most_noise(lambda noise, most=most: at[noise] <= most) for most in (limit, limit + 1)
    )
    assert tight <= loose
