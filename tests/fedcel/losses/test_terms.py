"""Terms beside the potential: names, weights, the clip, passes of their own, one client and K."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcel.federation.local_steps import StepState, client_step
from fedcel.losses import (
    Batch,
    ClientLoss,
    GradientRule,
    States,
    WeightedTerm,
    join_states,
    part_states,
    refresh_terms,
    refuse_undefined_terms,
    select_state,
)
from fedcel.losses.cel import Gated, Plain
from fedcel.losses.defences import CEB, Adversarial, LearnedNoise, NoPeek
from fedcel.losses.protocol import FeatureBatches, FeatureReader, StackedFeatures, State, Term
from fedcel.losses.terms import JOINT
from fedcel.nets import Cut, FlatNet, SplitNet
from fedcel.posterior import LangevinContext, RoundPlan, StepNoise, build_sampler
from fedcel.settings import LocalSettings
from tests.fedcel.losses.single import bind_rival, single, to_term

PLAIN = single(Plain(penalty="linear"), 3)
GATED = single(Gated(penalty="linear"))
ADVERSARY = bind_rival(Adversarial())


def streams(purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(sum(map(ord, purpose)))


def plain_steps(nets: FlatNet, terms: Sequence[WeightedTerm], rate: float = 1.0) -> LangevinContext:
    """Return steps along the gradient alone, without noise or prior, of all parameters."""
    return LangevinContext(
        plan=RoundPlan(rate, 0.0, 0.0, 0.0, False, 0.0, terms=tuple(terms)),
        moving=slice(None),
        received=nets.vector.clone(),
        noise=StepNoise(
            [0.0] * nets.count,
            [torch.Generator() for _ in range(nets.count)],
            torch.empty_like(nets.vector),
        ),
        sampler=build_sampler(LocalSettings()),
    )


def batch(seed: int = 1, count: int = 9, clients: int = 1) -> Batch:
    """Return a batch whose z is a leaf and whose message is z and noise."""
    stream = torch.Generator().manual_seed(seed)
    x = torch.rand(clients, count, 1, 4, 4, generator=stream)
    z = torch.randn(clients, count, 4, generator=stream).requires_grad_()
    smashed = z + 0.1 * torch.randn(clients, count, 4, generator=stream)
    return Batch(x, z, smashed, (torch.arange(count) % 3).expand(clients, -1))


def make_reader(clients: int = 1) -> FeatureReader:
    """Return what reads the features of clients, in two pieces."""
    z, y = batch(2, 24, clients).z.detach(), torch.arange(24) % 3

    def read(*_: object) -> Iterator[StackedFeatures]:
        for part, labels in zip(torch.split(z, 16, 1), torch.split(y, 16), strict=True):
            size = len(labels)
            client = torch.arange(clients).repeat_interleave(size)
            yield StackedFeatures(part.flatten(0, 1), labels.repeat(clients), client)

    return read


def of_cel(loss: ClientLoss, weight: float = 1.0, rule: GradientRule = JOINT) -> WeightedTerm:
    return WeightedTerm("cel", to_term(loss), weight, rule)


def of_defence(loss: Any, weight: float = 1.0, rule: GradientRule = JOINT) -> WeightedTerm:
    return WeightedTerm("defence", to_term(loss), weight, rule)


BOTH = [of_cel(GATED, 0.5), of_defence(ADVERSARY, 2.0)]


def start(terms: Sequence[WeightedTerm], stored: State | None = None) -> States:
    """Return the states that one client's round begins with."""
    return refresh_terms(terms, join_states(terms, [stored]), make_reader(), [streams])


def store(terms: Sequence[WeightedTerm], states: States, stored: State | None = None) -> State:
    (kept,) = part_states(terms, states, [stored])
    return kept


def add(terms: Sequence[WeightedTerm], states: States, own: Batch, measure: bool = False) -> Term:
    """Return the sum of the terms, as a step adds them, and all metrics."""
    values = [weighted.loss(states[weighted.name], own, measure) for weighted in terms]
    metrics = {name: number for value in values for name, number in value.metrics.items()}
    return Term(torch.stack([value.loss for value in values]).sum(0), metrics)


def slope(terms: Sequence[WeightedTerm], states: States, own: Batch) -> Tensor:
    """Return the gradient at z of what is added, that at theta left in place."""
    own.z.grad = None
    torch.autograd.backward(add(terms, states, own).loss.sum())
    assert own.z.grad is not None
    return own.z.grad


