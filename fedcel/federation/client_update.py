"""The clients' part in a round: images, terms, states, local steps.

Every engine and the Flower client come through `update_clients`.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.data import Images, Splits, load_splits
from fedcel.errors import (
    DataError,
    DivergedError,
    FailedError,
    NetError,
    StackingError,
    describe_unforeseen,
)
from fedcel.federation.local_steps import (
    ClientRound,
    ClientUpdate,
    compute_full_gradient,
    count_batch_images,
    name_obstacle,
    train_clients,
)
from fedcel.losses import (
    CELTerm,
    DefenceTerm,
    GradientRule,
    Streams,
    TermSource,
    WeightedTerm,
    select_state,
)
from fedcel.losses.cel import CutShape, State
from fedcel.nets import CPU, FlatNet, SplitNet, build_net, fastest_device
from fedcel.own_parts import blame_own_parts
from fedcel.posterior import (
    RoundPlan,
    is_encoder_frozen,
    list_trained_parameters,
    plan_round,
)
from fedcel.privacy import add_update_noise, clip_update
from fedcel.seeding import make_generator
from fedcel.settings import Settings, UpdateSettings, burn_in_rounds, check_schedule
from fedcel.short_repr import summarise_record
from fedcel.torch_state import usual_torch_state

PARAMETERS_AT_ONCE = 2**20
"""Parameters of all clients of a batch on a processor: more would leave its fast memory."""
DEVICE_PARAMETERS_AT_ONCE = 2**26
"""The same on a GPU, whose memory is the limit."""
MOST_CLIENTS = 64
"""Clients of a batch on a processor at most."""
DEVICE_MOST_CLIENTS = 1024
"""The same on a GPU, which takes a step of many in the time of a step of few."""
_BATCHES_AHEAD = 8
"""Batches of clients whose updates may wait for each other, so that equal sizes come together."""

ReportObstacle = Callable[[str], None]
"""Is told why clients are trained one after the other."""


class RoundInputs(NamedTuple):
    """What the server sends to every client of a round; None where the settings do not use it.

    Attributes:
        round_number: Counted from 1.
        model: The global parameters (P,).
        total_examples: N, the training images of all clients.
        proximal: Pull towards the model beside the prior's, as of FedProx.
        threshold: Replaces `cel.threshold`.
        gamma: Upper limit of gamma, beside the ramp.
        gradient: Mean gradient (P,) of the clients at this model, of a control variate.
    """

    round_number: int
    model: Float[Tensor, " P"]
    total_examples: int
    proximal: float = 0.0
    threshold: float | None = None
    gamma: float | None = None
    gradient: Float[Tensor, " P"] | None = None

    def __repr__(self) -> str:
        """Show shapes in the place of numbers."""
        return summarise_record(self)


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
        settings.defence.adapt_net(settings.net),
        splits.shape,
        splits.classes,
        make_generator(settings.seed, "net", settings.net.seed),
        cut=settings.defence.build_cut(settings.net),
    )
    flat = FlatNet(settings.defence.end_encoder(plain, splits.shape, settings))
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


@lru_cache(maxsize=4)
def build_client_nets(settings: Settings, count: int) -> FlatNet:
    """Build this process's nets of some clients, where they are trained; callers share the memory.

    Args:
        settings: The run's settings.
        count: Clients that are trained at once.

    Returns:
        Nets to work with.

    Raises:
        StackingError: Several clients cannot be computed at once.
    """
    flat = build_workspace_net(settings)
    device = fastest_device(flat.net)
    if device != CPU:
        return flat.copy_to(device, count)
    return flat if count == 1 else FlatNet(flat.net, count)


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
def build_terms(settings: Settings, threshold: float | None = None) -> tuple[WeightedTerm, ...]:
    """Build the terms of these settings, before a round says how much each counts.

    Args:
        settings: The run's settings.
        threshold: Takes the place of `cel.threshold`, whatever loss reads it.

    Returns:
        The conditional entropy loss and the defence, where there are such, with weight 0.

    Raises:
        SettingsError: The options of a loss do not fit together.
        PluginError: A user's loss cannot be built.
    """
    splits = load_splits(settings.data, settings.clients, settings.seed)
    return bind_terms(settings, build_workspace_net(settings).net, splits, threshold)


def bind_terms(
    settings: Settings, net: SplitNet, splits: Splits, threshold: float | None = None
) -> tuple[WeightedTerm, ...]:
    """Bind the losses of these settings to a net; see `build_terms`.

    Args:
        settings: The run's settings.
        net: The net.
        splits: The images of the run, which say shape and number of classes.
        threshold: Takes the place of `cel.threshold`.

    Returns:
        The terms, with weight 0.
    """
    cut = describe_cut(settings, net, splits.classes, splits.shape)
    options = settings.cel
    if threshold is not None:
        options = options.model_copy(update={"threshold": threshold})
    loss, defence = options.bind(cut), settings.defence.bind(cut, settings)
    terms = []
    if loss is not None:
        rule = GradientRule(
            None if options.clip == "none" else options.clip,
            options.passes == "two" or options.momentum > 0,
            options.momentum,
        )
        positions = 1 if options.pool == "flatten" else net.positions
        source = _name_source("cel.kind", options.kind, "cel.weight")
        terms.append(WeightedTerm("cel", CELTerm(loss, positions), 0.0, rule, source))
    if defence is not None:
        check_schedule(settings, "defence.name", settings.defence.name)
        source = _name_source("defence.name", settings.defence.name, "defence.strength")
        terms.append(WeightedTerm("defence", DefenceTerm(defence), 0.0, source=source))
    return tuple(terms)


def describe_cut(
    settings: Settings, net: SplitNet, classes: int, image: tuple[int, ...] = ()
) -> CutShape:
    """Describe to the losses what passes the cut of a net.

    Args:
        settings: The run's settings, which say how features are bounded.
        net: The net.
        classes: C.
        image: An image's shape, (C, H, W).

    Returns:
        Sizes, noise and range of the features.
    """
    return CutShape(
        classes=classes,
        features=net.features,
        sigma=net.cut.sigma,
        positions=net.positions,
        image=image,
        is_unit_box=getattr(settings.net, "bound", "sigmoid") == "sigmoid",
    )


def _name_source(setting: str, value: str, weight: str) -> TermSource:
    """Return how errors name a loss, and what they advise where it is not finite."""
    remedy = "keep it finite" if ":" in value else f"lower local.rate, or {weight}"
    return TermSource(f"{setting} {value!r}", remedy)


def weigh_terms(terms: Sequence[WeightedTerm], plan: RoundPlan) -> list[WeightedTerm]:
    """Leave the terms that act in a round, with their weights: none on a frozen encoder.

    Args:
        terms: Those of the settings.
        plan: The round's constants.

    Returns:
        The terms that act.
    """
    weights = {"cel": plan.cel_weight, "defence": plan.defence_weight}
    weighted = [term._replace(weight=weights[term.name]) for term in terms]
    return [term for term in weighted if term.weight > 0 and not plan.is_encoder_frozen]


def find_obstacle(settings: Settings) -> str | None:
    """Name a loss that keeps clients from being computed at once.

    Args:
        settings: The run's settings.

    Returns:
        A reason, None where nothing is known; a user's own net shows it when it is tried.
    """
    return name_obstacle(build_terms(settings))


def count_clients_at_once(settings: Settings) -> int:
    """Choose how many clients are computed at once: as many as their parameters leave room for.

    Args:
        settings: The run's settings.

    Returns:
        Their number, 1 or more.
    """
    if find_obstacle(settings):
        return 1
    flat = build_workspace_net(settings)
    room, most = PARAMETERS_AT_ONCE, MOST_CLIENTS
    if fastest_device(flat.net) != CPU:
        room, most = DEVICE_PARAMETERS_AT_ONCE, DEVICE_MOST_CLIENTS
    return min(most, max(1, room // len(flat.vector)))


def update_clients(
    settings: Settings,
    weights: Mapping[int, float],
    inputs: RoundInputs,
    *,
    read_state: Callable[[int], State | None] = lambda client: None,
    at_once: int = 1,
    report_obstacle: ReportObstacle = lambda reason: None,
) -> Iterator[ClientUpdate]:
    """Train the clients of a round: every engine and the Flower client come through here.

    Clients are computed at once if their batches are equally large. Those that cannot be, and one
    that diverges, for its error, are trained one after the other.

    Args:
        settings: The run's settings.
        weights: w_k of each client, by partition; decides the size of its Langevin noise.
        inputs: What the server sends.
        read_state: Returns what a client kept of earlier rounds, None before its first.
        at_once: Clients computed at once, at most.
        report_obstacle: Is called with the reason where clients cannot be computed at once.

    Yields:
        Each client's update, in the order of `weights`, protected as `settings.update` says; the
        same whatever `at_once` is, up to the order of sums.

    Raises:
        FedcelError: The settings are wrong, the training diverged, or a user's own part failed; see
            `protect_update` for what a client with noisy updates tells of it.
    """
    terms, trained = _plan_terms(settings, inputs)
    train = partial(_train_batch, settings, weights, inputs, terms=terms)
    remaining, obstacle = iter(weights), None

    @usual_torch_state()
    def train_window(window: Sequence[int]) -> dict[int, ClientUpdate]:
        nonlocal obstacle
        states = {client: read_state(client) for client in window}
        updates = {}
        for batch in _group_clients(
            settings, window, states, terms=terms, inputs=inputs, at_once=at_once
        ):
            together: list[ClientUpdate] = []
            if len(batch) > 1 and obstacle is None:
                try:
                    together = train(batch, states=states)
                except DivergedError:
                    pass  # is raised again where it is one client's
                except Exception as error:  # the same, where it is no obstacle
                    is_known = isinstance(error, StackingError)
                    obstacle = str(error) if is_known else describe_unforeseen(error)
                    report_obstacle(obstacle)
            for client, update in zip(batch, together, strict=False):
                if update.model.isfinite().all():
                    updates[client] = clip_and_perturb(
                        settings.update, update, inputs.model, trained
                    )
            for client in batch:
                if client not in updates:
                    alone = partial(train, [client], states=states)
                    updates[client] = _train_alone(
                        settings, client, inputs, alone, state=states[client], trained=trained
                    )
        return updates

    while window := list(islice(remaining, _BATCHES_AHEAD * at_once)):
        updates = train_window(window)
        for client in window:
            yield updates.pop(client)


@usual_torch_state()
def _plan_terms(
    settings: Settings, inputs: RoundInputs
) -> tuple[list[WeightedTerm], Int[Tensor, " M"] | None]:
    """Return the terms that act in a round, and the positions of the parameters that are trained.

    Outside `protect_update`: a wrong setting must raise, and not count as a zero update.
    """
    terms = weigh_terms(build_terms(settings, inputs.threshold), plan_client(settings, 1.0, inputs))
    return terms, list_trained_parameters(build_workspace_net(settings).net)


def _train_alone(
    settings: Settings,
    client: int,
    inputs: RoundInputs,
    train: Callable[[], list[ClientUpdate]],
    *,
    state: State | None,
    trained: Int[Tensor, " M"] | None,
) -> ClientUpdate:
    """Train one client, and name it in what it raises."""
    try:
        with blame_own_parts(settings):
            return protect_update(
                settings.update, lambda: train()[0], inputs.model, state, trained=trained
            )
    except FailedError as error:
        raise type(error)(f"round {inputs.round_number}, client {client}: {error}") from error


def _group_clients(
    settings: Settings,
    clients: Sequence[int],
    states: Mapping[int, State | None],
    *,
    terms: Sequence[WeightedTerm],
    inputs: RoundInputs,
    at_once: int,
) -> Iterator[list[int]]:
    """Yield clients whose batches are equally large and who all, or none, have a state."""
    if at_once == 1:
        yield from ([client] for client in clients)
        return
    is_frozen = is_encoder_frozen(settings, inputs.round_number)
    groups: dict[tuple[object, ...], list[int]] = {}
    for client in clients:
        labels = select_client_images(settings, client).y
        size = count_batch_images(labels, settings.local, is_encoder_frozen=is_frozen)
        has_states = [select_state(states[client], term.name) is not None for term in terms]
        groups.setdefault((size, *has_states), []).append(client)
    for group in groups.values():
        for piece in torch.tensor(group).tensor_split(-(-len(group) // at_once)):
            yield piece.tolist()


def _train_batch(
    settings: Settings,
    weights: Mapping[int, float],
    inputs: RoundInputs,
    clients: Sequence[int],
    *,
    terms: Sequence[WeightedTerm],
    states: Mapping[int, State | None],
) -> list[ClientUpdate]:
    """Train clients at once, without a look at what may leave them."""
    return train_clients(
        build_client_nets(settings, len(clients)),
        inputs.model,
        [
            prepare_client(settings, client, weights[client], inputs, state=states[client])
            for client in clients
        ],
        local=settings.local,
        terms=terms,
        refresh_every=settings.cel.refresh_epochs,
    )


def prepare_client(
    settings: Settings, client: int, weight: float, inputs: RoundInputs, *, state: State | None
) -> ClientRound:
    """Gather what a client's round needs.

    Args:
        settings: The run's settings.
        client: Its partition, from 0.
        weight: w_k that the server gives to its delta.
        inputs: What the server sends.
        state: What the client kept of earlier rounds, None before its first.

    Returns:
        What its local steps take. The control variate is the clients' mean gradient less its own
        (Karimireddy et al., ICML 2020, SCAFFOLD, eq. 3), both at the received model.
    """
    plan = plan_client(settings, weight, inputs)
    variate = None
    if plan.control != "none" and inputs.gradient is not None:
        gradient = compute_client_gradient(settings, client, inputs.model, inputs.round_number)
        variate = inputs.gradient - gradient
    return ClientRound(
        select_client_images(settings, client),
        plan,
        make_client_streams(settings, client, inputs.round_number),
        state,
        variate,
    )


def plan_client(settings: Settings, weight: float, inputs: RoundInputs) -> RoundPlan:
    """Compute the constants of one client's round, with what the server's inputs change."""
    return plan_round(
        settings,
        inputs.round_number,
        weight,
        inputs.total_examples,
        gamma=inputs.gamma,
        proximal=inputs.proximal,
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
