"""Two parts as one: names, weights, the clip, one backward pass."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedcel.losses import composite
from fedcel.losses.cel.gated import Gated
from fedcel.losses.cel.plain import Plain
from fedcel.losses.protocol import ConditionalEntropy, FeatureBatches, State, split_features
from fedcel.losses.cel.spread_penalties import linear_penalty
from fedcel.losses.composite import NO_LOSSES, Batch, Losses
from fedcel.losses.defences import Adversarial, InformationBottleneck, LearnedNoise, NoPeek

PLAIN = Plain(linear_penalty, "batch-share", 3)
GATED = Gated(
    linear_penalty, "batch-share", 3, 4, attention="ascend", floor=0.5, hidden=5, rate=0.1
)
ADVERSARY = Adversarial((1, 4, 4), 4, 5, 0.01)


def streams(purpose: str) -> torch.Generator:
    """Return a generator of each purpose."""
    return torch.Generator().manual_seed(sum(map(ord, purpose)))


def batch(seed: int = 1, count: int = 9) -> Batch:
    """Return a batch whose z is a leaf and whose message is z and noise."""
    stream = torch.Generator().manual_seed(seed)
    x, z = torch.rand(count, 1, 4, 4, generator=stream), torch.randn(count, 4, generator=stream)
    z.requires_grad_()
    return Batch(x, z, z + 0.1 * torch.randn(count, 4, generator=stream), torch.arange(count) % 3)


def make_batches() -> FeatureBatches:
    """Return the features of a client."""
    return split_features(batch(2, 24).z.detach(), torch.arange(24) % 3)


def slope(losses: Losses, state: State, own: Batch) -> Tensor:
    """Return the gradient at z of what is added, that at theta left in place."""
    own.z.grad = None
    torch.autograd.backward(composite.add_losses(losses, state, own, measure=False).loss)
    assert own.z.grad is not None
    return own.z.grad


def test_nothing_acts() -> None:
    """No state, no loss."""
    assert not NO_LOSSES.acts
    assert composite.start_losses(NO_LOSSES, None, make_batches(), streams) == {}
    losses = composite.add_losses(NO_LOSSES, {}, batch(), measure=True)
    assert (losses.loss.item(), losses.metrics) == (0.0, {})
    assert composite.step_losses(NO_LOSSES, {}, batch()) == {}


def test_parts_share_a_state_by_prefix() -> None:
    """Both have a theta of their own; joining and parting loses nothing."""
    both = Losses(GATED, 0.5, ADVERSARY, 2.0)
    state = composite.start_losses(both, None, make_batches(), streams)
    cel, defence = composite.select_state(state, "cel."), composite.select_state(state, "defence.")
    assert cel is not None and defence is not None
    assert {f"cel.{n}" for n in cel} | {f"defence.{n}" for n in defence} == state.keys()
    assert all(composite.join_states(cel, defence)[name] is state[name] for name in state)
    assert composite.select_state(state, "other.") is None
    assert composite.select_state(None, "cel.") is None


def test_weighted_sum() -> None:
    """Value, gradient and metrics are those of the parts."""
    own, both = batch(), Losses(PLAIN, 0.5, NoPeek(), 2.0)
    state = composite.start_losses(both, None, make_batches(), streams)
    term = composite.add_losses(both, state, own, measure=True)
    cel = PLAIN.loss({}, own.z, own.y)
    defence = NoPeek().loss({}, own.x, own.z, own.smashed)
    want = 0.5 * cel.loss + 2.0 * defence.loss
    torch.testing.assert_close(term.loss, want)
    assert term.metrics.keys() == cel.metrics.keys() | defence.metrics.keys()
    for one, two in zip(
        torch.autograd.grad(term.loss, own.z, retain_graph=True),
        torch.autograd.grad(want, own.z),
        strict=True,
    ):
        torch.testing.assert_close(one, two)
    assert not composite.add_losses(both, state, own, measure=False).metrics


@pytest.mark.parametrize("cel", [PLAIN, GATED])
def test_a_loose_clip_changes_nothing(cel: ConditionalEntropy) -> None:
    """A bound of 1e9: value to the bit, gradients at z and at theta 1e-6 apart."""
    free, bound = Losses(cel, 0.5), Losses(cel, 0.5, clip=1e9)
    state = composite.start_losses(free, None, make_batches(), streams)
    slopes, thetas = [], []
    for losses in (free, bound):
        own = composite.start_losses(losses, state, make_batches(), streams)
        slopes.append(slope(losses, own, batch()).clone())
        thetas.append([t.grad for t in own.values() if t.requires_grad])
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(thetas[1], thetas[0], rtol=1e-6, atol=0)
    values = [composite.add_losses(f, state, batch(), measure=False).loss for f in (free, bound)]
    assert torch.equal(values[0], values[1])


def test_clip_bounds_each_row_and_keeps_its_direction() -> None:
    """Shorter rows pass; theta's gradient and the value are those without; the rest is not cut."""
    start = composite.start_losses(Losses(GATED, 1.0), None, make_batches(), streams)
    free, bound = Losses(GATED, 1.0), Losses(GATED, 1.0, clip=0.2)
    one, two = (composite.start_losses(free, start, make_batches(), streams) for _ in range(2))
    whole, cut = slope(free, one, batch()), slope(bound, two, batch())
    norms, short = whole.norm(dim=1), cut.norm(dim=1)
    assert norms.min() < 0.2 < norms.max()
    torch.testing.assert_close(short, norms.clamp_max(0.2))
    torch.testing.assert_close(cut / short[:, None], whole / norms[:, None])
    torch.testing.assert_close(one["cel.theta"].grad, two["cel.theta"].grad)
    added = [composite.add_losses(f, start, batch(), measure=False).loss for f in (free, bound)]
    assert torch.equal(added[0], added[1])
    both = bound._replace(defence=NoPeek(), defence_weight=3.0)
    alone = slope(Losses(defence=NoPeek(), defence_weight=3.0), {}, batch())
    torch.testing.assert_close(slope(both, start, batch()) - alone, cut)


