"""The losses as PyTorch modules: the federation's own bits, in a loop of one's own."""

import inspect
import io
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedcel.errors import DivergedError
from fedcel.losses import Batch, WeightedTerm
from fedcel.losses.cel import (
    CEL,
    CELModule,
    ClusterCEL,
    GatedCEL,
    HybridCEL,
    MutualInformationCEL,
    PlainCEL,
)
from fedcel.settings import Settings, parse_settings
from fedcel.torch_state import make_generator
from tests.fedcel.elsewhere import ELSEWHERE, Elsewhere
from tests.fedcel.losses.cel.readers import read_clients
from tests.fedcel.losses.single import Single, options, single
from tests.fedcel.test_torch_state import STATES

KINDS: list[type[CELModule]] = [
    kind for kind in CELModule.__subclasses__() if kind.__module__.startswith("fedcel.")
]
CASES = [(kind, kind.options().kind) for kind in KINDS]
assert {name for _, name in CASES} == set(CEL.list_names()) - {"none"}
LEARNING = [GatedCEL, HybridCEL]


def points(count: int = 48, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return features (count, 6) of three classes."""
    stream = torch.Generator().manual_seed(seed)
    return torch.rand(count, 6, generator=stream), torch.arange(count) % 3


def gradient(cel: CELModule, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss and its gradient at the features, after a backward pass."""
    leaf = z.clone().requires_grad_()
    loss = 0.3 * cel(leaf, y)
    loss.backward()
    assert leaf.grad is not None
    return loss.detach(), leaf.grad


def streams(purpose: str) -> torch.Generator:
    return make_generator(7, purpose)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_gradients_are_those_of_a_client_to_the_bit(kind: type[CELModule], name: str) -> None:
    """Three epochs of four batches: statistics, loss, gradient and attention of the federation."""
    z, y = points()
    settings = parse_settings({"cel.kind": name, "net.noise": 0.4})
    loss = single(settings.cel, 3, 6, 0.4)
    assert loss is not None
    weighted = WeightedTerm("cel", loss.term, 0.3)
    cel = kind(classes=3, noise=0.4)
    state = None
    for epoch in range(3):
        purpose, reader = f"refresh-{epoch}", read_clients((z, y))
        state = weighted.refresh(state, reader, [streams], epoch)
        cel.refresh(z, y, streams(purpose))
        for rows in torch.split(torch.randperm(48, generator=streams(purpose)), 12):
            leaf = z[rows].clone().requires_grad_()
            value = weighted.loss(state, Batch.of_features(leaf[None], y[None, rows]), False).loss
            value.sum().backward()
            state = loss.term.update(state)
            own_loss, at_features = gradient(cel, z[rows], y[rows])
            assert torch.equal(own_loss, value.detach()[0])
            assert torch.equal(at_features, leaf.grad)
        z = z + 0.01


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_defaults_are_those_of_settings(kind: type[CELModule], name: str) -> None:
    """Each argument is a key of the group `cel`, with its default; all are given by name."""
    settings = options(kind=name)
    parameters = inspect.signature(kind).parameters
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in parameters.values())
    for argument in parameters.keys() - {"classes", "noise", "seed"}:
        default = parameters[argument].default
        assert ("none" if default is None else default) == getattr(settings, argument), argument
    assert parameters["noise"].default == Settings().net.noise
    built = kind(classes=3)
    built.refresh(*points())
    assert repr(built._build(6).term) == repr(single(settings, 3, 6, 0.3).term)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trained", [False, True])
def test_state_survives_saving_and_loading(kind: type[CELModule], trained: bool) -> None:
    """Before the first refresh and after steps, inside another module, by file; the same bits."""
    z, y = points()
    model = nn.ModuleDict({"cel": kind(classes=3, noise=0.4)})
    if trained:
        model["cel"].refresh(z, y)
        gradient(model["cel"], z, y)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = nn.ModuleDict({"cel": kind(classes=3, noise=0.4)})
    if not trained:
        other["cel"].refresh(z + 1, y)  # what it held is gone
    other.load_state_dict(torch.load(file, weights_only=True))
    assert other["cel"].needs_refresh == model["cel"].needs_refresh
    for cel in (model["cel"], other["cel"]):
        cel.refresh(z, y)
    for _ in range(3):
        pairs = zip(gradient(model["cel"], z, y), gradient(other["cel"], z, y), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)


