"""The local steps of a round, of K clients at once: the only training loop there is.

First the loop and a step of it, then what a step takes: batches, draws at the cut, and features for
the losses' statistics.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from math import prod
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedcel.data import Images, augment_images, to_floats
from fedcel.errors import StackingError
from fedcel.losses import (
    Batch,
    States,
    Streams,
    WeightedTerm,
    join_states,
    part_states,
    refresh_terms,
    refuse_undefined_terms,
)
from fedcel.losses.cel import StackedFeatures
from fedcel.nets import CPU, Cut, FlatNet, whiten_features
from fedcel.posterior import (
    LangevinContext,
    LocalSettings,
    RoundPlan,
    StepNoise,
    build_sampler,
    langevin_step,
)
from fedcel.short_repr import show_shapes
from fedcel.tensors import State, rank_in_class
from fedcel.torch_state import use_full_precision

_MIN_MEMBERS = 2  # members without which a class has no spread
_VALUES_AT_ONCE = 2**22  # values of images gathered and augmented at once
_DRAWN_AT_ONCE = 2**17  # values of a client's mask or noise drawn at once: bits depend on it
_ENCODED_AT_ONCE = 2**18  # values of images encoded at once: their maps should stay in the cache
IMAGES_AT_ONCE = 1024  # images of a client encoded at once for its statistics
STATISTICS_IMAGES = 256
"""Images of a class that the losses' statistics are computed of, at most."""
_SUMMARIES = {"loss": torch.mean, "clipped": torch.mean, "update-information": torch.sum}
"""Metrics of a round that are made of those of all steps."""


@show_shapes
class ClientRound(NamedTuple):
    """Inputs of one client's round.

    Attributes:
        images: The client's images (N, C, H, W), numbers in [0, 1] or bytes, and their labels (N,).
        streams: Random streams of this client and round, by purpose.
        noise: Standard deviation of its own Langevin noise per step.
        state: What the client kept of its last round; None before its first.
    """

    images: Images
    streams: Streams
    noise: float
    state: State | None = None


@show_shapes
class ClientUpdate(NamedTuple):
    """Result of a client's round; its state stays with the client.

    Attributes:
        delta: Last minus received parameters (P,).
        model: The last parameters (P,), for strategies that average weights.
        state: What the client keeps for its next round.
        metrics: Numbers of the round.
        state_round: The round whose state the client starts from the next time, 0: it keeps none.
        has_lost_state: Whether it began afresh because the state of its last round was not there.
    """

    delta: Float[Tensor, " P"]
    model: Float[Tensor, " P"]
    state: State
    metrics: dict[str, float]
    state_round: int = 0
    has_lost_state: bool = False


@show_shapes
class StepState(NamedTuple):
    """State that a step hands on to the next, besides the parameters.

    Attributes:
        states: The state of each term.
        sampler: The sampler's.
        means: Running mean (K, E) of the gradient of each term with momentum, at the E parameters
            of the device's half.
    """

    states: States
    sampler: Any
    means: Mapping[str, Float[Tensor, "K E"]] = {}


@use_full_precision()
def train_clients(
    nets: FlatNet,
    received: Float[Tensor, " P"],
    clients: Sequence[ClientRound],
    plan: RoundPlan,
) -> list[ClientUpdate]:
    """Take a round's Langevin steps from the received model, of K clients at once.

    The loss is the net's potential, by default mean cross-entropy, plus the plan's terms; priors
    pull towards the received model and 0. Steps run on the nets' device; random draws, statistics
    and results are on the CPU. The updates depend on the arguments only, and a client's not on K,
    up to the order of sums.

    Args:
        nets: K copies of the net, a workspace that is overwritten.
        received: The model that the round starts from, (P,).
        clients: What each client brings; their batches are of one size, and all or none of them
            have a state of a term.
        plan: The round, of clients that take as many steps.

    Returns:
        Each client's update, in their order. Where several are trained at once, an update that
        diverged is not finite.

    Raises:
        DivergedError: The model of a single client is not finite because of one of the terms.
        StackingError: The clients cannot be computed at once.

    References:
        Welling and Teh, ICML 2011, eq. 4.
    """
    if nets.count > 1 and (reason := name_obstacle(plan.terms)):
        raise StackingError(reason)
    states, measures = _take_steps(nets, received, clients, plan)
    models, start_model = nets.vectors.detach().to(CPU, copy=True), received.cpu()
    if plan.terms and len(clients) == 1 and not models.isfinite().all():
        # The same steps again, which raises where a term failed.
        watch = partial(refuse_undefined_terms, plan.terms)
        _take_steps(nets, received, clients, plan, watch=watch)
    return [
        ClientUpdate(model - start_model, model, state, metrics)
        for model, state, metrics in zip(models, states, measures, strict=True)
    ]