def test_clip_is_of_the_weighted_loss() -> None:
    """A weight so small that no row reaches the bound leaves all as they are."""
    free, bound = Losses(PLAIN, 1e-3), Losses(PLAIN, 1e-3, clip=0.2)
    torch.testing.assert_close(slope(bound, {}, batch()), slope(free, {}, batch()))


def test_clip_without_a_signal() -> None:
    """No class with 2 members: exactly 0, and a gradient of 0 wherever there is one."""
    own = Batch(*(part[:3] for part in batch()[:4]))
    term = composite.add_losses(Losses(PLAIN, 1.0, clip=0.1), {}, own, measure=True)
    torch.autograd.backward(term.loss + 0 * own.z.sum())
    assert term.loss == 0


def test_one_backward_moves_both_parts() -> None:
    """The cross-entropy's gradient adds up with the parts'; both thetas step, once."""
    both, own = Losses(GATED, 0.5, ADVERSARY, 2.0), batch()
    state = composite.start_losses(both, None, make_batches(), streams)
    added = composite.add_losses(both, state, own, measure=False)
    (alone,) = torch.autograd.grad(added.loss, own.z, retain_graph=True)
    state["cel.theta"].grad = state["defence.theta"].grad = None
    head = torch.randn(4, 3, generator=torch.Generator().manual_seed(4))
    loss = cross_entropy(own.smashed @ head, own.y)
    (base,) = torch.autograd.grad(loss, own.z, retain_graph=True)
    torch.autograd.backward(loss + added.loss)
    torch.testing.assert_close(own.z.grad, alone + base)
    after = composite.step_losses(both, state, own)
    assert after.keys() == state.keys()
    for name in ("cel.theta", "defence.theta"):
        assert not torch.equal(after[name], state[name])
        assert after[name].grad is None
    assert after["cel.t"] == after["defence.t"] == 1


