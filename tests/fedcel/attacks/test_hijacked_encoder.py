"""An encoder that was trained to leak."""

import torch

from fedcel.attacks.decoder import Decoder
from fedcel.attacks.malicious_server import hijack_encoder
from fedcel.attacks.score_card import mse
from fedcel.leakage import SmashedData, optimal_leak
from fedcel.testing.attacks import load_digit_targets
from tests.fedcel.attacks.undefended import train_undefended


def stream(seed: int = 0) -> torch.Generator:
    """Return a generator."""
    return torch.Generator().manual_seed(seed)


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