def _take_steps(
    nets: FlatNet,
    received: Float[Tensor, " P"],
    clients: Sequence[ClientRound],
    plan: RoundPlan,
    *,
    watch: Callable[[States, Batch], None] | None = None,
) -> tuple[list[State], list[dict[str, float]]]:
    """Take a round's steps; return what each client keeps, and its metrics.

    `watch` is called with the terms' states and the batch before each step.
    """
    device, terms = nets.vectors.device, plan.terms
    nets.load(received.to(device))
    streams, stored = [client.streams for client in clients], [client.state for client in clients]
    images = [client.images for client in clients]
    context = _start_chains(nets, clients, plan)
    steps_per_epoch, steps = draw_steps(nets, clients, FeatureReading(nets, images), plan)
    sampler = context.sampler.start(nets.vectors[:, context.moving], plan)
    state = StepState(join_states(terms, stored), sampler)
    refresh = partial(
        refresh_terms,
        terms,
        read_features=FeatureReading(nets, images, list(map(choose_rows, clients))).read,
        streams=streams,
        epochs=steps_per_epoch,
        device=device,
    )
    measures = []
    for step, inputs in enumerate(steps):
        state = state._replace(states=refresh(state.states, step=step))
        batch = pass_cut(nets, inputs, is_encoder_frozen=plan.is_encoder_frozen)
        if watch is not None:
            watch(state.states, batch)
        is_last = step == plan.steps - 1
        state, measured = client_step(nets, state, batch, context, measure=is_last)
        measures.append(measured)
    return part_states(terms, state.states, stored), summarise_measures(measures)


def name_obstacle(terms: Sequence[WeightedTerm]) -> str | None:
    """Name a term that keeps clients from being computed at once.

    Args:
        terms: Those of the settings, or of a round.

    Returns:
        A reason, None where all take several clients.
    """
    for weighted in terms:
        if not weighted.term.takes_stacks:
            return f"{weighted.term.title} takes one client's batch at a time"
    return None


def client_step(
    nets: FlatNet,
    state: StepState,
    batch: Batch,
    context: LangevinContext,
    *,
    measure: bool = False,
) -> tuple[StepState, dict[str, Float[Tensor, " K"]]]:
    """Move K clients' nets in place by one step: potential, terms, gradient, sampler.

    Returns the next state, and measurements: those of the terms if `measure`.
    """
    terms = context.plan.terms
    potential = nets.potential(batch.smashed, batch.y)
    gradients, means, metrics = sum_gradients(
        nets, batch, potential, state, terms=terms, measure=measure
    )
    w, slopes = nets.vectors[:, context.moving], gradients[:, context.moving]
    sampler, measures = langevin_step(w, slopes, context, state.sampler)
    if isinstance(context.moving, Tensor):  # w is a copy, no view
        nets.vectors[:, context.moving] = w
    after = {w.name: w.term.update(state.states[w.name]) for w in terms}
    return StepState(after, sampler, means), metrics | measures | {"loss": potential.detach()}


