"""The local steps against arithmetic written out by hand."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedcel.data import Images
from fedcel.federation import ClientUpdate, local_steps
from fedcel.federation.local_steps import FeatureReading, draw_batches
from fedcel.losses import Batch, ClientLoss, GradientRule, WeightedTerm
from fedcel.losses.cel.gated import Gated
from fedcel.losses.defences import Adversarial, NoPeek
from fedcel.losses.protocol import FeatureBatches, State, Term
from fedcel.nets import Mlp, NoiseShape, build_net
from fedcel.nets.flat_net import FlatNet
from fedcel.posterior.schedule import RoundPlan
from fedcel.settings import LocalSettings
from fedcel.torch_state import make_generator
from tests.fedcel.losses.cel.gates import Attention
from tests.fedcel.losses.single import bind_rival, single, to_term
from tests.fedcel.test_torch_state import STATES
from tests.fedcel.train_one import train_one

PLAIN = RoundPlan(0.3, 0.0, 0.0, 0.0, False, 0.0)
LOCAL = LocalSettings(steps=7, batch_size=5)


def streams(purpose: str) -> torch.Generator:
    """Return the generator of a fixed client and round."""
    return make_generator(3, purpose, 2, 1)


def flat_net(sigma: float = 0.1) -> FlatNet:
    net = Mlp(features=6, width=9, noise=sigma)
    return FlatNet(build_net(net, (1, 4, 4), 3, make_generator(0, "net")))


def data(examples: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random images and labels."""
    stream = make_generator(1, "data")
    return torch.rand(examples, 1, 4, 4, generator=stream), torch.arange(examples) % 3


def defend(defence: ClientLoss, weight: float) -> WeightedTerm:
    return WeightedTerm("defence", to_term(defence), weight)


def weigh_cel(loss: ClientLoss, rule: GradientRule) -> WeightedTerm:
    """Return a conditional entropy loss's term, of weight 0.7."""
    return WeightedTerm("cel", to_term(loss), 0.7, rule)


def play(
    flat: FlatNet | None = None, received: torch.Tensor | None = None, **more: Any
) -> ClientUpdate:
    """Return a client's round of a net on the fixed images; `more` changes the arguments."""
    flat = flat or flat_net()
    received = flat.vector.clone() if received is None else received
    given = {"plan": PLAIN, "local": LOCAL, "streams": streams} | more
    images = given.pop("images", None) or Images(*data())
    return train_one(flat, received, images, **given)


def test_without_noise_prior_and_loss_it_is_plain_sgd_to_the_bit() -> None:
    """A module, torch's own SGD and the same batches and cut noise give the same bits."""
    received = flat_net().vector.clone()
    delta = play().delta
    net = build_net(Mlp(features=6, width=9, noise=0.1), (1, 4, 4), 3, make_generator(0, "net"))
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
    assert torch.equal(delta, after - received)
    assert delta.abs().max() > 1e-3


@pytest.mark.parametrize("shape", ["feature", "image"])
def test_the_scale_of_the_noise_is_trained_with_the_encoder(shape: NoiseShape) -> None:
    """Torch's own SGD on the message z + sigma s xi gives the same, the statistics are whitened."""
    settings = Mlp(features=6, width=9, noise=0.5)
    flat, net = (
        build_net(settings, (1, 4, 4), 3, make_generator(0, "net"), noise_shape=shape)
        for _ in range(2)
    )
    for one in (flat, net):
        nn.init.normal_(one.noise_scale.bias, generator=make_generator(5, "scale"))
    x, y = data()
    update = play(FlatNet(flat), images=Images(x, y))
    optimiser = torch.optim.SGD(net.parameters(), lr=PLAIN.rate)
    batches = draw_batches(y, LOCAL, streams("batch"))
    xi = torch.randn(*batches.shape, 6, generator=streams("cut")) * 0.5
    for batch, noise in zip(batches, xi, strict=True):
        optimiser.zero_grad()
        z = net.encoder(x[batch])
        cross_entropy(net.head(z + noise * net.scale_noise(z)), y[batch]).backward()
        optimiser.step()
    after = torch.cat([p.detach().flatten() for p in net.parameters()])
    torch.testing.assert_close(update.model, after, rtol=0, atol=1e-6)
    moved = update.delta[FlatNet(flat).device_size - 6 : FlatNet(flat).device_size]
    assert moved.abs().max() > 1e-4
    ((features, _, _),) = FeatureReading(FlatNet(flat), [Images(x, y)]).read()
    z = flat.encode(x)
    torch.testing.assert_close(features, (z / flat.scale_noise(z)).detach())


