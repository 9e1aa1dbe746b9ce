"""Attacks on any encoder, without a run."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcel.attacks import invert
from fedcel.errors import DataError, NetError, SettingsError
from tests.fedcel.seeded import seeded
from tests.fedcel.test_torch_state import STATES


def blobs(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Return images (count, 1, 6, 6) of three classes, each of four numbers, in [0, 1]."""
    stream = seeded(seed)
    corners = torch.rand(count, 1, 2, 2, generator=stream)
    y = torch.arange(count) % 3
    corners[:, 0, 0, 0] = 0.4 * y
    return nn.functional.interpolate(corners, size=(6, 6), mode="bilinear").clamp(0, 1), y


def make_encoder() -> nn.Module:
    layer = nn.Linear(36, 8)
    nn.init.normal_(layer.weight, generator=seeded(0))
    return nn.Sequential(nn.Flatten(), layer, nn.Dropout(0.5))


IMAGES, LABELS = blobs(0, 200)
TARGETS, TARGET_LABELS = blobs(1, 30)
BOTH = ["decoder", "kernel-ridge"]


def test_attacks_rebuild_what_leaks_and_not_what_does_not() -> None:
    """Far below the class mean's error under little noise, no better than it under much."""
    encoder = make_encoder()
    labels = {"labels": TARGET_LABELS, "auxiliary_labels": LABELS}
    options = {"auxiliary": IMAGES, "attacks": BOTH, "budget": 0.2, **labels}
    clear = invert(encoder, TARGETS, noise=0.05, **options)
    assert encoder.training  # its own copy was evaluated
    assert list(clear.reconstructions) == list(clear.scores) == BOTH
    curve = clear.learning_curves.pop("decoder")
    assert len(curve) == 60  # a fifth of 300 epochs
    assert curve[-1] < 0.5 * curve[0]
    assert not clear.learning_curves  # a regression has none
    for name, images in clear.reconstructions.items():
        assert images.shape == TARGETS.shape
        scores = clear.scores[name]
        assert scores.mse == pytest.approx(float((images - TARGETS).square().mean()), rel=1e-4)
        assert scores.mse < 0.5 * scores.oracle_mse < 0.5 * scores.mean_mse
        assert scores.identification_1 > 0.5
    hidden = invert(encoder, TARGETS, noise=100.0, **options)
    assert hidden.scores["kernel-ridge"].mse > 0.8 * hidden.scores["kernel-ridge"].mean_mse


def test_the_same_seed_the_same_images() -> None:
    """Arrays or tensors, noise of one number or one a feature; another seed, other images."""
    encoder = make_encoder()
    pairs = [(TARGETS, IMAGES, 0.1), (TARGETS.numpy(), IMAGES.double().numpy(), np.full(8, 0.1))]
    rebuilt = [
        invert(encoder, t, auxiliary=a, noise=n, attacks=["kernel-ridge"]).reconstructions
        for t, a, n in pairs
    ]
    assert torch.equal(rebuilt[0]["kernel-ridge"], rebuilt[1]["kernel-ridge"])
    other = invert(encoder, TARGETS, auxiliary=IMAGES, noise=0.1, attacks=["kernel-ridge"], seed=1)
    assert not torch.equal(other.reconstructions["kernel-ridge"], rebuilt[0]["kernel-ridge"])


def test_noise_of_each_feature_is_what_an_attacker_meets() -> None:
    """A feature drowned in noise is lost, whatever the scale of the others."""
    options = {"auxiliary": IMAGES, "attacks": ["kernel-ridge"]}
    sigma = torch.full((8,), 0.01)
    clear = invert(make_encoder(), TARGETS, noise=sigma, **options)
    sigma[2:] = 1e3
    drowned = invert(make_encoder(), TARGETS, noise=sigma, **options)
    assert drowned.scores["kernel-ridge"].mse > 2 * clear.scores["kernel-ridge"].mse


