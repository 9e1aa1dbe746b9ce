"""One data holder: its images, its net, its state, bound to the pure local update."""

from collections.abc import Callable
from functools import lru_cache, partial

import torch
from flwr.common import NDArrays, Scalar

from fedcel import cel, defences, runs, wire
from fedcel.arrays import FlatNet, to_arrays, to_vector
from fedcel.cel.base import State
from fedcel.data import Images, load
from fedcel.errors import DataError
from fedcel.losses import Losses
from fedcel.schedule import Plan, plan
from fedcel.seeding import generator
from fedcel.settings import Settings
from fedcel.training import Update, local_update

Remember = Callable[[int, State], None]
Recall = Callable[[int], State | None]


@lru_cache(maxsize=4)
def workspace(settings: Settings) -> FlatNet:
    """Return this process's net of these settings; its content is overwritten by every use."""
    torch.set_num_threads(1)  # several holders share the cores; threads would fight over them
    return runs.fresh_net(settings, load(settings.data, settings.clients, settings.seed))


@lru_cache(maxsize=4)
def losses_of(settings: Settings) -> Losses:
    """Return the losses of these settings, before a round says how much each counts."""
    splits, net = load(settings.data, settings.clients, settings.seed), workspace(settings).net
    return Losses(
        cel=cel.build(settings.cel, net.cut.sigma, net.features, splits.classes),
        defence=defences.build(settings, splits.shape),
        clip=None if settings.cel.clip == "none" else settings.cel.clip,
    )


def acting(found: Losses, plan: Plan) -> Losses:
    """Return the losses that act in a round: none on a frozen encoder or at weight 0."""
    return found._replace(
        cel=found.cel if plan.cel_weight > 0 and not plan.freeze else None,
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
    pull: float | None = None,
) -> Update:
    """Return one holder's update of round `number`; both engines come through here.

    `pull` replaces the prior's where the server brings its own (Li et al., MLSys 2020, eq. 2).
    """
    x, y = images(settings, partition)
    s, asked = settings, plan(settings, number, share, total)
    asked = asked if pull is None else asked._replace(pull=pull)
    return local_update(
        flat,
        received,
        x,
        y,
        asked,
        s.local,
        lambda purpose: generator(s.seed, purpose, number, partition),
        acting(losses_of(s), asked),
        state,
        s.cel.refresh_every if s.cel.refresh == "epoch" else 0,
    )


def fit(
    settings: Settings,
    partition: int,
    recall: Recall,
    remember: Remember,
    parameters: NDArrays,
    config: dict[str, Scalar],
) -> tuple[NDArrays, int, dict[str, Scalar]]:
    """Translate between Flower's arrays and `train`; stock strategies send no share."""
    flat = workspace(settings)
    examples = len(images(settings, partition).y)
    number = int(config[wire.ROUND])
    share, total = float(config.get(wire.SHARE, 1.0)), int(config.get(wire.TOTAL, examples))
    received = to_vector(parameters)
    mu = float(config[wire.PROXIMAL]) if wire.PROXIMAL in config else None
    update = train(settings, flat, partition, received, number, share, total, recall(number), mu)
    if update.state:  # a loss without statistics keeps nothing
        remember(number, update.state)
    upload = flat.vector if settings.strategy.upload == "weights" else update.delta
    metrics: dict[str, Scalar] = {**update.metrics, wire.PARTITION: partition}
    return to_arrays(upload, flat.shapes), examples, metrics


def bound_update(
    settings: Settings, partition: int, recall: Recall, remember: Remember
) -> Callable[[NDArrays, dict[str, Scalar]], tuple[NDArrays, int, dict[str, Scalar]]]:
    """Return `fit` bound to one holder."""
    return partial(fit, settings, partition, recall, remember)
