"""The score card against values known by hand or from another library."""

from dataclasses import asdict, replace
from math import isfinite, log10

import pytest
import torch
from sklearn.datasets import load_digits

from fedcel.attacks import compute_anchors, score_card
from fedcel.attacks.attack import OtherClasses
from fedcel.attacks.score_card import (
    label_accuracy,
    mse,
    order_batches,
    psnr,
    score_images,
    score_reconstructions,
    ssim,
)
from fedcel.data.images import Images
from fedcel.errors import DataError
from tests.fedcel.attacks.undefended import class_means, mean_image
from tests.fedcel.seeded import seeded

FLAT = torch.full((2, 1, 8, 8), 0.5)


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=seeded(seed))


def all_digits() -> Images:
    """Return all digits in [0, 1]."""
    data = load_digits()
    x = torch.from_numpy(data.images).float()[:, None] / 16
    return Images(x, torch.from_numpy(data.target).long())


def test_mse_and_psnr_by_hand() -> None:
    """Errors .1 and .01: the PSNR is the mean of 20 and 40 dB, not that of the mean error."""
    off = FLAT + torch.tensor([0.1, 0.01])[:, None, None, None]
    assert mse(off, FLAT) == pytest.approx((0.01 + 0.0001) / 2, rel=1e-5)
    assert psnr(off, FLAT) == pytest.approx(30, rel=1e-5)
    assert psnr(off, FLAT) > -10 * log10(mse(off, FLAT))


def test_perfect_reconstruction() -> None:
    """Everything at its best."""
    x = rand(10, 1, 8, 8)
    assert (mse(x, x), psnr(x, x)) == (0, 100)
    assert ssim(x, x) == pytest.approx(1)
    assert score_images(x, x, 10).identification_1.mean() == 1


@pytest.mark.parametrize("side", [8, 28])
def test_ssim_of_constant_images(side: int) -> None:
    """No structure: only the luminance term (2ab + c1)/(a^2 + b^2 + c1) is left."""
    a, b = torch.full((3, 1, side, side), 0.5), torch.full((3, 1, side, side), 0.25)
    wanted = (2 * 0.5 * 0.25 + 1e-4) / (0.5**2 + 0.25**2 + 1e-4)
    assert ssim(a, b) == pytest.approx(wanted, rel=1e-4)


def test_ssim_is_the_mean_of_images_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five images, two at a time."""
    x, y = rand(5, 3, 16, 16), rand(5, 3, 16, 16).flip(0)
    whole = ssim(x, y)
    monkeypatch.setattr(score_card, "_VALUES_OF_SSIM", 2 * x[0].numel())
    assert ssim(x, y) == pytest.approx(whole, abs=1e-6) and abs(ssim(x[:1], y[:1]) - whole) > 1e-5


def test_large_images_are_classified_by_blocks() -> None:
    """Two classes that differ in their light are told apart at 80 pixels, whatever the noise."""
    y = torch.arange(40) % 2
    x = (rand(40, 1, 80, 80) + y.view(-1, 1, 1, 1) / 5) / 1.2
    assert label_accuracy(x[:20], y[:20], Images(x[20:], y[20:])) == 1


def test_ssim_of_tiny_images() -> None:
    """No 3x3 window fits: no such key, all others are numbers."""
    known = Images(rand(4, 1, 1, 6), torch.arange(4) % 2)
    scores = score_reconstructions(rand(4, 1, 1, 6), known, known, 4)
    assert scores.ssim is None
    assert all(isfinite(value) for value in asdict(scores).values() if value is not None)


def test_identified_by_hand() -> None:
    """On a line: 0 is nearest to its own, 1's picture lies at 2, whose own picture is exact."""
    originals = torch.tensor([0.0, 0.4, 0.8]).reshape(3, 1, 1, 1)
    images = torch.tensor([0.1, 0.7, 0.8]).reshape(3, 1, 1, 1)
    assert score_images(images, originals, 3).identification_1.tolist() == [1, 0, 1]
    assert score_images(images, originals, 2).identification_1.tolist() == [1, 1 / 2, 1]
    assert score_images(images, originals, 3).identification_5.mean() == 1


