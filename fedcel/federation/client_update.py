"""One client's part in a round: its images, its losses, its state, the local update.

Every engine and the Flower client come through `update_client`.
"""

import warnings
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.data import Images, Splits, load_splits
from fedcel.errors import DataError, FailedError, NetError
from fedcel.federation.local_update import (
    ClientRound,
    compute_full_gradient,
    local_update,
)
from fedcel.losses import Losses, Streams, TermSource, cel, defences
from fedcel.losses.cel import State
from fedcel.nets import CPU, FlatNet, StackedNet, build_net, fastest_device
from fedcel.own_parts import blame_own_parts
from fedcel.posterior import (
    RoundPlan,
    is_encoder_frozen,
    list_trained_parameters,
    plan_round,
)
from fedcel.privacy import add_update_noise, clip_update
from fedcel.seeding import make_generator
from fedcel.settings import Settings, UpdateSettings, burn_in_rounds
from fedcel.short_repr import summarise_record
from fedcel.torch_state import usual_torch_state


class RoundInputs(NamedTuple):
    """What the server sends to every client of a round; what its settings do not use is None."""

    round_number: int
    """Counted from 1."""
    model: Float[Tensor, " P"]
    """The global parameters."""
    total_examples: int
    """N, the training images of all clients."""
    proximal: float | None = None
    """Replaces the prior's pull (Li et al., MLSys 2020, eq. 2)."""
    threshold: float | None = None
    """Replaces `cel.threshold`."""
    gamma: float | None = None
    """What gamma is at most, beside the ramp."""
    gradient: Float[Tensor, " P"] | None = None
    """The mean over clients at this model, where there is a control variate."""

    def __repr__(self) -> str:
        """Show shapes in the place of numbers."""
        return summarise_record(self)


class ClientUpdate(NamedTuple):
    """What a client's round gives. Of this only the state stays with the client."""

    delta: Float[Tensor, " P"]
    model: Float[Tensor, " P"]
    """The parameters after the round, for strategies that average weights."""
    state: State
    metrics: dict[str, float]
    state_round: int = 0
    """The round whose state the client starts from the next time, 0: it keeps none."""
    has_lost_state: bool = False
    """Whether it began afresh because the state of its last round was not there."""

    def __repr__(self) -> str:
        """Show shapes in the place of numbers."""
        return summarise_record(self)


class StackedNets:
    """A net where it is trained, and its copies for several clients at once."""

    def __init__(self, flat: FlatNet) -> None:
        device = fastest_device(flat.net)
        self.flat = flat if device == CPU else flat.copy_to(device)
        self._stacks: dict[int, StackedNet] = {}

    def stack(self, count: int) -> StackedNet:
        """Return the copies for so many clients, whose memory the next that ask for them share."""
        if count not in self._stacks:
            self._stacks[count] = StackedNet(self.flat, count)
        return self._stacks[count]


@usual_torch_state()
def init_net(settings: Settings, splits: Splits) -> FlatNet:
    """Build the net of these settings, its defence included, with the parameters of round 0.

    Args:
        settings: The run's settings; `seed` and `net.seed` decide the parameters.
        splits: The images of the run, which say shape and number of classes.

    Returns:
        The net, its parameters in one vector.

    Raises:
        NetError: The parts of the net do not fit together, the images do not fit it, or the
            head that is to be sampled is frozen.
        PluginError: A user's net or defence cannot be built.
    """
    plain = build_net(
        defences.defended_net_settings(settings),
        splits.shape,
        splits.classes,
        make_generator(settings.seed, "net", settings.net.seed),
        cut=defences.build_cut(settings),
    )
    flat = FlatNet(defences.apply_transform(settings, splits.shape, plain))
    samples_head = settings.chain.scope == "head" and burn_in_rounds(settings) < settings.rounds
    if samples_head and not any(
        parameter.requires_grad for parameter in flat.net.head.parameters()
    ):
        raise NetError(
            f"all parameters of the head of net.name {settings.net.name!r} have "
            "requires_grad=False, and chain.scope 'head' samples nothing else; set "
            "requires_grad=True there, or chain.scope to 'full'"
        )
    return flat


@lru_cache(maxsize=4)
def build_workspace_net(settings: Settings) -> FlatNet:
    """Build this process's net of these settings, once; all that use it share its memory.

    Whoever uses it loads its parameters first.

    Args:
        settings: The run's settings.

    Returns:
        A net to work with.
    """
    return init_net(settings, load_splits(settings.data, settings.clients, settings.seed))


@lru_cache(maxsize=2)
def build_stacked_nets(settings: Settings) -> StackedNets:
    """Build this process's nets of several clients at once; all that use them share the memory.

    Args:
        settings: The run's settings.

    Returns:
        Nets to work with.
    """
    return StackedNets(build_workspace_net(settings))