def test_a_state_of_other_arguments_is_refused() -> None:
    """By shape and by name, as PyTorch refuses parameters that do not fit."""
    z, y = points()
    saved = ClusterCEL(classes=3)
    saved.refresh(z, y)
    for other in (ClusterCEL(classes=4), ClusterCEL(classes=3, clusters=2), PlainCEL(classes=3)):
        with pytest.raises(RuntimeError, match=r"centres"):
            other.load_state_dict(saved.state_dict())
    part = {name: value for name, value in saved.state_dict().items() if name != "weights"}
    with pytest.raises(RuntimeError, match="weights"):
        ClusterCEL(classes=3).load_state_dict(part)
    mixture = ClusterCEL(classes=3, clusters=2, clustering="diagonal")
    mixture.refresh(z, y)
    ClusterCEL(classes=3, clusters=2, clustering="diagonal").load_state_dict(mixture.state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_computed_in_float32(kind: type[CELModule]) -> None:
    """Under autocast, of half features, and after the whole model was made half."""
    z, y = points()
    z = z.bfloat16().float()  # the same numbers in both
    plain, cast, half = (kind(classes=3) for _ in range(3))
    for cel in (plain, cast, half):
        cel.refresh(z, y)
    half = half.bfloat16()
    expected, at_features = gradient(plain, z, y)
    with torch.autocast("cpu", torch.bfloat16):
        loss = 0.3 * cast(z, y)
    assert loss.dtype == torch.float32
    assert torch.equal(loss.detach(), expected)
    loss, at_half = gradient(half, z.bfloat16(), y)
    assert torch.equal(loss, expected)
    torch.testing.assert_close(at_half.float(), at_features, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_another_device_gives_the_same(kind: type[CELModule]) -> None:
    """State follows the features, statistics come from the processor, an attention goes on."""
    z, y = points()
    here, there = kind(classes=3), kind(classes=3)
    here.refresh(z, y)
    expected = [gradient(here, z, y)[0] for _ in range(3)]
    with Elsewhere():
        far_z, far_y = z.to(ELSEWHERE), y.to(ELSEWHERE)
        there.refresh(far_z, far_y)
        losses = []
        for _ in range(3):
            leaf = far_z.clone().requires_grad_()
            loss = 0.3 * there(leaf, far_y)
            loss.backward()
            losses.append(loss.detach().cpu())
        there.refresh(far_z, far_y)
        assert all(buffer.device == ELSEWHERE for buffer in there.buffers())
    torch.testing.assert_close(losses, expected)


@pytest.mark.parametrize("kind", LEARNING)
def test_the_attention_moves_once_a_backward_pass(kind: type[CELModule]) -> None:
    """At the next forward, or at once by `update`; never of a bad gradient; no optimiser has it."""
    z, y = points()
    waiting, stepped, unmoved = (kind(classes=3) for _ in range(3))
    for cel in (waiting, stepped, unmoved):
        cel.refresh(z, y)
        assert list(cel.parameters()) == []

    def theta(cel: CELModule) -> Tensor:
        return next(t for name, t in cel.named_buffers() if name.endswith("theta"))

    start = theta(waiting).clone()
    gradient(waiting, z, y)
    gradient(stepped, z, y)
    stepped.update()
    assert torch.equal(theta(waiting), start)
    assert not torch.equal(theta(stepped), start)
    once = theta(stepped).clone()
    stepped.update()  # nothing is due
    assert torch.equal(theta(stepped), once)
    waiting(z, y)
    assert torch.equal(theta(waiting), once)
    (torch.inf * unmoved(z, y)).backward()
    unmoved.update()
    assert torch.equal(theta(unmoved), start)


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_of_batches_are_those_of_all(kind: type[CELModule]) -> None:
    """A table, a list of batches, an iterator, and arrays give one loss to the bit."""
    z, y = points()
    parts = list(zip(torch.split(z, 10), torch.split(y, 10), strict=True))
    sources: list[tuple[object, ...]] = [
        (z, y),
        (parts,),
        (iter(parts),),
        (z.numpy(), y.numpy()),
        ([(a.numpy(), b.numpy()) for a, b in parts],),
    ]
    losses = []
    for source in sources:
        cel = kind(classes=3)
        cel.refresh(*source)  # type: ignore[arg-type]
        losses.append(cel(z, y.numpy()))
    assert all(torch.equal(loss, losses[0]) for loss in losses)


def test_maps_of_features_are_flattened_or_averaged() -> None:
    """(B, C, H, W) as one vector of all values, or the mean over positions."""
    z, y = points()
    maps = z.view(48, 3, 1, 2)
    flat, mean = ClusterCEL(classes=3), ClusterCEL(classes=3, pool="mean")
    flat.refresh(maps, y)
    mean.refresh(maps, y)
    reference = ClusterCEL(classes=3)
    reference.refresh(z, y)
    assert torch.equal(flat(maps, y), reference(z, y))
    reference = ClusterCEL(classes=3)
    pooled = maps.flatten(2).mean(2)
    reference.refresh(pooled, y)
    assert torch.equal(mean(maps, y), reference(pooled, y))


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_is_copied_and_trains_an_encoder(kind: type[CELModule]) -> None:
    """A deep copy goes on by itself; ten steps of Adam shrink the spread."""
    x, y = points(96)
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(6, 8), nn.Sigmoid())
    cel = kind(classes=3)
    adam = torch.optim.Adam(encoder.parameters(), 0.02)
    cel.refresh(encoder(x), y)
    before = cel.measure(encoder(x), y)["spread"]
    for _ in range(10):
        adam.zero_grad()
        cel(encoder(x), y).backward()
        adam.step()
    copied = deepcopy(cel)
    assert torch.equal(copied(encoder(x), y), cel(encoder(x), y))
    assert cel.measure(encoder(x), y)["spread"] < before


Z, Y = points()


def refusals() -> Iterator[tuple[Callable[[], object], str]]:
    yield lambda: ClusterCEL(classes=3)(Z, Y), "call refresh"
    yield lambda: HybridCEL(classes=3)(Z, Y), "call refresh"
    yield lambda: PlainCEL(classes=0), "classes is 0"
    yield lambda: PlainCEL(classes=3, pool="max"), "pool"  # type: ignore[arg-type]
    yield lambda: HybridCEL(classes=3, clusters=1), "^clusters is 1, kind 'hybrid'"
    yield lambda: GatedCEL(classes=3, attention="sideways"), "^attention is 'sideways', must be"
    yield lambda: PlainCEL(classes=3, clusters=2), "unexpected keyword argument 'clusters'"
    yield lambda: PlainCEL(classes=3)(Z[0], Y), "features are"
    yield lambda: PlainCEL(classes=3)(Z.long(), Y), "features are"
    yield lambda: PlainCEL(classes=3)(Z, Y[:4]), "labels are of shape"
    yield lambda: PlainCEL(classes=3)(Z, Y + 1), "labels are in 1..3, must be in 0..2"
    yield lambda: PlainCEL(classes=3).refresh(Z), "labels are missing"
    yield lambda: ClusterCEL(classes=3).refresh([]), "0 examples"


@pytest.mark.parametrize(("act", "message"), list(refusals()))
def test_bad_use_is_refused(act: Callable[[], object], message: str) -> None:
    with pytest.raises((ValueError, RuntimeError, TypeError), match=message):
        act()


def test_another_encoder_needs_another_module() -> None:
    """The number of features is that of the first batch."""
    cel = PlainCEL(classes=3)
    cel(Z, Y)
    with pytest.raises(ValueError, match="features have 5 values, those before had 6"):
        cel(Z[:, :5], Y)


EMPTY = [
    (PlainCEL, {}),
    (ClusterCEL, {}),
    (ClusterCEL, {"clusters": 3, "share": "none"}),
    (ClusterCEL, {"clusters": 2, "clustering": "full"}),
    (ClusterCEL, {"clusters": 2, "clustering": "truncated-k-means"}),
    (GatedCEL, {}),
    (HybridCEL, {"clusters": 2}),
    (MutualInformationCEL, {}),
]
"""Every way in which a module's loss is computed."""


@pytest.mark.parametrize(("kind", "options"), EMPTY, ids=str)
@pytest.mark.parametrize("count", [0, 1], ids=["empty", "one"])
def test_a_batch_without_a_pair_has_a_finite_loss_with_a_gradient(
    kind: type[CELModule], options: dict[str, Any], count: int
) -> None:
    """Of none it is 0, as module and as function; a filter in one's own loop may leave none."""
    generator = torch.Generator().manual_seed(0)
    features, labels = torch.rand(60, 8, generator=generator), torch.arange(60) % 4
    cel = kind(classes=4, **options)
    cel.refresh(features, labels)
    z = torch.rand(count, 8, generator=generator, requires_grad=True)
    loss = cel(z, labels[:count])
    loss.backward()
    assert loss.isfinite()
    assert z.grad is not None and z.grad.isfinite().all()
    assert count or loss.item() == 0
    assert all(math.isfinite(value) for value in cel.measure(z, labels[:count]).values())
    function, state = Single(cel._build(8).term), cel._state()
    for measure in (False, True):
        assert torch.equal(function.loss(state, z, labels[:count], measure).loss, loss)


def test_many_classes_take_no_square_of_their_number() -> None:
    """A million: a table of classes by classes would be four terabytes."""
    cel = PlainCEL(classes=10**6)
    z = torch.rand(4, 3, requires_grad=True)
    assert cel(z, torch.tensor([7, 7, 999_999, 7])).item() > 0


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ClusterCEL(classes=4, penalty="root"), "^penalty is 'root', must be 'linear'"),  # type: ignore[arg-type]
        (lambda: ClusterCEL(classes=4, clustering="cut"), "^clustering is 'cut', must be"),  # type: ignore[arg-type]
        (lambda: PlainCEL(classes=4, noise=0.0), "^noise is 0.0, .* or penalty 'linear'$"),
        (lambda: MutualInformationCEL(classes=4, noise=0.0), "^noise is 0.0, .* or kind 'plain'$"),
        (lambda: PlainCEL(classes=2.5), r"^classes is 2.5, must be a whole number"),  # type: ignore[arg-type]
    ],
    ids=["choice", "rule", "noise", "kind", "classes"],
)
def test_errors_name_arguments_not_settings_of_a_run(
    make: Callable[[], CELModule], words: str
) -> None:
    """Whoever has a loop of one's own has no settings."""
    with pytest.raises(ValueError, match=words):
        make()