def test_the_mean_image_identifies_by_chance() -> None:
    """One picture for all: the right one is first among n in 1/n of the cases on average."""
    originals = rand(50, 1, 4, 4)
    images = originals.mean(0, keepdim=True).expand(50, -1, -1, -1)
    scores = score_images(images, originals, 10)
    assert scores.identification_1.mean() == pytest.approx(1 / 10)
    assert scores.identification_5.mean() == pytest.approx(5 / 10)


def test_anchors_on_digits() -> None:
    """The global mean image and the class means of the digits, as published for this data set."""
    known = all_digits()
    assert mse(mean_image(known.y, known), known.x) == pytest.approx(0.0737, abs=5e-4)
    assert mse(class_means(known.y, known), known.x) == pytest.approx(0.0434, abs=1e-3)


def test_class_means_by_hand() -> None:
    """Two classes known, the third falls back on the mean of all."""
    known = Images(torch.tensor([0.0, 0.4, 1.0]).reshape(3, 1, 1, 1), torch.tensor([0, 0, 1]))
    means = class_means(torch.tensor([2, 1, 0]), known).flatten()
    torch.testing.assert_close(means, torch.tensor([1.4 / 3, 1.0, 0.2]))
    with pytest.raises(DataError, match="no images"):
        class_means(torch.tensor([0]), Images(known.x[:0], known.y[:0]))


def test_label_accuracy() -> None:
    """Class means are read almost always, the mean image of all digits as one class only."""
    digits = all_digits()
    known, targets = Images(digits.x[:300], digits.y[:300]), digits.y[300:400]
    assert label_accuracy(class_means(targets, known), targets, known) > 0.95
    assert label_accuracy(mean_image(targets, known), targets, known) < 0.2


def test_label_accuracy_where_images_come_class_by_class() -> None:
    """More images than are learned from, sorted: all classes are learned all the same."""
    y = torch.arange(6000) // 5500
    known = Images(y.float().view(-1, 1, 1, 1).expand(-1, 1, 2, 2) + 0.1 * rand(6000, 1, 2, 2), y)
    shown = Images(known.x[5400:5600], known.y[5400:5600])
    assert label_accuracy(shown.x, shown.y, known) == 1


def test_label_accuracy_of_one_class() -> None:
    """An attacker who has seen one class knows one answer."""
    known = Images(rand(3, 1, 2, 2), torch.ones(3, dtype=torch.long))
    assert label_accuracy(rand(4, 1, 2, 2), torch.tensor([1, 1, 0, 2]), known) == 0.5


def test_no_label_is_read_of_classes_that_the_attacker_lacks() -> None:
    """Where every image is a class of its own, nothing is learned about those of the targets."""
    images = rand(12, 1, 2, 2)
    targets = Images(images[:4], torch.arange(4))
    known = Images(images[4:], torch.arange(4, 12))
    assert score_reconstructions(targets.x, targets, known, 4).label_accuracy is None
    overlap = Images(images, torch.arange(12) % 6)
    assert score_reconstructions(targets.x, targets, overlap, 4).label_accuracy is not None


def test_other_classes_teach_no_labels() -> None:
    """No label accuracy, all else as it is; anchors of other classes are refused."""
    digits = all_digits()
    known, targets = Images(digits.x[:100], digits.y[:100]), Images(digits.x[100:], digits.y[100:])
    other = OtherClasses(known.x, known.y.flip(0))
    scores = score_reconstructions(targets.x, targets, known, 10)
    expected = replace(scores, label_accuracy=None)
    assert (
        score_reconstructions(targets.x, targets, other, 10, anchors=compute_anchors([known]))
        == expected
    )
    with pytest.raises(DataError, match="of other classes, must be of the targets'; pass those"):
        score_reconstructions(targets.x, targets, other, 10)


def test_best_order_within_batches_only() -> None:
    """Shuffled inside batches of 3, the last of 2: put back; an image never leaves its batch."""
    x = rand(8, 1, 4, 4, seed=5)
    shuffled = x[[2, 0, 1, 4, 5, 3, 7, 6]]
    assert torch.equal(order_batches(shuffled, x, 3), x)
    assert torch.equal(order_batches(shuffled, x, 1), shuffled)
    crossed = x[[3, 1, 2, 0, 4, 5, 6, 7]]
    assert not torch.equal(order_batches(crossed, x, 3), x)