def select_client_images(settings: Settings, client: int) -> Images:
    """Return the training images of one client.

    Args:
        settings: The run's settings.
        client: Its partition, from 0.

    Returns:
        Images and labels.

    Raises:
        DataError: There is no such client.
    """
    if not 0 <= client < settings.clients:
        raise DataError(
            f"partition-id is {client}, must be in 0..{settings.clients - 1}; "
            f"set clients to the number of nodes"
        )
    return load_splits(settings.data, settings.clients, settings.seed).clients[client]


@lru_cache(maxsize=4)
def build_client_losses(settings: Settings, threshold: float | None = None) -> Losses:
    """Build the losses of these settings, before a round says how much each counts.

    Args:
        settings: The run's settings.
        threshold: Takes the place of `cel.threshold`, whatever loss reads it.

    Raises:
        SettingsError: The options of a loss do not fit together.
        PluginError: A user's loss cannot be built.
    """
    splits = load_splits(settings.data, settings.clients, settings.seed)
    net = build_workspace_net(settings).net
    changes = {} if threshold is None else {"threshold": threshold}
    return Losses(
        cel=cel.build_net_cel(settings.cel.model_copy(update=changes), net, splits.classes),
        defence=defences.build_defence(settings, splits.shape, splits.classes),
        clip=None if settings.cel.clip == "none" else settings.cel.clip,
        has_two_passes=settings.cel.passes == "two" or settings.cel.momentum > 0,
        cel_momentum=settings.cel.momentum,
        cel_source=_name_source("cel.kind", settings.cel.kind, "cel.weight"),
        defence_source=_name_source("defence.name", settings.defence.name, "defence.strength"),
    )


def _name_source(setting: str, value: str, weight: str) -> TermSource:
    """Return how errors name a loss, and what they advise where it is not finite."""
    remedy = "keep it finite" if ":" in value else f"lower local.rate, or {weight}"
    return TermSource(f"{setting} {value!r}", remedy)


@usual_torch_state()
def update_client(
    settings: Settings,
    client: int,
    weight: float,
    inputs: RoundInputs,
    *,
    state: State | None = None,
) -> ClientUpdate:
    """Train one client for a round: every engine and the Flower client come through here.

    Args:
        settings: The run's settings.
        client: Its partition, from 0.
        weight: w_k that the server gives to its delta; decides the size of its Langevin noise.
        inputs: What the server sends.
        state: What the client kept of earlier rounds, None before its first.

    Returns:
        What the client sends, and what it keeps; protected as `settings.update` says.

    Raises:
        FedcelError: The settings are wrong, the training diverged, or a user's own part failed; see
            `protect_update` for what a client with noisy updates tells of it.
    """
    # Built outside protect_update: a wrong setting must raise, not count as a zero update.
    losses = build_client_losses(settings, inputs.threshold)
    train = partial(_train_client, settings, client, weight, inputs, losses=losses, state=state)
    try:
        with blame_own_parts(settings):
            trained = list_trained_parameters(build_workspace_net(settings).net)
            return protect_update(settings.update, train, inputs.model, state, trained=trained)
    except FailedError as error:
        raise type(error)(f"round {inputs.round_number}, client {client}: {error}") from error


def _train_client(
    settings: Settings,
    client: int,
    weight: float,
    inputs: RoundInputs,
    *,
    losses: Losses,
    state: State | None,
) -> ClientUpdate:
    """Train without a look at what may leave the client."""
    prepared = prepare_client(settings, client, weight, inputs, losses=losses, state=state)
    images, plan, streams, acting, state, control_variate = prepared
    update = local_update(
        build_workspace_net(settings),
        inputs.model,
        images,
        plan=plan,
        local=settings.local,
        streams=streams,
        losses=acting,
        state=state,
        refresh_every=count_refresh_epochs(settings),
        control_variate=control_variate,
    )
    return ClientUpdate(*update)


def prepare_client(
    settings: Settings,
    client: int,
    weight: float,
    inputs: RoundInputs,
    *,
    losses: Losses,
    state: State | None,
) -> ClientRound:
    """Gather what a client brings to its round.

    Args:
        settings: The run's settings.
        client: Its partition, from 0.
        weight: w_k that the server gives to its delta.
        inputs: What the server sends.
        losses: As `build_client_losses` makes them.
        state: What the client kept of earlier rounds, None before its first.

    Returns:
        What its local update takes.
    """
    plan = plan_client(settings, weight, inputs)
    control_variate = None
    if plan.control == "fresh" and inputs.gradient is not None:
        # Karimireddy et al., ICML 2020 (SCAFFOLD), eq. 3
        gradient = compute_client_gradient(settings, client, inputs.model, inputs.round_number)
        control_variate = inputs.gradient - gradient
    return ClientRound(
        select_client_images(settings, client),
        plan,
        make_client_streams(settings, client, inputs.round_number),
        select_acting_losses(losses, plan),
        state,
        control_variate,
    )


