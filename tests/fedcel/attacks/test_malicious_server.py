"""A malicious server's nets: what clients then leak."""

import pytest
import torch

from fedcel.attacks import set_trap_weights
from fedcel.errors import NetError
from fedcel.nets import SplitNet, build_net
from fedcel.settings import NetSettings
from fedcel.testing.attacks import load_digit_targets
from tests.fedcel.seeded import seeded


def build(name: str) -> SplitNet:
    return build_net(
        NetSettings.model_validate({"name": name, "width": 64}), (1, 8, 8), 10, torch.Generator()
    )


def test_units_are_active_for_one_image_of_a_batch() -> None:
    """Of own images exactly the share, of others about that; the given net is as it was."""
    known, targets = load_digit_targets()
    honest = build("mlp")
    before = torch.nn.utils.parameters_to_vector(honest.parameters()).clone()
    trapped = set_trap_weights(honest, known.x, 10, seeded(0))
    first = next(layer for layer in trapped.encoder.modules() if isinstance(layer, torch.nn.Linear))
    for images, width in ((known.x, 0.005), (targets.x, 0.03)):
        assert (first(images.flatten(1)) > 0).double().mean() == pytest.approx(0.1, abs=width)
    assert torch.equal(torch.nn.utils.parameters_to_vector(honest.parameters()), before)


def test_a_convolution_cannot_be_trapped() -> None:
    """It sees no whole image."""
    with pytest.raises(NetError, match="must be a dense layer of 64 pixels"):
        set_trap_weights(build("cnn"), load_digit_targets()[0].x, 10, torch.Generator())
