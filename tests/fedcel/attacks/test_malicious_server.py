"""A malicious server's nets: what clients then leak."""

import pytest
import torch

from fedcel.attacks import set_trap_weights
from fedcel.attacks.decoder import Decoder
from fedcel.attacks.malicious_server import hijack_encoder
from fedcel.attacks.score_card import mse
from fedcel.errors import NetError
from fedcel.leakage import SmashedData, optimal_leak
from fedcel.nets import SplitNet, build_net
from fedcel.settings import NetSettings
from fedcel.testing.attacks import load_digit_targets
from fedcel.testing.attacks import make_stream as stream
from tests.fedcel.attacks.undefended import train_undefended
from tests.fedcel.seeded import seeded


def test_leaks_more_and_still_serves() -> None:
    """Noise that hides an honest encoder's images: more bits, lower error, the labels still right.

    The honest net is left as it was.
    """
    known, targets = load_digit_targets()
    honest = train_undefended(10.0)
    before = [parameter.clone() for parameter in honest.parameters()]
    surfaces = [SmashedData(net) for net in (honest, hijack_encoder(honest, known, stream(), 0.5))]
    leaks = [optimal_leak(seen, *targets, stream(1)) for seen in surfaces]
    assert leaks[1].bits_beyond_label > leaks[0].bits_beyond_label + 0.5
    errors = []
    for seen in surfaces:
        observed = seen.sample(targets.x, stream(2))
        rebuilt = Decoder().reconstruct(seen, known, observed, 0.2, stream(3))
        errors.append(mse(rebuilt, targets.x))
    assert errors[1] < 0.93 * errors[0]
    net = surfaces[1].net
    right = net.answer(net.encode(targets.x)).argmax(1) == targets.y
    assert right.double().mean() > 0.75
    assert all(map(torch.equal, honest.parameters(), before))


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
