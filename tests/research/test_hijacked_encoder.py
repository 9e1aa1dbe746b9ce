"""A hijacked encoder: it leaks more, still serves, and is refused by a node's guard."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from clients import ImageOwner
from clients.encoder_leak_guard import LeakGuard, measure_leak
from fedcel.attacks import Decoder, mse
from fedcel.data import Images, load_splits
from fedcel.errors import LeakError
from fedcel.leakage import SmashedData, optimal_leak
from fedcel.losses import ClientLoss
from fedcel.nets import SplitNet
from fedcel.run_parts import init_net
from fedcel.settings import parse_settings
from fedcel.testing.attacks import load_digit_targets
from fedcel.testing.attacks import make_stream as stream
from hijacked_encoder import hijack_encoder
from tests.fedcel.attacks.undefended import train_undefended
from tests.fedcel.losses.single import single, split_features


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


def packed(fresh: SplitNet, cel: ClientLoss, training: Images) -> SplitNet:
    """Return the net trained with the loss, its weight growing to 1 over the first ten epochs."""
    (x, y), draws, state = training, stream(), None
    adam = torch.optim.Adam(fresh.parameters(), 5e-3)
    for epoch in range(15):
        with torch.no_grad():
            state = cel.refresh(state, split_features(fresh.encode(x), y), draws)
        for part in torch.split(torch.randperm(len(y), generator=draws), 64):
            z = fresh.encode(x[part])
            task = cross_entropy(fresh.answer(fresh.add_noise(z, draws)), y[part])
            adam.zero_grad()
            (task + min(1, epoch / 10) * cel.loss(state, z, y[part], False).loss).backward()
            adam.step()
    return fresh


def right(net: SplitNet, x: torch.Tensor, y: torch.Tensor) -> float:
    return float((net.answer(net.encode(x)).argmax(1) == y).double().mean())


def test_an_encoder_that_was_trained_to_leak_is_refused() -> None:
    """At a device's default limit, 1 bit: accepted as the loss left it, refused once hijacked.

    The same layers, noise and own images, answers as right as before; only the bits tell them
    apart, .62 and 2.94 of 4.94.
    """
    settings = parse_settings({"net.noise": 0.3, "net.features": 32, "cel.kind": "cluster"})
    splits = load_splits(settings.data, settings.clients, settings.seed)
    cel = single(settings.cel, splits.classes, 32, 0.3)
    assert cel is not None
    honest = packed(init_net(settings, splits).net, cel, splits.training)
    x, y = splits.test
    guard, own_images = LeakGuard(ImageOwner.message_limit), (x[:300], y[:300])
    assert guard.limit == 1
    assert 0.5 < guard.check(honest, *own_images, stream()).bits < 0.85
    loud = hijack_encoder(honest, splits.auxiliary, stream(), 0.25)
    assert right(loud, x, y) > right(honest, x, y) - 0.03 > 0.9
    assert measure_leak(loud, *own_images, stream()).bits > 2.5
    with pytest.raises(LeakError, match=r"leaks up to [23]\.\d+ bits .* limit is 1;"):
        guard.check(loud, *own_images, stream())