def test_parts_share_a_state_by_prefix() -> None:
    """Both have a theta of their own; joining and parting loses nothing."""
    states = start(BOTH)
    state = store(BOTH, states)
    cel, defence = select_state(state, "cel"), select_state(state, "defence")
    assert cel is not None and defence is not None
    assert {f"cel.{n}" for n in cel} | {f"defence.{n}" for n in defence} == state.keys()
    for name, part in states.items():
        assert part.keys() == (select_state(state, name) or {}).keys()
        assert all(torch.equal(part[own][0], state[f"{name}.{own}"]) for own in part)
    assert all(cel[name] is state[f"cel.{name}"] for name in cel)
    again = start(BOTH, state)
    assert all(
        torch.equal(tensor, again[term][name])
        for term, part in states.items()
        for name, tensor in part.items()
    )
    assert select_state(state, "other") is None
    assert select_state(None, "cel") is None


def test_a_stored_tensor_that_a_term_lacks_now_is_dropped() -> None:
    """Of a term that acts nothing old stays beside the new; of others all does."""
    stored = {"cel.old": torch.ones(1), "celery": torch.ones(2), "defence.m": torch.ones(3)}
    kept = store([of_cel(PLAIN)], {"cel": {}}, stored)
    assert kept.keys() == {"celery", "defence.m"}
    assert stored.keys() == {"cel.old", "celery", "defence.m"}


def test_weighted_sum() -> None:
    """Value, gradient and metrics are those of the parts."""
    own, both = batch(), [of_cel(PLAIN, 0.5), of_defence(bind_rival(NoPeek()), 2.0)]
    states = start(both)
    term = add(both, states, own, measure=True)
    cel, defence = PLAIN.term.loss({}, own, True), NoPeek().loss({}, own, True)
    want = 0.5 * cel.loss + 2.0 * defence.loss
    torch.testing.assert_close(term.loss, want)
    assert term.metrics.keys() == cel.metrics.keys() | defence.metrics.keys()
    for one, two in zip(
        torch.autograd.grad(term.loss.sum(), own.z, retain_graph=True),
        torch.autograd.grad(want.sum(), own.z),
        strict=True,
    ):
        torch.testing.assert_close(one, two)
    assert not add(both, states, own).metrics


@pytest.mark.parametrize("cel", [PLAIN, GATED])
def test_a_loose_clip_changes_nothing(cel: ClientLoss) -> None:
    """A bound of 1e9: value to the bit, gradients at z and at theta 1e-6 apart."""
    free, bound = [of_cel(cel, 0.5)], [of_cel(cel, 0.5, GradientRule(1e9))]
    states = start(free)
    slopes, thetas = [], []
    for terms in (free, bound):
        own = start(terms, store(free, states))
        slopes.append(slope(terms, own, batch()).clone())
        thetas.append([t.grad for t in own["cel"].values() if t.requires_grad])
    assert len(thetas[0]) == (cel is GATED)
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(thetas[1], thetas[0], rtol=1e-6, atol=0)
    values = [add(terms, states, batch()).loss for terms in (free, bound)]
    assert torch.equal(values[0], values[1])


def test_clip_bounds_each_row_and_keeps_its_direction() -> None:
    """Shorter rows pass; theta's gradient and the value are those without; the rest is not cut."""
    free, bound = [of_cel(GATED)], [of_cel(GATED, 1.0, GradientRule(0.2))]
    begin = start(free)
    one, two = (start(free, store(free, begin)) for _ in range(2))
    whole, cut = slope(free, one, batch()), slope(bound, two, batch())
    norms, short = whole.norm(dim=-1), cut.norm(dim=-1)
    assert norms.min() < 0.2 < norms.max()
    torch.testing.assert_close(short, norms.clamp_max(0.2))
    torch.testing.assert_close(cut / short[..., None], whole / norms[..., None])
    assert one["cel"]["theta"].grad is not None
    torch.testing.assert_close(one["cel"]["theta"].grad, two["cel"]["theta"].grad)
    added = [add(terms, begin, batch()).loss for terms in (free, bound)]
    assert torch.equal(added[0], added[1])
    rival = of_defence(bind_rival(NoPeek()), 3.0)
    alone = slope([rival], {"defence": {}}, batch())
    torch.testing.assert_close(
        slope([*bound, rival], begin | {"defence": {}}, batch()) - alone, cut
    )


class Constant(ClientLoss):
    """A loss of batches that carry no signal."""

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        """Return 2, without a gradient."""
        return Term(torch.tensor(2.0), {})


def test_a_constant_loss_has_no_gradient_to_bound() -> None:
    """It is added as it is, and is not to blame for a model that is not finite."""
    terms = [of_cel(Constant(), 0.5, GradientRule(0.2))]
    added = add(terms, {"cel": {}}, batch())
    assert added.loss.sum() == 1.0 and not added.loss.requires_grad
    refuse_undefined_terms(terms, {"cel": {}}, batch())