def test_features_that_ran_away_are_told_in_the_words_of_a_loop() -> None:
    """It has a learning rate, and no `local.rate`."""
    cel = ClusterCEL(classes=2)
    cel.refresh(torch.rand(20, 3), torch.arange(20) % 2)
    with pytest.raises(DivergedError, match="lower the learning rate or the gradient's clip$"):
        cel(torch.full((4, 3), torch.nan), torch.tensor([0, 1, 0, 1]))


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.parametrize("state", STATES[:3])  # a device decides where labels are
def test_losses_do_not_depend_on_the_state_of_pytorch(
    state: Callable[[], AbstractContextManager[object]], kind: type[CELModule], name: str
) -> None:
    """Made and refreshed under any, they train on outside, and their gradients are the same."""
    z, y = points()
    usual = kind(classes=3, noise=0.4)
    usual.refresh(z, y)
    with state():
        cel = kind(classes=3, noise=0.4)
        cel.refresh(z.clone(), y.clone())
        value = cel(z.clone(), y)
    assert float(value.detach()) == pytest.approx(float(usual(z, y).detach()))
    for _ in range(2):
        for got, expected in zip(gradient(cel, z, y), gradient(usual, z, y), strict=True):
            assert torch.equal(got, expected)
        cel.refresh(z, y)
        usual.refresh(z, y)
    assert all(t.dtype == usual.state_dict()[k].dtype for k, t in cel.state_dict().items())
