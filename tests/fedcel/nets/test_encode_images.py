"""Features of encoders of every kind: what they give is made one vector an image, or refused."""

from collections import namedtuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedcel
from fedcel.errors import NetError, RefusedImagesError
from fedcel.nets import Encoder, call_encoder, encode_images
from tests.fedcel.elsewhere import ELSEWHERE, Elsewhere
from tests.fedcel.seeded import seeded

IMAGES = torch.rand(5, 3, 6, 6, generator=seeded(0))
CONVOLUTION = nn.Conv2d(3, 4, 3)
Pair = namedtuple("Pair", "first second")


def make_map(images: Tensor) -> Tensor:
    return CONVOLUTION(images.to(CONVOLUTION.weight.dtype)).detach()


@pytest.mark.parametrize(
    "encoder",
    [
        lambda images: [make_map(images), make_map(images).mean((2, 3))],
        lambda images: Pair(make_map(images), make_map(images).mean((2, 3)).numpy()),
        lambda images: {"map": make_map(images), "pooled": make_map(images).mean((2, 3))},
        lambda images: {"states": (make_map(images), {"pooled": make_map(images).mean((2, 3))})},
    ],
    ids=["list", "named tuple", "dict", "nested"],
)
def test_all_outputs_leave_the_device(encoder: object) -> None:
    """Side by side, in their order: what is left out would be taken for hidden."""
    features = encode_images(encoder, IMAGES, batch_size=2)
    table = make_map(IMAGES)
    torch.testing.assert_close(features, torch.cat([table.flatten(1), table.mean((2, 3))], 1))


def test_answers_in_one_array_are_told_apart() -> None:
    """A function that writes each batch into the same memory; random ones are still refused."""
    memory, stream = np.empty((2, 4), np.float32), np.random.default_rng(0)

    def measure(images: Tensor) -> np.ndarray:
        memory[: len(images)] = images.mean((2, 3)).numpy().repeat(2, 1)[:, :4]
        return memory[: len(images)]

    def guess(images: Tensor) -> np.ndarray:
        memory[: len(images)] = stream.normal(size=(len(images), 4))
        return memory[: len(images)]

    expected = IMAGES.mean((2, 3)).repeat_interleave(2, 1)[:, :4]
    torch.testing.assert_close(encode_images(measure, IMAGES, batch_size=2), expected)
    with pytest.raises(NetError, match="random"):
        encode_images(guess, IMAGES, batch_size=2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_modules_of_half_precision(dtype: torch.dtype) -> None:
    """Images take the module's type; the features are those of that type."""
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()).to(dtype)
    features = encode_images(module, IMAGES)
    assert features.dtype == dtype
    torch.testing.assert_close(features, module(IMAGES.to(dtype)).detach())


def test_the_order_in_memory_does_not_matter() -> None:
    """Images and a module in the order `channels_last` give the same features."""
    plain = encode_images(CONVOLUTION, IMAGES)
    module = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    module.load_state_dict(CONVOLUTION.state_dict())
    turned = encode_images(module, IMAGES.to(memory_format=torch.channels_last))
    torch.testing.assert_close(turned, plain)


def test_a_program_of_torch_export_is_a_module() -> None:
    """Though it refuses to be switched to evaluation, alone or as a part."""
    program = torch.export.export(nn.Sequential(CONVOLUTION, nn.Flatten()), (IMAGES,)).module()
    whole = nn.Sequential(program, nn.Dropout(0.5))
    torch.testing.assert_close(encode_images(program, IMAGES), make_map(IMAGES).flatten(1))
    torch.testing.assert_close(encode_images(whole, IMAGES), make_map(IMAGES).flatten(1))
    assert whole[1].training


@pytest.mark.parametrize(
    ("encoder", "words"),
    [
        (lambda images: {"map": make_map(images), "size": 4}, "output 'size' are"),
        (lambda images: {}, "gives nothing"),
        (lambda images: [make_map(images), make_map(images)[0]], "output '1' are"),
        (lambda images: "features", "features are str, must be a tensor"),
    ],
)
def test_outputs_that_are_no_features_are_named(encoder: object, words: str) -> None:
    with pytest.raises(NetError, match=words):
        encode_images(encoder, IMAGES)


def test_images_of_another_size_are_refused_as_such() -> None:
    """Whichever error the encoder raises: a command names its options then."""

    def assert_size(images: Tensor) -> Tensor:
        assert images.shape[2] == 224, "the height is 6, must be 224"
        return images

    for encoder in (assert_size, nn.Linear(5, 5), nn.Conv2d(1, 1, 3)):
        with pytest.raises(RefusedImagesError, match=r"refuses images \(5, 3, 6, 6\)"):
            call_encoder(encoder, IMAGES)