def test_the_tasks_gradient_bounds_each_clients_batch() -> None:
    """The longer one is scaled to the task's norm, the shorter one passes; directions stay."""
    rows = batch(clients=2)
    task = torch.full_like(rows.z.detach(), 1e-3)
    task[1] *= 1e6
    whole = slope([of_cel(PLAIN)], {"cel": {}}, rows).clone()
    held = GradientRule("task")
    loss = of_cel(PLAIN, 1.0, held).loss({}, rows, False, task).loss
    (bounded,) = torch.autograd.grad(loss.sum(), rows.z)
    torch.testing.assert_close(bounded[0].norm(), task[0].norm())
    torch.testing.assert_close(bounded[0] / bounded[0].norm(), whole[0] / whole[0].norm())
    torch.testing.assert_close(bounded[1], whole[1])


def test_a_step_holds_a_loss_to_the_tasks_gradient() -> None:
    """At the encoder's output it is at most twice what the potential itself gives there."""
    lengths = []
    for terms in ([], [of_cel(PLAIN, 1e6, GradientRule("task"))], [of_cel(PLAIN, 1e6)]):
        torch.manual_seed(0)
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(16, 4))
        nets = FlatNet(SplitNet(encoder, nn.Linear(4, 3), Cut(0.1), 4))
        x = batch().x
        z = nets.encode(x)
        slopes: list[Tensor] = []
        z.register_hook(slopes.append)
        state = StepState({"cel": {}}, {}, {})
        client_step(nets, state, Batch(x, z, z, batch().y), plain_steps(nets, terms))
        lengths.append(float(slopes[-1].norm()))  # of the step; one before it is the task's
    task, held, free = lengths
    assert held <= 2 * task * (1 + 1e-5) and free > 100 * task


def test_clip_without_a_signal() -> None:
    """No class with 2 members: exactly 0, and a gradient of 0 wherever there is one."""
    own = Batch(*(part[:, :3] for part in batch()[:4]))
    term = add([of_cel(PLAIN, 1.0, GradientRule(0.1))], {"cel": {}}, own, measure=True)
    torch.autograd.backward(term.loss.sum() + 0 * own.z.sum())
    assert term.loss == 0


def test_a_part_that_does_not_act_keeps_its_state() -> None:
    """Through start, refresh and step, the very same tensors."""
    state = store(BOTH, start(BOTH))
    for acting, prefix in ((BOTH[1:], "cel."), (BOTH[:1], "defence.")):
        later = start(acting, state)
        for weighted in acting:
            name = weighted.name
            later[name] = weighted.refresh(later[name], make_reader(), [streams], 7)
        torch.autograd.backward(add(acting, later, batch()).loss.sum())
        later = {w.name: w.term.update(later[w.name]) for w in acting}
        kept = store(acting, later, state)
        assert kept.keys() == state.keys()
        for name in state:
            assert (kept[name] is state[name]) == name.startswith(prefix), name


class Counting(ClientLoss):
    """A loss whose state is the number that its generator draws, and how often it was."""

    def refresh(
        self, state: State | None, batches: FeatureBatches, generator: torch.Generator
    ) -> State:
        """Return a fresh draw and one more call."""
        calls = torch.zeros(()) if state is None else state["calls"]
        return {"draw": torch.rand((), generator=generator), "calls": calls + 1}


def test_each_refresh_draws_anew() -> None:
    """The step's number names the stream; the state of the last one is handed on."""
    counting = of_cel(Counting())
    first = start([counting])["cel"]
    second, other = (counting.refresh(first, make_reader(), [streams], step) for step in (5, 6))
    assert len({float(s["draw"]) for s in (first, second, other)}) == 3
    assert second["calls"] == 2
    expected = {0: first, 5: second, 6: other}
    for step, state in expected.items():
        assert state["draw"] == torch.rand((), generator=streams(f"refresh-{step}"))


