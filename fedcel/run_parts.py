"""Parts of a run: what settings become, for clients and for the server.

The last place that reads the settings of a training; what computes takes these objects and plain
arguments.
"""

from contextlib import nullcontext
from functools import cache, lru_cache, partial
from math import inf

import torch

from fedcel.data import Images, Splits, load_splits
from fedcel.errors import DataError, NetError, PluginError
from fedcel.federation import (
    ClientParts,
    ServerParts,
    ServerState,
    combine_deltas,
    declare_nll,
    init_server_state,
    name_obstacle,
    select_clients,
)
from fedcel.losses import (
    SHARE,
    MetricRange,
    MetricScale,
    WeightedTerm,
)
from fedcel.losses.cel import CutShape, init_control, move_control
from fedcel.nets import (
    CPU,
    NOISE_LIMIT,
    FlatNet,
    ImportedNet,
    OwnNet,
    SplitNet,
    build_net,
    fast_precision,
    fastest_device,
)
from fedcel.own_parts import blame_own_parts, list_own_parts
from fedcel.posterior import RoundSchedule
from fedcel.settings import OWN_STRATEGY, Settings
from fedcel.torch_state import make_generator, usual_torch_state

PARAMETERS_AT_ONCE = 2**20
"""Parameters of all clients of a batch on a processor: more would leave its fast memory."""
DEVICE_PARAMETERS_AT_ONCE = 2**26
"""The same on a GPU, whose memory is the limit."""
MOST_CLIENTS = 64
"""Clients of a batch on a processor at most."""
DEVICE_MOST_CLIENTS = 1024
"""The same on a GPU, which takes a step of many in the time of a step of few."""
_USUAL_INFORMATION = 1e4  # nats of an update; unequal clients differ by orders of magnitude


@lru_cache(maxsize=4)
def build_client_parts(settings: Settings) -> ClientParts:
    """Build what clients train with, each part at its first use; equal settings share it."""
    return ClientParts(
        images=lru_cache(maxsize=1)(partial(select_client_images, settings)),  # memory for one
        workspace=cache(partial(build_workspace_net, settings)),
        nets=partial(build_client_nets, settings),
        schedule=build_schedule(settings),
        update=settings.update,
        seed=settings.seed,
        blame=partial(blame_own_parts, settings) if list_own_parts(settings) else nullcontext,
    )


@lru_cache(maxsize=8)
def build_server_parts(settings: Settings, classes: int | None = None) -> ServerParts:
    """Build what the server computes rounds with; None: the number of classes is not known."""
    rule = settings.strategy
    is_mean = (rule.name, rule.aggregation) == (OWN_STRATEGY, "mean")
    return ServerParts(
        schedule=build_schedule(settings),
        select=partial(select_clients, settings.seed, settings.clients, settings.clients_per_round),
        combine=partial(combine_deltas, rule.aggregation),
        momentum=rule.momentum,
        least_share=rule.least_share,
        metrics=declare_metrics(settings, classes),
        classes=classes,
        has_noisy_updates=settings.update.noise > 0,
        takes_mean=is_mean,
        move_control=partial(move_control, cel=settings.cel, rounds=settings.rounds),
    )


def build_schedule(settings: Settings) -> RoundSchedule:
    """Build the schedules of step size, priors, temperature and losses."""
    return RoundSchedule(
        rounds=settings.rounds,
        local=settings.local,
        prior=settings.prior,
        chain=settings.chain,
        temperature=settings.temperature,
        gain=settings.strategy.gain,
        terms=partial(build_terms, settings),
    )


def init_run_state(settings: Settings, flat: FlatNet) -> ServerState:
    """Make the server's state before round 1, `flat` holding the first parameters."""
    cut = describe_cut(flat.net, 0)
    return init_server_state(flat.vector)._replace(
        control=init_control(settings.cel, cut),
        trained=flat.trained,
    )


@usual_torch_state()
def init_net(settings: Settings, splits: Splits) -> FlatNet:
    """Build the net, its defence included, with the parameters that `seed` and `net.seed` decide.

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
        noise_shape=settings.defence.noise_shape,
    )
    net = settings.defence.end_encoder(plain, splits.shape, settings)
    precision = (
        fast_precision(net, fastest_device(net))
        if settings.local.precision == "auto"
        else getattr(torch, settings.local.precision)
    )
    flat = FlatNet(net, precision=precision)
    samples_head = (
        settings.chain.scope == "head"
        and settings.chain.burn_in_rounds(settings.rounds) < settings.rounds
    )
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
    """Build this process's net, once: all users share its memory, and load it first."""
    return init_net(settings, load_splits(settings.data, settings.clients, settings.seed))