def test_images_follow_a_module_to_its_device() -> None:
    """A module elsewhere gets images from here, and its features stay with it."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(108, 4))
    here = encode_images(module, IMAGES)
    with Elsewhere():
        there = encode_images(module.to(ELSEWHERE), IMAGES)
        assert there.device == ELSEWHERE
        torch.testing.assert_close(there.cpu(), here)


class Threshold(nn.Module):
    """Works in place: sets dark pixels of what it is given to 0."""

    def forward(self, images: Tensor) -> Tensor:
        images[images < 0.6] = 0
        return images.flatten(1)


def test_an_encoder_that_works_in_place_changes_no_image() -> None:
    """Neither a tensor nor an array, and attackers see what the encoder makes of a copy."""
    tensor, array = IMAGES.clone(), IMAGES.numpy().copy()
    features = encode_images(Threshold(), tensor)
    leak = fedcel.measure_leakage(Threshold(), array, noise=0.3)
    pair = [0, 0, 0, 0, 1]
    fedcel.measure_attribute_leakage(Threshold(), array, pair, pair, noise=0.3)
    assert torch.equal(tensor, IMAGES) and np.array_equal(array, IMAGES.numpy())
    own = fedcel.measure_leakage(lambda images: Threshold()(images.clone()), array, noise=0.3)
    assert leak.information_bits == own.information_bits
    assert torch.equal(features, Threshold()(IMAGES.clone()))


BATCH_NORM = nn.Sequential(
    nn.Conv2d(3, 4, 3), nn.Sequential(nn.BatchNorm2d(4, track_running_stats=False))
)


@pytest.mark.parametrize(
    ("encoder", "words"),
    [
        (BATCH_NORM, r"other images of its batch: '1.0' \(BatchNorm2d\) has no running statistics"),
        (lambda images: make_map(images - images.mean(0)), "by the other images of its batch; it"),
        (lambda images: make_map(images) / len(images), "by the other images of its batch; it"),
        (lambda images: make_map(images + torch.rand(1)), "asked twice: it draws random numbers"),
    ],
    ids=["batch norm", "mean", "size", "random"],
)
def test_features_of_the_batch_are_refused_and_random_ones_by_their_name(
    encoder: Encoder, words: str
) -> None:
    """An image by itself has to have the features that it has among others."""
    with pytest.raises(NetError, match=words):
        encode_images(encoder, IMAGES)


def test_an_encoder_that_counts_its_calls_is_not_only_told_of_random_numbers() -> None:
    """It keeps something from call to call."""
    calls = iter(range(9))
    with pytest.raises(NetError, match="or keeps something from call to call; .* what it counts"):
        encode_images(lambda images: make_map(images) + next(calls), IMAGES)


def test_image_by_image_a_batch_does_not_matter() -> None:
    """The remedy that the refusal names: a device encodes its images one after the other."""

    def encode(images: Tensor) -> Tensor:
        return torch.cat([BATCH_NORM(image).detach() for image in images.split(1)])

    alone = encode_images(BATCH_NORM, IMAGES, batch_size=1)
    torch.testing.assert_close(encode_images(encode, IMAGES, batch_size=2), alone)


def test_encoders_that_squeeze_or_compute_in_half_precision_are_not_refused() -> None:
    """A batch of one that loses its dimension, or steps of bfloat16, are no other features."""
    net = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 4, 4)).bfloat16()
    assert encode_images(lambda x: net(x.bfloat16()).squeeze(), IMAGES).shape == (5, 4)


@pytest.mark.parametrize(
    "error", [KeyError("layer"), AttributeError("no layer"), IndexError("9"), OSError("no file")]
)
def test_whatever_an_encoder_raises_is_named_with_its_line(error: Exception) -> None:
    """Type, message, file and line."""

    def encode(images: Tensor) -> Tensor:
        raise error

    words = f"{type(error).__name__}: .*{error.args[0]}.*test_encode_images.py, line"
    with pytest.raises(RefusedImagesError, match=words):
        encode_images(nn.Sequential(nn.Flatten(), Calling(encode)), IMAGES)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        RuntimeError("CUDA out of memory. Tried to allocate 9 GiB"),
        RuntimeError("Failed to allocate memory for requested buffer of size 9"),
    ],
)
def test_memory_that_is_too_small_is_no_refusal_of_the_images(error: Exception) -> None:
    """Of whatever type the error is: other images would fail likewise."""

    def encode(images: Tensor) -> Tensor:
        raise error

    with pytest.raises(NetError, match="memory is too small") as raised:
        encode_images(encode, IMAGES)
    assert not isinstance(raised.value, RefusedImagesError)


class Calling(nn.Module):
    def __init__(self, function: Encoder) -> None:
        super().__init__()
        self.function = function

    def forward(self, images: Tensor) -> object:
        return self.function(images)


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
def test_frozen_torchscript_is_an_encoder() -> None:
    """It has no attribute `training`, and one mode."""
    scripted = torch.jit.script(nn.Sequential(CONVOLUTION, nn.Flatten()).eval())
    frozen = torch.jit.freeze(scripted)
    torch.testing.assert_close(encode_images(frozen, IMAGES), make_map(IMAGES).flatten(1))
    assert fedcel.measure_leakage(frozen, IMAGES, noise=0.1).candidates == 5