def test_a_loss_sees_features_in_units_of_their_noise() -> None:
    """A rival of the law sees features and scales themselves; both reach the scale."""
    plain = batch()
    stream = torch.Generator().manual_seed(3)
    scale = (torch.rand(1, 9, 4, generator=stream) + 0.5).requires_grad_()
    scaled = plain._replace(noise_scale=scale)
    spread = add([of_cel(PLAIN, 2.0)], {"cel": {}}, scaled).loss
    expected = 2.0 * PLAIN.term.loss({}, plain._replace(z=plain.z / scale), False).loss
    torch.testing.assert_close(spread, expected)
    slopes = torch.autograd.grad(spread.sum(), [plain.z, scale])
    for slope_of_mine, slope_expected in zip(
        slopes, torch.autograd.grad(expected.sum(), [plain.z, scale]), strict=True
    ):
        torch.testing.assert_close(slope_of_mine, slope_expected)
    reward = add([of_defence(bind_rival(LearnedNoise()), 0.5)], {"defence": {}}, scaled).loss
    torch.testing.assert_close(reward, -0.5 * scale.log().sum(-1).mean(-1))
    bottleneck = bind_rival(CEB(), sigma=0.1)
    state = bottleneck.refresh(None, torch.Generator())
    rival = of_defence(bottleneck)
    for mine, factor in ((scaled, scale), (plain, torch.ones(1, 9, 4))):
        bound = add([rival], start([rival], {f"defence.{n}": t for n, t in state.items()}), mine)
        theirs = bottleneck.law_loss(state, plain.z[0], factor[0], y=plain.y[0]).loss
        torch.testing.assert_close(bound.loss, theirs.unsqueeze(0))


def test_a_clip_holds_at_features_in_units_of_their_noise() -> None:
    """The scale gets its part of the clipped gradient."""
    plain = batch()
    scale = torch.full((1, 9, 4), 2.0, requires_grad=True)
    scaled = plain._replace(noise_scale=scale)
    terms = [of_cel(PLAIN, 50.0, GradientRule(0.01))]
    torch.autograd.backward(add(terms, {"cel": {}}, scaled).loss.sum())
    assert plain.z.grad is not None
    assert scale.grad is not None
    torch.testing.assert_close(plain.z.grad.norm(dim=-1), torch.full((1, 9), 0.005))
    torch.testing.assert_close(scale.grad, -plain.z.grad * plain.z.detach() / 2)


@dataclass(frozen=True)
class Watching(ClientLoss):
    """A loss that notes the shapes that it is shown."""

    seen: list[object] = field(default_factory=list)

    def refresh(
        self, state: State | None, batches: FeatureBatches, generator: torch.Generator
    ) -> State:
        """Note the features, and return a weight that learns."""
        self.seen.extend((tuple(z.shape), len(y)) for z, y in batches())
        weight = torch.ones(4) if state is None else state["weight"].detach() + 1
        return {"weight": weight.clone().requires_grad_()}

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        """Note what is there; the value is a weighted mean of the features."""
        self.seen.append((*(tuple(part.shape) for part in batch[:4]), measure))
        value = (batch.z * state["weight"]).mean()
        return Term(value, {"mean": value.detach()} if measure else {})

    def update(self, state: State) -> State:
        """Take a step of gradient descent."""
        assert state["weight"].grad is not None
        moved = state["weight"].detach() - state["weight"].grad
        return {"weight": moved.requires_grad_()}


@pytest.mark.parametrize("make", [of_cel, of_defence])
def test_a_loss_of_one_client_sees_no_row_of_clients(make: Callable[..., WeightedTerm]) -> None:
    """Features, labels, images and states are the client's own; value and metrics get the row."""
    own, watching = batch(), Watching()
    weighted = make(watching, 0.5)
    stored = {f"{weighted.name}.weight": torch.ones(4), "other": torch.ones(1)}
    states = start([weighted], stored)
    assert torch.equal(states[weighted.name]["weight"], torch.full((1, 4), 2.0))
    term = add([weighted], states, own, measure=True)
    torch.testing.assert_close(term.loss, own.z.mean().detach().reshape(1) * 2 * 0.5)
    torch.testing.assert_close(term.metrics, {"mean": own.z.mean().detach().reshape(1) * 2})
    torch.autograd.backward(term.loss.sum())
    torch.testing.assert_close(own.z.grad, torch.full((1, 9, 4), 2 * 0.5 / 36))
    after = weighted.term.update(states[weighted.name])
    kept = store([weighted], {weighted.name: after}, stored)
    assert kept.keys() == stored.keys()
    expected = 2 - 0.5 * own.z.detach().sum((0, 1)) / 36
    torch.testing.assert_close(kept[f"{weighted.name}.weight"].detach(), expected)
    assert add([weighted], states, own).metrics == {}
    shown = (9, 1, 4, 4), (9, 4), (9, 4), (9,)
    assert watching.seen == [((16, 4), 16), ((8, 4), 8), (*shown, True), (*shown, False)]


