"""One data holder: its images, its net, its state, bound to the pure local update."""

import warnings
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from flwr.common import NDArrays, Scalar

from fedcel.data import Images, load
from fedcel.errors import DataError
from fedcel.federation import record_names
from fedcel.federation.local_update import COMMON, Steer, Update, codes, full_gradient, local_update
from fedcel.losses import cel, defences
from fedcel.losses.cel.averaged_centres import Averaged, Shared, Statistics, statistics
from fedcel.losses.cel.protocol import State
from fedcel.losses.composite import CEL, Losses, Streams, part
from fedcel.nets.flat_parameters import FlatNet, to_arrays, to_vector
from fedcel.posterior.round_plan import Plan, frozen, plan
from fedcel.privacy.update_noise import clipped, protected
from fedcel.runs import run_folder
from fedcel.seeding import generator
from fedcel.settings.groups import Updates
from fedcel.settings.parsing import Settings

Remember = Callable[[int, State], None]
Recall = Callable[[int], State | None]


class Brought(NamedTuple):
    """What the server brings to a round besides the model, where its settings make it."""

    pull: float | None = None  # replaces the prior's (Li et al., MLSys 2020, eq. 2)
    threshold: float | None = None  # replaces cel.threshold
    shared: Shared | None = None  # the centres averaged over clients
    gradient: torch.Tensor | None = None  # the mean over clients, of this model or the last one
    scale: torch.Tensor | None = None  # a step size for each parameter


OWN_GRADIENT, OWN_ROUND = "control.gradient", "control.round"
"""Of a holder's state: its gradient at the model of a round, and which round."""
NOTHING = Brought()
"""A server that brings the model alone."""


@lru_cache(maxsize=4)
def workspace(settings: Settings) -> FlatNet:
    """Return this process's net of these settings; its content is overwritten by every use."""
    torch.set_num_threads(1)  # several holders share the cores; threads would fight over them
    return run_folder.fresh_net(settings, load(settings.data, settings.clients, settings.seed))


@lru_cache(maxsize=4)
def losses_of(settings: Settings, threshold: float | None = None) -> Losses:
    """Return the losses of these settings, before a round says how much each counts.

    A `threshold` takes the place of `cel.threshold`, whatever loss reads it.
    """
    splits, net = load(settings.data, settings.clients, settings.seed), workspace(settings).net
    moved = {} if threshold is None else {"threshold": threshold}
    own = settings.cel.model_copy(update=moved)
    return Losses(
        cel=cel.build(own, net.cut.sigma, net.features, splits.classes),
        defence=defences.build(settings, splits.shape),
        clip=None if settings.cel.clip == "none" else settings.cel.clip,
    )


def acting(found: Losses, plan: Plan, shared: Shared | None = None) -> Losses:
    """Return the losses that act in a round: none on a frozen encoder or at weight 0.

    With `shared` centres, the conditional entropy loss is around those.
    """
    around = Averaged(found.cel, shared) if found.cel and shared else found.cel
    return found._replace(
        cel=around if plan.cel_acts else None,
        cel_weight=plan.cel_weight,
        defence=found.defence if plan.defence_weight > 0 and not plan.freeze else None,
        defence_weight=plan.defence_weight,
    )


def images(settings: Settings, partition: int) -> Images:
    """Return the training images of one holder; DataError when there is no such partition."""
    if not 0 <= partition < settings.clients:
        raise DataError(
            f"partition-id is {partition}, must be in 0..{settings.clients - 1}; "
            f"set clients to the number of nodes"
        )
    return load(settings.data, settings.clients, settings.seed).clients[partition]


def train(
    settings: Settings,
    flat: FlatNet,
    partition: int,
    received: torch.Tensor,
    number: int,
    share: float,
    total: int,
    state: State | None,
    brought: Brought = NOTHING,
) -> Update:
    """Return one holder's update of round `number`; both engines come through here."""
    parts = losses_of(settings, brought.threshold)  # a wrong setting is no failure to be hidden

    def moved() -> Update:
        x, y = images(settings, partition)
        s, asked = settings, plan(settings, number, share, total)
        asked = asked._replace(threshold=brought.threshold)
        asked = asked if brought.pull is None else asked._replace(pull=brought.pull)
        kept, shift = controlled(
            settings, flat, partition, received, number, state, brought, asked.control
        )
        update = local_update(
            flat,
            received,
            x,
            y,
            asked,
            s.local,
            streams(settings, partition, number),
            acting(parts, asked, brought.shared),
            state,
            s.cel.refresh_every if s.cel.refresh == "epoch" else 0,
            Steer(shift, brought.scale),
        )
        return update._replace(state={**update.state, **kept})

    return outgoing(settings.update, moved, received)


def outgoing(how: Updates, moved: Callable[[], Update], received: torch.Tensor) -> Update:
    """Return the update as it may leave its holder: under noise without metrics of its images.

    Nor does it tell there that it failed, which may depend on them: the warning stays here.
    """
    if how.clip == "none":
        return moved()
    if not how.noise:
        update = moved()
        return update._replace(delta=clipped(update.delta, how.clip).to(update.delta.dtype))
    try:
        update = moved()
    except Exception as error:  # whichever: that it came at all may depend on the images
        warnings.warn(f"the update counts as 0, there is none: {error}", stacklevel=2)
        update = Update(torch.zeros_like(received), {}, {})
    return update._replace(delta=protected(update.delta, how.clip, how.noise), metrics={})


