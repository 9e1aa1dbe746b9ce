"""The local steps of a round, of K clients at once: the only training loop there is."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from math import gcd, prod
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
    part_states,
    refresh_terms,
    refuse_undefined_terms,
    start_terms,
)
from fedcel.losses.cel import StackedFeatures
from fedcel.named_tensors import State
from fedcel.nets import CPU, Cut, FlatNet, whiten_features
from fedcel.posterior import (
    LangevinContext,
    LocalSettings,
    RoundPlan,
    StackedSampler,
    StepNoise,
    build_sampler,
    langevin_step,
    moving_parameters,
)
from fedcel.short_repr import show_shapes
from fedcel.torch_state import use_full_precision

_MIN_MEMBERS = 2  # members without which a class has no spread
_VALUES_AT_ONCE = 2**22  # values of images gathered and augmented, or of noise drawn, at once
_NORMALS_AT_ONCE = 16  # torch draws normal numbers in groups; the last group may overlap
_IMAGES_AT_ONCE = 1024  # images of a client encoded at once for the statistics of a loss
_SUMMARIES = {"loss": torch.mean, "clipped": torch.mean, "update-information": torch.sum}
"""Metrics of a round that are made of those of all steps."""


@show_shapes
class ClientRound(NamedTuple):
    """Inputs of one client's round.

    Attributes:
        images: The client's images (N, C, H, W) in [0, 1] and their labels (N,).
        streams: Random streams of this client and round, by purpose.
        noise: Standard deviation of its own Langevin noise per step.
        state: What the client kept of its last round; None before its first.
        control_variate: Is added to each gradient (P,); None: nothing is.
    """

    images: Images
    streams: Streams
    noise: float
    state: State | None = None
    control_variate: Float[Tensor, " P"] | None = None


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
        terms: The state of each term.
        sampler: The sampler's.
        means: Running mean (K, E) of the gradient of each term with momentum, at the E parameters
            of the device's half.
    """

    terms: States
    sampler: Any
    means: Mapping[str, Float[Tensor, "K E"]] = {}


@use_full_precision()
def train_clients(
    nets: FlatNet,
    received: Float[Tensor, " P"],
    clients: Sequence[ClientRound],
    *,
    plan: RoundPlan,
    local: LocalSettings,
    terms: Sequence[WeightedTerm] = (),
) -> list[ClientUpdate]:
    """Take a round's Langevin steps from the received model, of K clients at once.

    The loss is the net's potential, by default mean cross-entropy, plus the terms; priors pull
    towards the received model and 0. Steps run on the nets' device; random draws, statistics and
    results are on the CPU. The updates depend on the arguments only, and a client's not on K, up
    to the order of sums.

    Args:
        nets: K copies of the net, a workspace that is overwritten.
        received: The model that the round starts from, (P,).
        clients: What each client brings; their batches are of one size, they take as many steps,
            and all or none of them have a state of a term.
        plan: Step size, priors, clip and what moves.
        local: Steps, batch size, sampler, augmentation.
        terms: What is added to the potential.

    Returns:
        Each client's update, in their order. Of several clients one that diverged is not finite.

    Raises:
        DivergedError: The model of a single client is not finite because of one of the terms.
        StackingError: The clients cannot be computed at once.

    References:
        Welling and Teh, ICML 2011, eq. 4.
    """
    if nets.count > 1 and (reason := name_obstacle(terms)):
        raise StackingError(reason)
    counts = sorted({local.count_steps(len(client.images.y)) for client in clients})
    if len(counts) > 1:
        raise StackingError(f"clients take {counts} steps; train those with as many at once")
    take_steps = partial(_take_steps, nets, received, clients, plan=plan, local=local, terms=terms)
    states, measures = take_steps()
    models, start_model = nets.vectors.detach().to(CPU, copy=True), received.cpu()
    if terms and len(clients) == 1 and not models.isfinite().all():
        # The same steps again, which raises where a term failed.
        take_steps(watch=partial(refuse_undefined_terms, terms))
    return [
        ClientUpdate(model - start_model, model, state, metrics)
        for model, state, metrics in zip(models, states, measures, strict=True)
    ]