def count_refresh_epochs(settings: Settings) -> int:
    """Return the local epochs between two refreshes of the CEL's statistics, 0: one a round."""
    return settings.cel.refresh_every if settings.cel.refresh == "epoch" else 0


def plan_client(settings: Settings, weight: float, inputs: RoundInputs) -> RoundPlan:
    """Compute the constants of one client's round, with what the server's inputs replace."""
    plan = plan_round(
        settings, inputs.round_number, weight, inputs.total_examples, gamma=inputs.gamma
    )
    plan = plan._replace(threshold=inputs.threshold)
    return plan if inputs.proximal is None else plan._replace(pull=inputs.proximal)


def select_acting_losses(losses: Losses, plan: RoundPlan) -> Losses:
    """Leave the losses that act in a round: none on a frozen encoder or at weight 0.

    Args:
        losses: Those of the settings.
        plan: The round's constants.

    Returns:
        The losses that act, with their weights in the round.
    """
    return losses._replace(
        cel=losses.cel if plan.cel_acts else None,
        cel_weight=plan.cel_weight,
        defence=losses.defence if plan.defence_weight > 0 and not plan.is_encoder_frozen else None,
        defence_weight=plan.defence_weight,
    )


def make_client_streams(settings: Settings, client: int, number: int) -> Streams:
    """Return the random streams of a client's round."""
    return lambda purpose: make_generator(settings.seed, purpose, number, client)


@usual_torch_state()
def compute_client_gradient(
    settings: Settings, client: int, model: Float[Tensor, " P"], number: int
) -> Float[Tensor, " P"]:
    """Compute the mean gradient of a client's images at the received model.

    Args:
        settings: The run's settings.
        client: Its partition, from 0.
        model: The received parameters, (P,).
        number: The round.

    Returns:
        The gradient (P,), 0 where the encoder stands still.
    """
    return compute_full_gradient(
        build_workspace_net(settings),
        model,
        select_client_images(settings, client),
        streams=make_client_streams(settings, client, number),
        is_encoder_frozen=is_encoder_frozen(settings, number),
    )


def protect_update(
    protection: UpdateSettings,
    train: Callable[[], ClientUpdate],
    received: Float[Tensor, " P"],
    state: State | None = None,
    *,
    trained: Int[Tensor, " M"] | None = None,
) -> ClientUpdate:
    """Clip and perturb an update before it leaves the client.

    With noise, metrics are dropped and a failed training counts as a zero update, since both may
    depend on the images. The client warns on its own side, and keeps its earlier state.

    Args:
        protection: Clip and noise of the updates.
        train: Makes the update.
        received: The model that the round started from, (P,).
        state: What the client kept of earlier rounds.
        trained: As of `clip_and_perturb`.

    Returns:
        The update, clipped and perturbed as the settings say.
    """
    if protection.clip == "none" or not protection.noise:
        return clip_and_perturb(protection, train(), received, trained)
    try:
        update = train()
    except Exception as error:  # whichever: that it came at all may depend on the images
        warnings.warn(f"the update counts as 0, there is none: {error}", stacklevel=2)
        update = ClientUpdate(torch.zeros_like(received), received, state or {}, {})
    return clip_and_perturb(protection, update, received, trained)


def clip_and_perturb(
    protection: UpdateSettings,
    update: ClientUpdate,
    received: Float[Tensor, " P"],
    trained: Int[Tensor, " M"] | None = None,
) -> ClientUpdate:
    """Clip and perturb what a training gave; with noise its metrics are dropped.

    Args:
        protection: Clip and noise of the updates.
        update: As it was trained.
        received: The model that the round started from, (P,).
        trained: Positions of the parameters that are trained, the only ones that get noise; None:
            all are.

    Returns:
        The update, clipped and perturbed as the settings say.
    """
    if protection.clip == "none":
        return update
    if not protection.noise:
        delta = clip_update(update.delta, protection.clip).to(update.delta.dtype)
        return update._replace(delta=delta, model=received + delta)
    moving = slice(None) if trained is None else trained
    delta = torch.zeros_like(update.delta)
    delta[moving] = add_update_noise(update.delta[moving], protection.clip, protection.noise)
    return ClientUpdate(delta, received + delta, update.state, {})