def sum_gradients(
    nets: FlatNet,
    batch: Batch,
    potential: Float[Tensor, " K"],
    state: StepState,
    *,
    terms: Sequence[WeightedTerm],
    measure: bool,
) -> tuple[Float[Tensor, "K P"], dict[str, Float[Tensor, "K E"]], dict[str, Float[Tensor, " K"]]]:
    """Sum the gradients of the potential and the terms, each by its rule.

    One backward pass takes the potential and the terms without momentum. Then comes a pass for each
    other term, whose gradient, or the running mean of it, is added to the encoder's.

    Returns:
        The gradients, the next running means, which start with the round's first step, and the
        terms' metrics.
    """
    task = None
    if batch.z.requires_grad and any(weighted.rule.clip == "task" for weighted in terms):
        (task,) = torch.autograd.grad(potential.sum(), batch.z, retain_graph=True)
        task = task if batch.noise_scale is None else task * batch.noise_scale.detach()
    joint, separate = potential, []
    metrics: dict[str, Float[Tensor, " K"]] = {}
    for weighted in terms:
        loss, measures = weighted.loss(state.states[weighted.name], batch, measure, task)
        metrics |= measures
        if weighted.rule.momentum is None:
            joint = joint + loss
        else:
            separate.append((weighted, loss))
    total = nets.gradient(joint, retain_graph=bool(separate))
    if separate:
        total = total.clone()
    means = {}
    for position, (weighted, loss) in enumerate(separate):
        part = torch.zeros_like(total[:, : nets.device_size])
        if loss.requires_grad:
            is_last = position + 1 == len(separate)
            part = nets.gradient(loss, retain_graph=not is_last)[:, : nets.device_size]
        if momentum := weighted.rule.momentum:
            mean = state.means.get(weighted.name)
            part = part.clone() if mean is None else torch.lerp(part, mean, momentum)
            means[weighted.name] = part
        total[:, : nets.device_size].add_(part)
    return total, means, metrics


def _start_chains(
    nets: FlatNet, clients: Sequence[ClientRound], plan: RoundPlan
) -> LangevinContext:
    """Gather what the Langevin steps of a round share, of the parameters that move."""
    moving = nets.select_moving(is_encoder_frozen=plan.is_encoder_frozen)
    received = nets.vectors[0, moving].clone()
    return LangevinContext(
        plan=plan,
        moving=moving,
        received=received,
        noise=StepNoise(
            [client.noise for client in clients],
            [client.streams("langevin") for client in clients],
            torch.empty_like(received, device=CPU),
        ),
        sampler=build_sampler(plan.local),
    )


def summarise_measures(measures: Sequence[Mapping[str, Tensor]]) -> list[dict[str, float]]:
    """Summarise a round by client: means or sums over its steps, and the losses' last metrics.

    `measures` are, of each step, rows (K,) by name. A client lacks the metrics that are NaN.
    """
    columns = dict(measures[-1])
    for name, combine in _SUMMARIES.items():
        if name in columns:
            columns[name] = combine(torch.stack([step[name] for step in measures]), 0)
    rows: list[dict[str, float]] = [{} for _ in columns["loss"]]
    for name, column in columns.items():
        for numbers, value in zip(rows, column.tolist(), strict=True):
            if value == value or name in _SUMMARIES:
                numbers[name] = value
    return rows


StepDraws = tuple[
    Float[Tensor, "K b ..."],
    Int[Tensor, "K b"],
    Bool[Tensor, "K b D"] | None,
    Float[Tensor, "K b D"] | None,
]
"""Inputs of a step: images, or features where the encoder is frozen; labels; mask and noise of the
cut, None where it draws none."""


def pass_cut(nets: FlatNet, step: StepDraws, *, is_encoder_frozen: bool) -> Batch:
    """Encode a step's inputs, unless they are features already, and apply the cut's draws."""
    inputs, y, mask, noise = step
    z = inputs if is_encoder_frozen else nets.encode(inputs)
    scale = nets.scale_noise(z)
    smashed = z if mask is None else z * mask
    if noise is not None:
        smashed = smashed + (noise if scale is None else noise * scale)
    return Batch(inputs, z, smashed, y, scale)