def test_a_part_that_does_not_act_keeps_its_state() -> None:
    """Through start, refresh and step, the very same tensors."""
    both = Losses(GATED, 0.5, ADVERSARY, 2.0)
    state = composite.start_losses(both, None, make_batches(), streams)
    for idle, prefix in ((both._replace(cel=None), "cel."), (both._replace(defence=None), "def")):
        later = composite.start_losses(idle, state, make_batches(), streams)
        later = composite.refresh_losses(idle, later, make_batches(), streams, step=7)
        torch.autograd.backward(composite.add_losses(idle, later, batch(), measure=False).loss)
        later = composite.step_losses(idle, later, batch())
        for name in state:
            assert (later[name] is state[name]) == name.startswith(prefix), name


@dataclass(frozen=True)
class Counting:
    """A loss whose state is the number that its generator draws, and how often it was."""

    def refresh(
        self, state: State | None, batches: FeatureBatches, generator: torch.Generator
    ) -> State:
        """Return a fresh draw and one more call."""
        calls = torch.zeros(()) if state is None else state["calls"]
        return {"draw": torch.rand((), generator=generator), "calls": calls + 1}

    loss = PLAIN.loss
    step = PLAIN.step


def test_each_refresh_draws_anew() -> None:
    """The step's number names the stream; the state of the last one is handed on."""
    losses = Losses(Counting(), 1.0)
    first = composite.start_losses(losses, None, make_batches(), streams)
    second = composite.refresh_losses(losses, first, make_batches(), streams, step=5)
    other = composite.refresh_losses(losses, first, make_batches(), streams, step=6)
    assert len({float(s["cel.draw"]) for s in (first, second, other)}) == 3
    assert second["cel.calls"] == 2


def test_a_loss_sees_features_in_units_of_their_noise() -> None:
    """A rival of the law sees features and scales themselves; both reach the scale."""
    plain = batch()
    scale = (torch.rand(9, 4, generator=torch.Generator().manual_seed(3)) + 0.5).requires_grad_()
    scaled = plain._replace(noise_scale=scale)
    spread = composite.add_losses(Losses(PLAIN, 2.0), {}, scaled, measure=False).loss
    expected = 2.0 * PLAIN.loss({}, plain.z / scale, plain.y).loss
    torch.testing.assert_close(spread, expected)
    slopes = torch.autograd.grad(spread, [plain.z, scale])
    for slope_of_mine, slope_expected in zip(
        slopes, torch.autograd.grad(expected, [plain.z, scale]), strict=True
    ):
        torch.testing.assert_close(slope_of_mine, slope_expected)
    rival = Losses(defence=LearnedNoise(), defence_weight=0.5)
    reward = composite.add_losses(rival, {}, scaled, measure=False).loss
    torch.testing.assert_close(reward, -0.5 * scale.log().sum(1).mean())
    bottleneck = InformationBottleneck(4, 3, 0.1, 0.0, 1.0, 0.01)
    state = bottleneck.refresh(None, torch.Generator())
    both = Losses(defence=bottleneck, defence_weight=1.0)
    for mine, factor in ((scaled, scale), (plain, torch.ones(9, 4))):
        bound = composite.add_losses(
            both, composite.join_states(None, state), mine, measure=False
        ).loss
        theirs = bottleneck.law_loss(state, plain.z, factor, y=plain.y).loss
        torch.testing.assert_close(bound, theirs)


def test_a_clip_holds_at_features_in_units_of_their_noise() -> None:
    """The scale gets its part of the clipped gradient."""
    plain = batch()
    scale = torch.full((9, 4), 2.0, requires_grad=True)
    losses = Losses(PLAIN, 50.0, clip=0.01)
    scaled = plain._replace(noise_scale=scale)
    torch.autograd.backward(composite.add_losses(losses, {}, scaled, measure=False).loss)
    assert plain.z.grad is not None
    assert scale.grad is not None
    torch.testing.assert_close(plain.z.grad.norm(dim=1), torch.full((9,), 0.005))
    torch.testing.assert_close(scale.grad, -plain.z.grad * plain.z.detach() / 2)