def _take_steps(
    nets: FlatNet,
    received: Float[Tensor, " P"],
    clients: Sequence[ClientRound],
    *,
    plan: RoundPlan,
    local: LocalSettings,
    terms: Sequence[WeightedTerm],
    watch: Callable[[States, Batch], None] | None = None,
) -> tuple[list[State], list[dict[str, float]]]:
    """Take a round's steps; return what each client keeps, and its metrics.

    `watch` is called with the terms' states and the batch before each step.
    """
    device, is_encoder_frozen = nets.vectors.device, plan.is_encoder_frozen
    nets.load(received.to(device))
    step_count = local.count_steps(len(clients[0].images.y))
    streams, stored = [client.streams for client in clients], [client.state for client in clients]
    features = FeatureReading(nets, [client.images for client in clients])
    context = _start_chains(nets, clients, plan, build_sampler(local))
    steps_per_epoch, steps = draw_steps(
        nets, clients, features, local=local, is_encoder_frozen=is_encoder_frozen
    )
    states = start_terms(terms, stored, features.read, streams, device=device)
    state = StepState(states, context.sampler.start(nets.vectors[:, context.moving], plan))
    measures = []
    for step, inputs in enumerate(steps):
        refreshed = refresh_terms(
            *(terms, state.terms, features.read, streams),
            step=step,
            epochs=steps_per_epoch,
            device=device,
        )
        state = state._replace(terms=refreshed)
        batch = pass_cut(nets, inputs, is_encoder_frozen=is_encoder_frozen)
        if watch is not None:
            watch(state.terms, batch)
        is_last = step == step_count - 1
        state, measured = client_step(
            nets, state, batch, terms=terms, context=context, measure=is_last
        )
        measures.append(measured)
    return part_states(terms, state.terms, stored), summarise_measures(measures)


def name_obstacle(terms: Sequence[WeightedTerm]) -> str | None:
    """Name a term that keeps clients from being computed at once.

    Args:
        terms: Those of the settings, or of a round.

    Returns:
        A reason, None where all take several clients.
    """
    for weighted in terms:
        if not weighted.term.takes_stacks:
            return f"{weighted.title} takes one client's batch at a time"
    return None


def client_step(
    nets: FlatNet,
    state: StepState,
    batch: Batch,
    *,
    terms: Sequence[WeightedTerm],
    context: LangevinContext,
    measure: bool = False,
) -> tuple[StepState, dict[str, Float[Tensor, " K"]]]:
    """Move K clients' nets in place by one step: potential, terms, gradient, sampler.

    Args:
        nets: Hold the parameters, which move.
        state: State after the last step.
        batch: A batch of each client, encoded by the nets.
        terms: What is added to the potential.
        context: What the round's Langevin steps share.
        measure: Whether to compute the terms' metrics.

    Returns:
        The next state, and measurements.
    """
    potential = nets.potential(batch.smashed, batch.y)
    if batch.z.requires_grad and any(weighted.rule.clip == "task" for weighted in terms):
        (task,) = torch.autograd.grad(potential.sum(), batch.z, retain_graph=True)
        scale = batch.noise_scale
        batch = batch._replace(task_gradient=task if scale is None else task * scale.detach())
    values = [weighted.loss(state.terms[weighted.name], batch, measure) for weighted in terms]
    joint, separate = potential, []
    for weighted, value in zip(terms, values, strict=True):
        if weighted.rule.own_pass:
            separate.append((weighted, value.loss))
        else:
            joint = joint + value.loss
    nets.backward(joint, retain_graph=bool(separate))
    means = add_separate_gradients(nets, separate, state.means)
    sampler, measures = langevin_step(nets, context, state.sampler)
    after = {w.name: w.term.update(state.terms[w.name]) for w in terms}
    metrics = {name: number for value in values for name, number in value.metrics.items()}
    return StepState(after, sampler, means), metrics | measures | {"loss": potential.detach()}


def add_separate_gradients(
    nets: FlatNet,
    separate: Sequence[tuple[WeightedTerm, Float[Tensor, " K"]]],
    means: Mapping[str, Float[Tensor, "K E"]],
) -> dict[str, Float[Tensor, "K E"]]:
    """Add the gradients of terms with a pass of their own, or their running means, to the encoder.

    `nets` hold the gradient of everything else. Returns the next running means, which start with
    the round's first step.
    """
    after = {}
    for position, (weighted, loss) in enumerate(separate):
        joint = nets.gradients.clone()
        gradient = torch.zeros_like(joint[:, : nets.cut])
        if loss.requires_grad:
            nets.backward(loss, retain_graph=position + 1 < len(separate))
            gradient = nets.gradients[:, : nets.cut].clone()
        if momentum := weighted.rule.momentum:
            if weighted.name in means:
                gradient = torch.lerp(gradient, means[weighted.name], momentum)
            after[weighted.name] = gradient
        nets.gradients.copy_(joint)
        nets.gradients[:, : nets.cut].add_(gradient)
    return after