@lru_cache(maxsize=4)
def build_client_nets(settings: Settings, count: int) -> FlatNet:
    """Build this process's nets of `count` clients, trained at once; callers share the memory.

    StackingError where several clients cannot be computed at once.
    """
    flat = build_workspace_net(settings)
    device = fastest_device(flat.net)
    if device != CPU:
        return flat.copy_to(device, count)
    return flat if count == 1 else FlatNet(flat.net, count, flat.precision)


def select_client_images(settings: Settings, client: int) -> Images:
    """Select the training images of a client; DataError where there is none of its number."""
    if not 0 <= client < settings.clients:
        raise DataError(
            f"partition-id is {client}, must be in 0..{settings.clients - 1}; "
            f"set clients to the number of nodes"
        )
    return load_splits(settings.data, settings.clients, settings.seed).clients[client]


@lru_cache(maxsize=4)
def build_terms(settings: Settings) -> tuple[WeightedTerm, ...]:
    """Build the conditional entropy loss and the defence, where there are such.

    Raises:
        SettingsError: The options of a loss do not fit together.
        PluginError: A user's loss cannot be built, or has a metric of the other loss's.
    """
    splits = load_splits(settings.data, settings.clients, settings.seed)
    return bind_terms(settings, build_workspace_net(settings).net, splits)


def bind_terms(settings: Settings, net: SplitNet, splits: Splits) -> tuple[WeightedTerm, ...]:
    """Bind the losses to a net; see `build_terms`."""
    cut = describe_cut(net, splits.classes, splits.shape)
    cel, defence = settings.cel, settings.defence
    built = cel.make_term(cut, settings), defence.make_term(cut, settings)
    terms = tuple(term for term in built if term is not None)
    names = [name for term in terms for name in term.term.metric_names]
    if shared := sorted({name for name in names if names.count(name) > 1}):
        raise PluginError(
            f"cel.kind {cel.kind!r} and defence.name {defence.name!r} both report the metric "
            f"{', '.join(shared)}, and a round keeps one number a name; rename it in your own part"
        )
    return terms


def describe_cut(net: SplitNet, classes: int, image: tuple[int, ...] = ()) -> CutShape:
    """Describe to the losses what passes the cut of a net, for images (C, H, W)."""
    return CutShape(
        classes=classes,
        features=net.features,
        sigma=net.cut.sigma,
        positions=net.positions,
        image=image,
    )


def count_clients_at_once(settings: Settings) -> int:
    """Choose how many clients are computed at once: by their room, as far as losses allow."""
    if name_obstacle(build_terms(settings)):
        return 1
    flat = build_workspace_net(settings)
    room, most = PARAMETERS_AT_ONCE, MOST_CLIENTS
    if fastest_device(flat.net) != CPU:
        room, most = DEVICE_PARAMETERS_AT_ONCE, DEVICE_MOST_CLIENTS
    return min(most, max(1, room // len(flat.vector)))


def declare_metrics(settings: Settings, classes: int | None = None) -> dict[str, MetricRange]:
    """Declare the range of each metric that clients report, except those of a user's own loss."""
    is_own_net = isinstance(settings.net, ImportedNet)  # its head may minimise what it likes
    declared = {
        "loss": declare_nll(classes)._replace(lowest=-inf if is_own_net else 0.0),
        "clipped": SHARE,
        "update-information": MetricRange(0.0, inf, _USUAL_INFORMATION),
    }
    features = settings.defence.adapt_net(settings.net).features
    is_bounded = isinstance(settings.net, OwnNet)
    is_one_sd = settings.defence.noise_shape == "one"
    largest = features * (1.0 if is_one_sd else NOISE_LIMIT**2)  # in units of the noise
    spread = MetricRange(0.0, largest if is_bounded else inf, largest)
    scale = MetricScale(spread, features, settings.local.batch_size)
    of_losses = {**settings.cel.metric_ranges, **settings.defence.metric_ranges}
    return declared | {name: r(scale) if callable(r) else r for name, r in of_losses.items()}
