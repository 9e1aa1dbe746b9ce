"""The local update against arithmetic written out by hand."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedcel import nets
from fedcel.arrays import FlatNet
from fedcel.schedule import Plan
from fedcel.seeding import generator
from fedcel.settings_groups import Local, Net
from fedcel.training import Update, draw_batches, local_update

PLAIN = Plan(0.3, 0.0, 0.0, 0.0, 0.0, 0.0, False, 0.0)
LOCAL = Local(steps=7, batch_size=5)


def streams(purpose: str) -> torch.Generator:
    """Return the generator of a fixed client and round."""
    return generator(3, purpose, 2, 1)


def flat_net(sigma: float = 0.1) -> FlatNet:
    """Return a small split net."""
    net = Net(features=6, width=9, noise=sigma)
    return FlatNet(nets.build(net, (1, 4, 4), 3, generator(0, "net")))


def data(examples: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random images and labels."""
    stream = generator(1, "data")
    return torch.rand(examples, 1, 4, 4, generator=stream), torch.arange(examples) % 3


def update(plan: Plan, received: torch.Tensor, examples: int = 12) -> Update:
    """Return one local update."""
    return local_update(flat_net(), received, *data(examples), plan, LOCAL, streams)


def test_without_noise_prior_and_loss_it_is_plain_sgd_to_the_bit() -> None:
    """A module, torch's own SGD and the same batches and cut noise give the same bits."""
    received = flat_net().vector.clone()
    found = update(PLAIN, received).delta
    net = nets.build(Net(features=6, width=9, noise=0.1), (1, 4, 4), 3, generator(0, "net"))
    optimiser = torch.optim.SGD(net.parameters(), lr=PLAIN.rate)
    x, y = data()
    cut = streams("cut")
    batches = draw_batches(y, LOCAL, streams("batch"))
    xi = torch.randn(*batches.shape, 6, generator=cut) * 0.1
    for batch, noise in zip(batches, xi, strict=True):
        optimiser.zero_grad()
        cross_entropy(net.head(net.encoder(x[batch]) + noise), y[batch]).backward()
        optimiser.step()
    after = torch.cat([p.detach().flatten() for p in net.parameters()])
    assert torch.equal(found, after - received)
    assert found.abs().max() > 1e-3


def test_depends_on_its_arguments_alone() -> None:
    """A workspace that was used before, and global random state, change nothing."""
    received = flat_net().vector.clone()
    first = update(PLAIN._replace(noise=0.01), received).delta
    torch.rand(3)
    used = flat_net()
    used.load(torch.ones_like(received))
    plan = PLAIN._replace(noise=0.01)
    second = local_update(used, received, *data(), plan, LOCAL, streams).delta
    assert torch.equal(first, second)


def test_langevin_noise_has_the_planned_deviation() -> None:
    """With a vanishing rate the delta is the sum of `steps` noises; 40 clients, within 5 %."""
    plan, received = PLAIN._replace(rate=1e-12, noise=0.02), flat_net().vector.clone()
    deltas = [
        local_update(
            flat_net(), received, *data(), plan, LOCAL, lambda p, k=k: generator(3, p, 2, k)
        ).delta
        for k in range(40)
    ]
    want = 0.02 * math.sqrt(LOCAL.steps)
    assert torch.cat(deltas).std().item() == pytest.approx(want, rel=0.05)


def test_priors_pull_towards_the_received_model_and_zero() -> None:
    """One step of decay is -eta decay w; a pull does nothing where the round starts."""
    received = flat_net().vector.clone()
    one = Local(steps=1, batch_size=5)
    x, y = data()
    base = local_update(flat_net(), received, x, y, PLAIN, one, streams).delta
    decayed = local_update(
        flat_net(), received, x, y, PLAIN._replace(decay=0.5), one, streams
    ).delta
    pulled = local_update(flat_net(), received, x, y, PLAIN._replace(pull=0.5), one, streams).delta
    torch.testing.assert_close(decayed - base, -0.3 * 0.5 * received, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(pulled, base, atol=1e-6, rtol=1e-5)
    longer = update(PLAIN._replace(pull=0.5), received).delta
    assert longer.norm() < update(PLAIN, received).delta.norm()


def test_a_frozen_encoder_does_not_move_and_the_head_does() -> None:
    """The delta is exactly 0 on the encoder, with Langevin noise on."""
    flat = flat_net()
    delta = update(PLAIN._replace(freeze=True, noise=0.1), flat.vector.clone()).delta
    assert not delta[: flat.cut].any()
    assert delta[flat.cut :].all()


@pytest.mark.parametrize("examples", [1, 2, 12])
def test_a_client_with_few_images_works(examples: int) -> None:
    """One image is a batch of one; the delta is finite."""
    found = update(PLAIN, flat_net().vector.clone(), examples)
    assert found.delta.isfinite().all()
    assert found.delta.any()


def test_batches_are_epochs_in_a_row() -> None:
    """Every image is drawn once before any is drawn twice."""
    batches = draw_batches(
        torch.zeros(10, dtype=torch.long), Local(steps=4, batch_size=5), streams("batch")
    )
    assert sorted(batches[:2].flatten().tolist()) == list(range(10))
    assert sorted(batches[2:].flatten().tolist()) == list(range(10))