class StepDraws(NamedTuple):
    """Inputs of a step of K clients.

    Attributes:
        inputs: Images, or features where the encoder is frozen.
        y: Labels (K, b).
        mask: Mask of the cut (K, b, D); None: it draws none.
        noise: Noise of the cut (K, b, D), likewise.
    """

    inputs: Float[Tensor, "K b ..."]
    y: Int[Tensor, "K b"]
    mask: Bool[Tensor, "K b D"] | None
    noise: Float[Tensor, "K b D"] | None


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

    Each client's images are filled up to as many as the most have.

    Args:
        nets: K copies of the net.
        images: The images of each client.
    """

    def __init__(self, nets: FlatNet, images: Sequence[Images]) -> None:
        self._nets, self._images = nets, images
        self._cached: list[tuple[Tensor, Tensor]] | None = None

    def encode(self) -> Iterator[tuple[Float[Tensor, "K p D"], Bool[Tensor, "K p"], slice]]:
        """Yield features, which of them are of an image, and the positions of these images."""
        first = 0
        for x, is_image in self._pad_pieces():
            with torch.no_grad():
                z = self._nets.encode(x)
            yield z, is_image, slice(first, first + is_image.shape[1])
            first += is_image.shape[1]

    def read(self) -> Iterator[StackedFeatures]:
        """Yield whitened features on the processor; see `FeatureReader`."""
        for z, is_image, positions in self.encode():
            with torch.no_grad():
                whitened = whiten_features(z, self._nets.scale_noise(z))
            labels = [part.y[positions].cpu() for part in self._images]
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
            torch.cat([z[k][is_image[k]] for z, is_image, _ in pieces])
            for k in range(len(self._images))
        ]

    def _pad_pieces(self) -> Iterator[tuple[Float[Tensor, "K p ..."], Bool[Tensor, "K p"]]]:
        """Yield images and which are some; small ones are put together once."""
        if self._cached is not None:
            yield from self._cached
            return
        sizes = torch.tensor([len(part.y) for part in self._images])
        most, count = int(sizes.max()), len(self._images)
        values = count * self._images[0].x[0].numel()
        size = min(_IMAGES_AT_ONCE, max(1, _VALUES_AT_ONCE // values))
        pieces = []
        for first in range(0, most, size):
            rows = [to_floats(part.x[first : first + size]) for part in self._images]
            is_image = torch.arange(first, min(most, first + size)) < sizes[:, None]
            piece = _fill_up(rows, is_image, self._nets.vectors.device)
            yield piece
            if most * values <= _VALUES_AT_ONCE:
                pieces.append(piece)
        self._cached = pieces or None


def _fill_up(
    rows: Sequence[Float[Tensor, "_ ..."]], is_image: Bool[Tensor, "K p"], device: torch.device
) -> tuple[Float[Tensor, "K p ..."], Bool[Tensor, "K p"]]:
    """Return images of K clients in one tensor, filled up with zeros, and which are some."""
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
    *,
    local: LocalSettings,
    is_encoder_frozen: bool,
) -> tuple[list[int], Iterator[StepDraws]]:
    """Draw batches and noise at the cut of all steps of a round, from each client's own streams.

    Balanced batches would change the sampled posterior, so they stop once the encoder is frozen.
    Returns each client's steps per epoch, and the inputs of each step.
    """
    device, cut = nets.vectors.device, nets.net.cut
    inputs = [client.images.x.to(device) for client in clients]
    if is_encoder_frozen:
        local = local.model_copy(update={"balance": False, "augment": "none"})
        inputs = features.encode_clients()
    labels, batches = [], []
    for client, x in zip(clients, inputs, strict=True):
        y = client.images.y
        rows = draw_batches(y.cpu(), local, client.streams("batch"))
        labels.append(y[rows.to(y.device)].to(device))
        augment = client.streams("augment")
        batches.append(_gather_batches(x, rows.to(device), local.augment, augment))
    steps, size = labels[0].shape
    cut_streams = [client.streams("cut") for client in clients]
    cut_draws = draw_cut(cut, (steps, size, nets.net.features), cut_streams, device)
    steps_per_epoch = [-(-len(client.images.y) // size) for client in clients]
    pieces = (_stack_rows(rows).unbind(1) for rows in zip(*batches, strict=True))
    return steps_per_epoch, (
        StepDraws(x, y, mask, noise)
        for x, y, (mask, noise) in zip(
            chain.from_iterable(pieces), _stack_rows(labels).unbind(1), cut_draws, strict=True
        )
    )


def draw_cut(
    cut: Cut,
    shape: tuple[int, int, int],
    generators: Sequence[torch.Generator],
    device: torch.device = CPU,
) -> Iterator[tuple[Bool[Tensor, "K b D"] | None, Float[Tensor, "K b D"] | None]]:
    """Draw mask and noise of the cut of one step after the other, of several steps at a time.

    The numbers are those of one draw for all steps, first of masks, then of noise, in memory that
    does not grow with the steps: normal numbers are drawn by whole groups.

    Args:
        cut: Mask and noise.
        shape: Steps, images of a batch and features.
        generators: Random stream of each client.
        device: Device of the result.

    Yields:
        Mask and noise of a step, None where the cut has none.
    """
    steps, *batch_shape = shape
    values = prod(batch_shape)
    unit = _NORMALS_AT_ONCE // gcd(_NORMALS_AT_ONCE, values)
    most = _VALUES_AT_ONCE // (values * len(generators))
    counts = split_steps(steps, max(unit, most // unit * unit), -(-_NORMALS_AT_ONCE // values))
    noise_streams = generators
    if cut.dropout and cut.sigma and len(counts) > 1:
        noise_streams = [generator.clone_state() for generator in generators]
        for count in counts:  # the noise comes after the masks of all steps
            for generator in noise_streams:
                cut.draw_mask((count, *batch_shape), generator)
    for count in counts:
        masks = [cut.draw_mask((count, *batch_shape), generator) for generator in generators]
        noises = [cut.draw_noise((count, *batch_shape), generator) for generator in noise_streams]
        parts = [_unbind_draws(rows, count, device) for rows in (masks, noises)]
        yield from zip(*parts, strict=True)


def split_steps(steps: int, most: int, least: int) -> list[int]:
    """Split a number of steps into pieces of `most`; the last has `least` or more, if it can."""
    counts = [most] * (steps // most)
    remainder = steps % most
    if counts and remainder < least:
        counts[-1] += remainder
        return counts
    return [*counts, remainder]


def _stack_rows(rows: Sequence[Tensor]) -> Tensor:
    """Return the clients' tensors as one, without a copy where there is one client."""
    return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(list(rows))