def test_a_function_and_repeated_messages() -> None:
    """A function is attacked by asking it; sixteen messages give more than one."""
    encoder = make_encoder().eval()

    def encode(images: Tensor) -> NDArray[np.float32]:
        with torch.no_grad():
            return encoder(images).numpy()

    names = ["kernel-ridge", "kernel-ridge*16"]
    result = invert(encode, TARGETS, auxiliary=IMAGES, noise=0.5, attacks=names)
    assert result.scores["kernel-ridge*16"].mse < result.scores["kernel-ridge"].mse
    assert result.best == "kernel-ridge*16"
    with pytest.raises(ValueError, match="'rmle' needs mean, which is not granted: give a PyTorch"):
        invert(encode, TARGETS, auxiliary=IMAGES, noise=0.5, attacks=["rmle"])


def test_results_in_words_numbers_and_pictures(tmp_path: Path) -> None:
    """Three lines, plain numbers, a grid of targets and what attacks made of them."""
    result = invert(make_encoder(), TARGETS, auxiliary=IMAGES, noise=0.1, attacks=BOTH, budget=0.01)
    assert len(str(result).splitlines()) == 3
    assert "mean of its class" not in str(result)  # nobody said what the classes are
    assert result.scores["decoder"].label_accuracy is None
    assert json.loads(json.dumps(result.to_dict())) == result.to_dict()
    assert len(repr(result)) < 100
    result.save_grid(tmp_path / "grid.png")
    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")
    assert len(result.figure().axes) == 3 * 12


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"targets": TARGETS[0]}, ValueError, r"targets: images are \(1, 6, 6\) .*, must be"),
        ({"targets": (255 * TARGETS).byte()}, ValueError, "scale them, bytes by 1/255"),
        ({"targets": 2 * TARGETS}, ValueError, r"targets: pixels are in \[0.0, 1\.99"),
        ({"auxiliary": IMAGES[..., :5]}, ValueError, "must be of one size"),
        ({"auxiliary": TARGETS}, DataError, "30 of 30 targets are among the attacker's own"),
        ({"labels": TARGET_LABELS}, ValueError, "give labels and auxiliary_labels, or neither"),
        ({"noise": None}, ValueError, "noise is missing"),
        ({"noise": [0.0] * 4 + [0.1] * 4}, ValueError, "noise is 0 for some features only"),
        (
            {"noise": lambda z: 0.1 + z.square(), "dropout": 0.5},
            ValueError,
            "dropout is 0.5 beside a function as noise, must be 0",
        ),
        ({"attacks": "decoder"}, ValueError, "must be a list of names"),
        ({"attacks": ["optimal"]}, ValueError, "call measure_leakage"),
        ({"attacks": ["decodr"]}, SettingsError, "did you mean 'decoder'"),
        ({"attacks": ["first-layer"]}, ValueError, "an encoder alone sends nothing else"),
        ({"attacks": ["shadow"]}, ValueError, "the head where the attack needs it"),
        ({"budget": 0.0}, ValueError, "budget"),
        ({"candidates": 1}, ValueError, "candidates"),
    ],
)
def test_bad_input_is_refused(
    arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    """Before any attack: what it is, and what is allowed."""
    sound = {"encoder": make_encoder(), "targets": TARGETS, "auxiliary": IMAGES, "noise": 0.1}
    with pytest.raises(error, match=message):
        invert(**(sound | arguments))


def test_noise_that_is_a_function_of_the_features() -> None:
    """Attackers see its law: more noise, worse images; an encoder without gradient is refused."""
    encoder = make_encoder()

    def attack(encoder: Any, noise: Any) -> float:
        made = invert(encoder, TARGETS, auxiliary=IMAGES, noise=noise, attacks=["kernel-ridge"])
        return made.scores["kernel-ridge"].mse

    same = attack(encoder, lambda z: 0.1 + 0 * z)
    assert same == pytest.approx(attack(encoder, 0.1), rel=0.02)
    assert attack(encoder, lambda z: 1 + z.square()) > 1.2 * same
    with pytest.raises(NetError, match="give a PyTorch module"):
        attack(lambda x: x.flatten(1), lambda z: 1 + z.square())
    with pytest.raises(ValueError, match="give a function of the features"):
        attack(encoder, torch.rand(2, 8) + 0.1)


def test_labels_may_be_numbers_of_people() -> None:
    """The baseline asks only which are alike; once the numbers sized its memory."""
    scores = [
        invert(
            make_encoder(),
            TARGETS,
            TARGET_LABELS * scale,
            auxiliary=IMAGES,
            auxiliary_labels=LABELS * scale,
            noise=0.1,
            attacks=["kernel-ridge"],
            budget=0.1,
        ).scores["kernel-ridge"]
        for scale in (1, 10**12)
    ]
    assert scores[0].label_accuracy == scores[1].label_accuracy == 1
    assert scores[0].oracle_mse == pytest.approx(scores[1].oracle_mse)


@pytest.mark.parametrize("state", STATES)
def test_attacks_do_not_depend_on_the_state_of_pytorch(
    state: Callable[[], AbstractContextManager[object]],
) -> None:
    """Every attack rebuilds the same images, whatever a caller switched off."""
    head = nn.Linear(8, 3)
    nn.init.normal_(head.weight, generator=seeded(2))
    options = {
        "auxiliary": IMAGES,
        "labels": TARGET_LABELS[:4],
        "auxiliary_labels": LABELS,
        "attacks": ["decoder", "hybrid-inversion", "rmle", "shadow"],
        "head": head,
        "noise": 0.1,
        "budget": 0.01,
    }
    encoder = make_encoder()
    stream = torch.random.get_rng_state()
    usual = invert(encoder, TARGETS[:4], **options)
    assert torch.equal(torch.random.get_rng_state(), stream)
    with state():
        again = invert(encoder, TARGETS[:4], **options)
    for name, images in usual.reconstructions.items():
        assert torch.equal(again.reconstructions[name], images), name


def test_images_of_inference_mode_are_attacked() -> None:
    """They were made where no gradient may be had; so was the encoder."""
    with torch.inference_mode():
        encoder, targets, images = make_encoder(), TARGETS.clone(), IMAGES.clone()
    options = {"noise": 0.1, "attacks": ["rmle"], "budget": 0.01}
    result = invert(encoder, targets, auxiliary=images, **options)
    usual = make_encoder()
    usual.load_state_dict(encoder.state_dict())
    own = invert(usual, TARGETS, auxiliary=IMAGES, **options)
    assert torch.equal(result.reconstructions["rmle"], own.reconstructions["rmle"])


def test_an_encoder_in_place_and_one_with_weight_norm_are_attacked() -> None:
    """The first changes no image, of the second attackers make copies."""

    class Threshold(nn.Module):
        """Sets dark pixels of what it is given to 0."""

        def forward(self, images: Tensor) -> Tensor:
            images[images < 0.6] = 0
            return images.flatten(1)

    targets, images = TARGETS.numpy().copy(), IMAGES.numpy().copy()
    result = invert(Threshold(), targets, auxiliary=images, noise=0.1, attacks=["kernel-ridge"])
    assert np.array_equal(targets, TARGETS.numpy()) and np.array_equal(images, IMAGES.numpy())
    assert torch.equal(result.targets, TARGETS)
    with pytest.warns(FutureWarning, match="weight_norm"):
        layer = nn.utils.weight_norm(nn.Linear(36, 8))
    encoder = nn.Sequential(nn.Flatten(), layer)
    encoder(TARGETS)  # leaves a weight with a gradient behind, which `deepcopy` refuses
    result = invert(encoder, TARGETS, auxiliary=IMAGES, noise=0.1, attacks=["rmle"], budget=0.01)
    assert result.reconstructions["rmle"].shape == TARGETS.shape