RULES = {
    "joint": (JOINT, JOINT),
    "own passes": (GradientRule(momentum=0.0), GradientRule(momentum=0.0)),
    "means": (GradientRule(momentum=0.5), GradientRule(momentum=0.9)),
    "a mean and none": (GradientRule(momentum=0.7), GradientRule(momentum=0.0)),
    "none and a mean": (GradientRule(momentum=0.0), GradientRule(momentum=0.7)),
    "a mean and joint": (GradientRule(momentum=0.7), JOINT),
    "joint and a mean": (JOINT, GradientRule(momentum=0.7)),
}
"""How the gradients of two terms reach the parameters."""


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", RULES)
def test_rules_of_two_terms_by_hand(name: str, count: int) -> None:
    """Three steps: each term's running mean, from its first gradient, at the encoder alone."""
    rules = RULES[name]
    terms = [of_cel(PLAIN, 0.5, rules[0]), of_defence(bind_rival(NoPeek()), 2.0, rules[1])]
    net = SplitNet(
        nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Tanh()), nn.Linear(4, 3), Cut(0.0), 4
    ).double()
    nets = FlatNet(net, 2) if count == 2 else FlatNet(net)
    nets.load(torch.randn(*nets.vectors.shape, generator=streams("vectors")).double() / 2)
    context = plain_steps(nets, terms, rate=0.3)
    draws = [batch(seed, clients=count) for seed in range(3)]
    vectors = nets.vectors.clone()
    state = StepState({"cel": {}, "defence": {}}, {}, {})
    for own in draws:
        z = nets.encode(own.x.double())
        state, _ = client_step(nets, state, Batch(own.x.double(), z, z, own.y), context)
    for k, vector in enumerate(vectors):
        expected = step_by_hand(net, vector, k, draws, terms, nets.device_size)
        torch.testing.assert_close(nets.vectors[k], expected)
        assert (nets.vectors[k] - vector).abs().max() > 0.01
    assert state.means.keys() == {w.name for w in terms if w.rule.momentum}


def step_by_hand(
    net: SplitNet,
    vector: Tensor,
    client: int,
    draws: Sequence[Batch],
    terms: Sequence[WeightedTerm],
    cut: int,
) -> Tensor:
    """Return one client's parameters after plain gradient descent, each gradient by itself."""
    w, means = vector.clone(), [None, None]
    for own in draws:
        leaf = w.clone().requires_grad_()
        sizes = [parameter.numel() for parameter in net.parameters()]
        weight, bias, head_weight, head_bias = torch.split(leaf, sizes)
        x, y = own.x[client].double(), own.y[client]
        z = (x.flatten(1) @ weight.view(4, 16).T + bias).tanh()
        potential = cross_entropy(z @ head_weight.view(3, 4).T + head_bias, y)
        losses = 0.5 * PLAIN.loss({}, z, y).loss, 2.0 * bind_rival(NoPeek()).loss({}, x, z, z).loss
        (total,) = torch.autograd.grad(potential, leaf, retain_graph=True)
        for position, (loss, weighted) in enumerate(zip(losses, terms, strict=True)):
            (gradient,) = torch.autograd.grad(loss, leaf, retain_graph=True)
            before, momentum = means[position], weighted.rule.momentum
            if before is not None:
                gradient = (1 - momentum) * gradient + momentum * before
            means[position] = gradient if momentum else None  # type: ignore[call-overload]
            assert not gradient[cut:].any()
            total = total + gradient
        w = w - 0.3 * total
    return w


def test_a_pass_of_its_own_reaches_the_encoder_alone() -> None:
    """Also of a term whose gradient reaches the head; joint it moves the head, too."""
    net = SplitNet(nn.Sequential(nn.Flatten(), nn.Linear(16, 4)), nn.Linear(4, 3), Cut(0.0), 4)
    nets = FlatNet(net)

    class Confident(ClientLoss):
        """A loss of the head's answers."""

        def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
            return Term(net.answer(batch.smashed).square().mean(), {})

    gradients = {}
    own = batch()
    for case, rule in (("none", None), ("joint", JOINT), ("own", GradientRule(momentum=0.0))):
        terms = [] if rule is None else [of_defence(Confident(), 1.0, rule)]
        before = nets.vectors.clone()
        z = nets.encode(own.x)
        states = StepState({"defence": {}}, {}, {})
        client_step(nets, states, Batch(own.x, z, z, own.y), plain_steps(nets, terms))
        gradients[case] = (before - nets.vectors)[0]
        nets.load(before)
    cut = nets.device_size
    torch.testing.assert_close(gradients["own"][:cut], gradients["joint"][:cut])
    assert torch.equal(gradients["own"][cut:], gradients["none"][cut:])
    assert not torch.allclose(gradients["joint"][cut:], gradients["none"][cut:])
    assert not torch.allclose(gradients["joint"][:cut], gradients["none"][:cut])