def _unbind_draws(
    rows: Sequence[Tensor | None], count: int, device: torch.device
) -> Iterator[Tensor] | Iterator[None]:
    """Return the draws of each of `count` steps, None where the cut draws none."""
    tensors = [row for row in rows if row is not None]
    return iter(_stack_rows(tensors).to(device).unbind(1)) if tensors else repeat(None, count)


def _start_chains(
    nets: FlatNet, clients: Sequence[ClientRound], plan: RoundPlan, sampler: StackedSampler
) -> LangevinContext:
    """Gather what the Langevin steps of a round share, of the parameters that move."""
    moving = moving_parameters(nets, plan.is_encoder_frozen)
    received = nets.vectors[0, moving].clone()
    variates = [client.control_variate for client in clients if client.control_variate is not None]
    return LangevinContext(
        plan=plan,
        moving=moving,
        received=received,
        control_variate=torch.stack(variates)[:, moving].to(received.device) if variates else None,
        noise=StepNoise(
            [client.noise for client in clients],
            [client.streams("langevin") for client in clients],
            torch.empty_like(received, device=CPU),
        ),
        sampler=sampler,
    )


def summarise_measures(measures: Sequence[Mapping[str, Tensor]]) -> list[dict[str, float]]:
    """Summarise a round by client: means and sums over its steps, of the losses' metrics the last.

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


def count_batch_images(
    y: Int[Tensor, " N"], local: LocalSettings, *, is_encoder_frozen: bool = False
) -> int:
    """Compute how many images a client's batch holds; balanced until the encoder is frozen."""
    size = min(local.batch_size, len(y))
    if not local.balance or is_encoder_frozen:
        return size
    classes = len(torch.unique(y))
    return classes * max(_MIN_MEMBERS, size // classes)


def _gather_batches(
    x: Float[Tensor, "N *shape"],
    batches: Int[Tensor, "steps b"],
    augmentation: str,
    generator: torch.Generator,
) -> Iterator[Float[Tensor, "steps b *shape"]]:
    """Yield the images of many steps at a time, augmented: operations are dear."""
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


def compute_full_gradient(
    nets: FlatNet,
    received: Float[Tensor, " P"],
    images: Images,
    *,
    streams: Streams,
    is_encoder_frozen: bool = False,
) -> Float[Tensor, " P"]:
    """Compute the gradient at the received model of the mean potential of all a client's images.

    One draw of the cut's noise for each image, of a stream of its own; neither added terms nor
    priors. `nets` is a workspace that is overwritten; a frozen encoder's part is 0.
    """
    nets.load(received)
    net, noise = nets.net, streams("control")
    gradient = torch.zeros_like(nets.vector)
    moving = moving_parameters(nets, is_encoder_frozen)
    pieces = (torch.split(part, _IMAGES_AT_ONCE) for part in images)
    for x, y in zip(*pieces, strict=True):
        smashed = net.add_noise(net.encode(to_floats(x)), noise)
        loss = net.potential(net.answer(smashed), y) * (len(y) / len(images.y))
        nets.backward(loss.unsqueeze(0))
        gradient[moving] += nets.gradients[0, moving]
    return gradient