def streams(settings: Settings, partition: int, number: int) -> Streams:
    """Return the random streams of a holder's round; one of them is the same for all holders."""
    return lambda purpose: generator(
        settings.seed, purpose, number, 0 if purpose == COMMON else partition
    )


def gradient(
    settings: Settings, flat: FlatNet, partition: int, received: torch.Tensor, number: int
) -> torch.Tensor:
    """Return the mean gradient of a holder's images at the received model."""
    own, x, y = streams(settings, partition, number), *images(settings, partition)
    return full_gradient(flat, received, x, y, own, frozen(settings, number))


def controlled(
    settings: Settings,
    flat: FlatNet,
    partition: int,
    received: torch.Tensor,
    number: int,
    state: State | None,
    brought: Brought,
    how: str,
) -> tuple[State, torch.Tensor | None]:
    """Return what to remember of the own gradient, and mean less own gradient where both are known.

    `fresh`: both at the received model. `stale`: both at the last round's, if the holder was in it.
    """
    if how == "none":
        return {}, None
    own = gradient(settings, flat, partition, received, number)
    if how == "fresh":
        return {}, None if brought.gradient is None else brought.gradient - own
    kept = {OWN_GRADIENT: own, OWN_ROUND: torch.tensor(float(number))}
    last = (state or {}).get(OWN_ROUND, torch.tensor(-1.0))
    if brought.gradient is None or state is None or int(last) != number - 1:
        return kept, None
    return kept, brought.gradient - state[OWN_GRADIENT]


def told(
    settings: Settings, flat: FlatNet, partition: int, state: State, number: int, total: int
) -> Statistics | None:
    """Return the class centres to send after a round's training, which `flat` ended with.

    None where they are not averaged over clients, or the loss did not act in the round.
    """
    if settings.cel.centres == "own" or not plan(settings, number, 1.0, total).cel_acts:
        return None
    own = part(state, CEL) or {}
    return statistics(own, codes(flat, *images(settings, partition)))


def fit(
    settings: Settings,
    partition: int,
    recall: Recall,
    remember: Remember,
    parameters: NDArrays,
    config: dict[str, Scalar],
) -> tuple[NDArrays, int, dict[str, Scalar]]:
    """Translate between Flower's arrays and `train`; stock strategies send no share.

    The config's `brought` names what follows the model's arrays; so does a metric for the upload's.
    """
    flat = workspace(settings)
    examples = len(images(settings, partition).y)
    number = int(config[record_names.ROUND])
    share, total = (
        float(config.get(record_names.SHARE, 1.0)),
        int(config.get(record_names.TOTAL, examples)),
    )
    layers = len(flat.shapes)
    state = recall(number)
    update = train(
        settings,
        flat,
        partition,
        to_vector(parameters[:layers]),
        number,
        share,
        total,
        state,
        brought(config, parameters[layers:]),
    )
    # A loss without statistics keeps nothing, and what a diverged round left would poison the next.
    if update.state and all(tensor.isfinite().all() for tensor in update.state.values()):
        remember(number, update.state)
    sent = {}
    if found := told(settings, flat, partition, update.state, number, total):
        sent[record_names.STATISTICS] = [tensor.numpy() for tensor in found]
    if OWN_GRADIENT in update.state:
        sent[record_names.GRADIENT] = [update.state[OWN_GRADIENT].numpy()]
    names, arrays = record_names.joined(sent)
    upload = flat.vector if settings.strategy.upload == "weights" else update.delta
    metrics: dict[str, Scalar] = {**reported(update, config), record_names.PARTITION: partition}
    return (
        [*to_arrays(upload, flat.shapes), *arrays],
        examples,
        metrics | {record_names.BROUGHT: names},
    )


def brought(config: dict[str, Scalar], arrays: NDArrays) -> Brought:
    """Return what a message brings besides the model: numbers, and arrays after the model's."""
    found = record_names.parted(
        str(config.get(record_names.BROUGHT, "")), [torch.from_numpy(a) for a in arrays]
    )
    centres = found.get(record_names.CENTRES)
    return Brought(
        pull=float(config[record_names.PROXIMAL]) if record_names.PROXIMAL in config else None,
        threshold=float(config[record_names.THRESHOLD])
        if record_names.THRESHOLD in config
        else None,
        shared=Shared(*centres) if centres else None,
        gradient=found.get(record_names.GRADIENT, [None])[0],
        scale=found.get(record_names.SCALE, [None])[0],
    )


def reported(update: Update, config: dict[str, Scalar]) -> dict[str, float]:
    """Return the metrics; without those of single classes where the strategy is a stock one.

    Flower's strategies refuse replies whose metrics differ in name, and clients' classes differ.
    """
    if record_names.SHARE in config:
        return update.metrics
    return {k: v for k, v in update.metrics.items() if not k.rpartition("-")[2].isdigit()}


def bound_update(
    settings: Settings, partition: int, recall: Recall, remember: Remember
) -> Callable[[NDArrays, dict[str, Scalar]], tuple[NDArrays, int, dict[str, Scalar]]]:
    """Return `fit` bound to one holder."""
    return partial(fit, settings, partition, recall, remember)