def test_depends_on_its_arguments_alone() -> None:
    """A workspace that was used before, and global random state, change nothing."""
    received = flat_net().vector.clone()
    first = play(plan=PLAIN._replace(noise_variance=0.01**2)).delta
    torch.rand(3)
    used = flat_net()
    used.load(torch.ones_like(received))
    plan = PLAIN._replace(noise_variance=0.01**2)
    second = play(used, received, plan=plan).delta
    assert torch.equal(first, second)


def test_langevin_noise_has_the_planned_deviation() -> None:
    """With a vanishing rate the delta is the sum of `steps` noises; 40 clients, within 5 %."""
    plan = PLAIN._replace(rate=1e-12, noise_variance=0.02**2)
    deltas = [
        play(plan=plan, streams=lambda p, k=k: make_generator(3, p, 2, k)).delta for k in range(40)
    ]
    want = 0.02 * math.sqrt(LOCAL.steps)
    assert torch.cat(deltas).std().item() == pytest.approx(want, rel=0.05)


def test_priors_pull_towards_the_received_model_and_zero() -> None:
    """One step of decay is -eta decay w; a pull does nothing where the round starts."""
    received = flat_net().vector.clone()
    one_step, images = LocalSettings(steps=1, batch_size=5), Images(*data())
    base, decayed, pulled = (
        play(images=images, plan=plan, local=one_step).delta
        for plan in (PLAIN, PLAIN._replace(decay=0.5), PLAIN._replace(pull=0.5))
    )
    torch.testing.assert_close(decayed - base, -0.3 * 0.5 * received, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(pulled, base, atol=1e-6, rtol=1e-5)
    longer = play(plan=PLAIN._replace(pull=0.5)).delta
    assert longer.norm() < play().delta.norm()


def test_a_frozen_encoder_does_not_move_and_the_head_does() -> None:
    """The delta is exactly 0 on the encoder, with Langevin noise on."""
    flat = flat_net()
    delta = play(plan=PLAIN._replace(is_encoder_frozen=True, noise_variance=0.01)).delta
    assert not delta[: flat.device_size].any()
    assert delta[flat.device_size :].all()


@pytest.mark.parametrize("examples", [1, 2, 12])
def test_a_client_with_few_images_works(examples: int) -> None:
    """One image is a batch of one; the delta is finite."""
    result = play(images=Images(*data(examples)))
    assert result.delta.isfinite().all()
    assert result.delta.any()


def test_batches_are_epochs_in_a_row() -> None:
    """Every image is drawn once before any is drawn twice."""
    batches = draw_batches(
        torch.zeros(10, dtype=torch.long), LocalSettings(steps=4, batch_size=5), streams("batch")
    )
    assert sorted(batches[:2].flatten().tolist()) == list(range(10))
    assert sorted(batches[2:].flatten().tolist()) == list(range(10))


def uneven() -> torch.Tensor:
    """Return labels of 7, 2 and 12 members, in no order."""
    y = torch.tensor([0] * 7 + [4] * 2 + [2] * 12)
    return y[torch.randperm(21, generator=streams("labels"))]


def test_balanced_batches_have_every_class_equally_often() -> None:
    """Three places each; within a class everyone once before anyone again."""
    y = uneven()
    local = LocalSettings(steps=8, batch_size=11, balance=True)
    batches = draw_batches(y, local, streams("batch"))
    assert batches.shape == (8, 9)
    for label in (0, 2, 4):
        members = torch.eq(y, label).nonzero()[:, 0].tolist()
        drawn_ones = [i for batch in batches.tolist() for i in batch if y[i] == label]
        assert all((y[batch] == label).sum() == 3 for batch in batches)
        for start in range(0, len(drawn_ones) - len(members) + 1, len(members)):
            assert sorted(drawn_ones[start : start + len(members)]) == members
    assert torch.equal(batches, draw_batches(y, local, streams("batch")))


def test_balance_never_leaves_a_class_out() -> None:
    """More classes than places: two of each, which have a spread, in a batch larger than asked."""
    batches = draw_batches(
        uneven(), LocalSettings(steps=5, batch_size=2, balance=True), streams("batch")
    )
    assert batches.shape == (5, 6)
    for batch in batches:
        assert uneven()[batch].sort().values.tolist() == [0, 0, 2, 2, 4, 4]


@dataclass(frozen=True)
class Watching(ClientLoss):
    """A defence that keeps the images of each step, and adds nothing."""

    seen: list[torch.Tensor]

    def refresh(
        self, state: State | None, batches: FeatureBatches, generator: torch.Generator
    ) -> State:
        return {"rounds": torch.ones(()) if state is None else state["rounds"] + 1}

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        """Keep x and return 0."""
        self.seen.append(batch.x.clone())
        return Term(0 * batch.z.sum(), {"watched": batch.x.mean()} if measure else {})


def watched(local: LocalSettings, y: torch.Tensor | None = None) -> list[torch.Tensor]:
    """Return the images that each step of a round sees."""
    watching, (x, own) = Watching([]), data()
    terms = [defend(watching, 1.0)]
    y = own if y is None else y
    play(images=Images(x, y), local=local, terms=terms)
    return watching.seen


def test_augmentation_is_repeatable_and_knows_no_labels() -> None:
    """The same bits twice and under other labels, and anew for every epoch."""
    local = LocalSettings(steps=6, batch_size=6, augment="affine")
    first, second = watched(local), watched(local, torch.zeros(12, dtype=torch.long))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    x, y = data()
    batches = draw_batches(y, local, streams("batch"))
    epochs = [torch.cat(first[i : i + 2]) for i in (0, 2, 4)]
    again = [torch.cat([*own]) for own in (batches[:2], batches[2:4], batches[4:])]
    one = [seen[torch.argsort(own)] for seen, own in zip(epochs, again, strict=True)]
    assert not any(torch.isclose(a, b).flatten(1).all(1).any() for a, b in [one[:2], one[1:]])
    assert not torch.isclose(one[0], x).flatten(1).all(1).any()


def test_without_augmentation_images_are_those_given() -> None:
    """To the bit, in the order of the batches."""
    local = LocalSettings(steps=4, batch_size=5)
    x, y = data()
    batches = draw_batches(y, local, streams("batch"))
    assert all(torch.equal(a, x[b]) for a, b in zip(watched(local), batches, strict=True))


def test_gathering_in_pieces_gives_each_step_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many steps are gathered at once."""
    local = LocalSettings(steps=7, batch_size=5)
    at_once = watched(local)
    monkeypatch.setattr(local_steps, "_VALUES_AT_ONCE", 2 * 5 * 16)
    assert all(torch.equal(a, b) for a, b in zip(watched(local), at_once, strict=True))


def test_metrics_are_of_the_last_step() -> None:
    """Measured once a round."""
    x, y = data()
    terms = [defend(Watching([]), 1.0)]
    result = play(terms=terms)
    last = x[draw_batches(y, LOCAL, streams("batch"))[-1]]
    assert result.metrics["watched"] == pytest.approx(last.mean().item())


def test_losses_move_the_encoder_and_an_idle_state_is_kept() -> None:
    """Two rounds with the adversary, one without: the decoder waits, to the bit."""
    acting = [defend(bind_rival(Adversarial(), features=6), 3.0)]
    first = play(terms=acting)
    again = play(terms=acting, state=first.state)
    assert not torch.equal(first.delta, play().delta)
    assert int(again.state["defence.t"]) == 2 * LOCAL.steps
    assert not torch.equal(again.state["defence.theta"], first.state["defence.theta"])
    idle = play(plan=PLAIN._replace(is_encoder_frozen=True), terms=(), state=again.state)
    assert idle.state.keys() == again.state.keys()
    assert all(idle.state[name] is again.state[name] for name in again.state)


def train_by(terms: Sequence[WeightedTerm], dtype: torch.dtype = torch.float64) -> ClientUpdate:
    """Return a round of a net in double precision under these terms."""
    net = Mlp(features=6, width=9, noise=0.1)
    flat = FlatNet(build_net(net, (1, 4, 4), 3, make_generator(0, "net")).to(dtype))
    x, y = data()
    return play(flat, images=Images(x.to(dtype), y), terms=terms)


@pytest.mark.parametrize("clip", [None, 0.01])
@pytest.mark.parametrize("attention", ["ascend", "minimise"])
def test_two_backward_passes_are_one(attention: Attention, clip: float | None) -> None:
    """In float64 to 1e-12: the model and the attention, beside a defence."""
    cel = single(Gated(penalty="linear", attention=attention), 3, 6)
    defence = defend(bind_rival(NoPeek()), 0.2)
    first, second = (
        train_by([weigh_cel(cel, GradientRule(clip, momentum)), defence])
        for momentum in (None, 0.0)
    )
    assert first.delta.dtype == torch.float64
    torch.testing.assert_close(second.model, first.model, rtol=0, atol=1e-12)
    assert not torch.equal(first.model, train_by([defence]).model)
    for name, tensor in first.state.items():
        torch.testing.assert_close(second.state[name], tensor, rtol=0, atol=1e-12)
    assert second.metrics == pytest.approx(first.metrics, abs=1e-12)


class Alternating(ClientLoss):
    """Pulls the first feature up in batches of an odd sum of labels, else it has no gradient."""

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        value = -batch.z[:, 0].mean()
        return Term(value if int(batch.y.sum()) % 2 else value.detach(), {})


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_the_encoder_follows_the_mean_of_the_losses_gradient(momentum: float) -> None:
    """Autograd by hand: the mean starts with the first step; the head has its own gradient."""
    update = train_by([weigh_cel(Alternating(), GradientRule(momentum=momentum))])
    settings = Mlp(features=6, width=9, noise=0.1)
    net = build_net(settings, (1, 4, 4), 3, make_generator(0, "net")).double()
    x, y = data()
    batches = draw_batches(y, LOCAL, streams("batch"))
    assert len({int(y[batch].sum()) % 2 for batch in batches}) == 2
    xi = torch.randn(*batches.shape, 6, generator=streams("cut")) * 0.1
    encoder, mean = list(net.encoder.parameters()), None
    for batch, noise in zip(batches, xi, strict=True):
        z = net.encoder(x[batch].double())
        loss = cross_entropy(net.head(z + noise), y[batch])
        pull = -0.7 * z[:, 0].mean() * (int(y[batch].sum()) % 2)
        gradients = torch.autograd.grad(pull, encoder, retain_graph=True)
        mean = [
            g if m is None else momentum * m + (1 - momentum) * g
            for g, m in zip(gradients, mean or [None] * len(gradients), strict=True)
        ]
        every = [*encoder, *net.head.parameters()]
        slopes = torch.autograd.grad(loss, every)
        with torch.no_grad():
            for parameter, slope in zip(every, slopes, strict=True):
                parameter.sub_(PLAIN.rate * slope)
            for parameter, slope in zip(encoder, mean, strict=True):
                parameter.sub_(PLAIN.rate * slope)
    expected = torch.cat([p.detach().flatten() for p in net.parameters()])
    torch.testing.assert_close(update.model, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("state", STATES)
def test_a_round_does_not_depend_on_the_state_of_pytorch(
    state: Callable[[], AbstractContextManager[object]],
) -> None:
    """Whatever a caller switched off: the same bits."""
    images = Images(*data())
    usual = play(images=images)
    flat = flat_net()
    with state():
        assert torch.equal(play(flat, images=images).delta, usual.delta)