class FeatureReading:
    """The images of K clients, encoded piece by piece by the nets as they are at the time.

    Clients with fewer images than others get blank ones, which are left out of the features.

    Args:
        nets: K copies of the net.
        images: The images of each client.
        rows: Positions of those that are read; None: all.
    """

    def __init__(
        self,
        nets: FlatNet,
        images: Sequence[Images],
        rows: Sequence[Int[Tensor, "_"]] | None = None,
    ) -> None:
        self._nets, self._images = nets, images
        self._rows = rows or [torch.arange(len(part.y)) for part in images]
        self._cached: list[tuple[Tensor, Tensor]] | None = None

    def encode(self) -> Iterator[tuple[Float[Tensor, "K p D"], Bool[Tensor, "K p"]]]:
        """Yield features, and which of them are of an image."""
        for x, is_image in self._pad_pieces():
            with torch.no_grad():
                z = self._nets.encode(x)
            yield z, is_image

    def read(self) -> Iterator[StackedFeatures]:
        """Yield whitened features on the processor; see `FeatureReader`."""
        first = 0
        for z, is_image in self.encode():
            with torch.no_grad():
                whitened = whiten_features(z, self._nets.scale_noise(z))
            last = first + is_image.shape[1]
            labels = [
                part.y.cpu()[rows[first:last]]
                for part, rows in zip(self._images, self._rows, strict=True)
            ]
            first = last
            counts = torch.tensor([len(part) for part in labels])
            yield StackedFeatures(
                whitened[is_image].cpu(),
                torch.cat(labels),
                torch.arange(len(labels)).repeat_interleave(counts),
            )

    def encode_clients(self) -> list[Float[Tensor, "N D"]]:
        """Return the features of each client's images."""
        pieces = list(self.encode())
        return [
            torch.cat([z[k][is_image[k]] for z, is_image in pieces])
            for k in range(len(self._images))
        ]

    def _pad_pieces(self) -> Iterator[tuple[Float[Tensor, "K p ..."], Bool[Tensor, "K p"]]]:
        """Yield padded images and a mask of the real ones; small sets are padded once and kept."""
        if self._cached is not None:
            yield from self._cached
            return
        sizes = torch.tensor([len(rows) for rows in self._rows])
        most, count = int(sizes.max()), len(self._images)
        values = count * self._images[0].x[0].numel()
        size = min(IMAGES_AT_ONCE, max(1, _ENCODED_AT_ONCE // values))
        pieces = []
        for first in range(0, most, size):
            parts = [
                to_floats(part.x[rows[first : first + size].to(part.x.device)])
                for part, rows in zip(self._images, self._rows, strict=True)
            ]
            is_image = torch.arange(first, min(most, first + size)) < sizes[:, None]
            piece = _fill_up(parts, is_image, self._nets.vectors.device)
            yield piece
            if most * values <= _VALUES_AT_ONCE:
                pieces.append(piece)
        self._cached = pieces or None


def choose_rows(client: ClientRound) -> Int[Tensor, " n"]:
    """Choose the images that statistics are computed of: a draw from each class that has more."""
    labels = client.images.y.cpu()
    if int(labels.bincount(minlength=1).max()) <= STATISTICS_IMAGES:
        return torch.arange(len(labels))
    order = torch.randperm(len(labels), generator=client.streams("statistics"))
    chosen: Tensor = order[rank_in_class(labels[order]) < STATISTICS_IMAGES].sort().values
    return chosen


def _fill_up(
    rows: Sequence[Float[Tensor, "_ ..."]], is_image: Bool[Tensor, "K p"], device: torch.device
) -> tuple[Float[Tensor, "K p ..."], Bool[Tensor, "K p"]]:
    """Return images of K clients in one tensor, padded with zeros, and a mask of the real ones."""
    if len(rows) == 1:
        return rows[0].unsqueeze(0).to(device), is_image.to(device)
    x = rows[0].new_zeros(*is_image.shape, *rows[0].shape[1:])
    for target, row in zip(x, rows, strict=True):
        target[: len(row)] = row
    return x.to(device), is_image.to(device)


def draw_steps(
    nets: FlatNet,
    clients: Sequence[ClientRound],
    features: FeatureReading,
    plan: RoundPlan,
) -> tuple[list[int], Iterator[StepDraws]]:
    """Draw batches and noise at the cut of all steps of a round, from each client's own streams.

    Returns each client's steps per epoch, and the inputs of each step.
    """
    device, cut = nets.vectors.device, nets.net.cut
    inputs = [client.images.x.to(device) for client in clients]
    if plan.is_encoder_frozen:
        inputs = features.encode_clients()
    labels, batches = [], []
    for client, x in zip(clients, inputs, strict=True):
        y = client.images.y
        rows = draw_batches(y.cpu(), plan.local, client.streams("batch"))
        labels.append(y[rows.to(y.device)].to(device))
        augment = client.streams("augment")
        batches.append(_gather_batches(x, rows.to(device), plan.local.augment, augment))
    steps, size = labels[0].shape
    streams = [client.streams for client in clients]
    cut_draws = draw_cut(cut, (steps, size, nets.net.features), streams, device)
    steps_per_epoch = [-(-len(client.images.y) // size) for client in clients]
    pieces = (_stack_rows(rows).unbind(1) for rows in zip(*batches, strict=True))
    return steps_per_epoch, (
        (x, y, mask, noise)
        for x, y, (mask, noise) in zip(
            chain.from_iterable(pieces), _stack_rows(labels).unbind(1), cut_draws, strict=True
        )
    )


def draw_cut(
    cut: Cut,
    shape: tuple[int, int, int],
    streams: Sequence[Streams],
    device: torch.device = CPU,
) -> Iterator[tuple[Bool[Tensor, "K b D"] | None, Float[Tensor, "K b D"] | None]]:
    """Draw mask and noise of the cut of one step after the other, of several steps at a time.

    Memory does not grow with the steps.

    Args:
        cut: Mask and noise.
        shape: Steps, images of a batch and features.
        streams: Random streams of each client; mask and noise have one each.
        device: Device of the result.

    Yields:
        Mask and noise of a step, None where the cut has none.
    """
    steps, *batch_shape = shape
    mask_streams, noise_streams = ([s(name) for s in streams] for name in ("cut-mask", "cut"))
    at_once = max(1, _DRAWN_AT_ONCE // prod(batch_shape))
    for first in range(0, steps, at_once):
        count = min(at_once, steps - first)
        masks = [cut.draw_mask((count, *batch_shape), stream) for stream in mask_streams]
        noises = [cut.draw_noise((count, *batch_shape), stream) for stream in noise_streams]
        parts = [_unbind_draws(rows, count, device) for rows in (masks, noises)]
        yield from zip(*parts, strict=True)


def _stack_rows(rows: Sequence[Tensor]) -> Tensor:
    """Return the clients' tensors as one, without a copy where there is one client."""
    return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(list(rows))


def _unbind_draws(
    rows: Sequence[Tensor | None], count: int, device: torch.device
) -> Iterator[Tensor] | Iterator[None]:
    """Return the draws of each of `count` steps, None where the cut draws none."""
    tensors = [row for row in rows if row is not None]
    return iter(_stack_rows(tensors).to(device).unbind(1)) if tensors else repeat(None, count)


def draw_batches(
    y: Int[Tensor, " N"], local: LocalSettings, generator: torch.Generator
) -> Int[Tensor, "steps b"]:
    """Draw the positions of each step's batch: shuffled epochs in a row, cut into equal pieces.

    Balanced: each class has its own shuffled epochs and the same number of places in every batch,
    at least two, without which a class has no spread: a batch can be larger than asked for, and
    rare classes come round sooner.
    """
    size, steps = count_batch_images(y, local), local.count_steps(len(y))
    if not local.balance:
        return _shuffle_epochs(torch.arange(len(y)), steps, size, generator)
    classes = torch.unique(y)
    per_class = size // len(classes)
    parts = [
        _shuffle_epochs(torch.eq(y, label).nonzero()[:, 0], steps, per_class, generator)
        for label in classes
    ]
    return torch.cat(parts, 1)


def count_batch_images(y: Int[Tensor, " N"], local: LocalSettings) -> int:
    """Compute how many images a client's batch holds."""
    size = min(local.batch_size, len(y))
    if not local.balance:
        return size
    classes = len(torch.unique(y))
    return classes * max(_MIN_MEMBERS, size // classes)


def _gather_batches(
    x: Float[Tensor, "N *shape"],
    batches: Int[Tensor, "steps b"],
    augmentation: str,
    generator: torch.Generator,
) -> Iterator[Float[Tensor, "steps b *shape"]]:
    """Yield augmented images, of many steps at a time: each operation has a fixed cost."""
    size = batches.shape[1] * x[0].numel()
    for rows in torch.split(batches, max(1, _VALUES_AT_ONCE // size)):
        images = to_floats(x[rows.flatten()])
        if augmentation != "none":
            images = augment_images(images, augmentation, generator)
        yield images.view(*rows.shape, *x.shape[1:])


def _shuffle_epochs(
    members: Int[Tensor, " n"], steps: int, size: int, generator: torch.Generator
) -> Int[Tensor, "steps size"]:
    """Return `size` of the members for each step, everyone once before anyone again."""
    epochs = -(-steps * size // len(members))
    order = [torch.randperm(len(members), generator=generator) for _ in range(epochs)]
    return members[torch.cat(order)[: steps * size]].view(steps, size)
