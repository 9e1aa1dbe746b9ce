"""The server's state, and what moves it: the mean delta, the clients' centres, the scores."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.federation.aggregation import slide_average
from fedcel.losses.cel import (
    CentreStatistics,
    SharedCentres,
    ThresholdControl,
    WeightControl,
    adaptive_threshold,
    adaptive_weight,
    averaged_centres,
    count_seen_features,
)
from fedcel.nets import SplitNet
from fedcel.posterior import RoundPlan, list_trained_parameters, plan_round
from fedcel.seeding import make_generator
from fedcel.settings import Settings, burn_in_rounds
from fedcel.short_repr import summarise_record

_SPEED_MEMORY = 0.95  # of the running mean of squares, each round


class ServerState(NamedTuple):
    """All that the next round needs of the server."""

    round: int
    model: Float[Tensor, " P"]
    average: Float[Tensor, " P"]
    """m, the sliding average of deltas."""
    threshold: ThresholdControl | None = None
    """The state of an adaptive threshold."""
    centres: SharedCentres | None = None
    """Class centres averaged over clients."""
    gradient: Float[Tensor, " P"] | None = None
    """The mean over the last round's clients, if they send theirs."""
    squared_speed: Float[Tensor, " P"] | None = None
    """The running mean of the model's squared movement, for a preconditioner."""
    examples: Mapping[int, int] | None = None
    """Partition -> N_k, once nodes have told."""
    has_node_data: bool = False
    """Whether a node trained on images that are not the server's to deal."""
    weight: WeightControl | None = None
    """The state of an adaptive gamma."""
    trained: Int[Tensor, " M"] | None = None
    """Positions of the parameters that are trained; None: all are."""
    state_rounds: Mapping[int, int] | None = {}
    """Partition -> the round whose state it starts from, if it keeps one; None: not known, in a
    run that an earlier version began."""

    def find_state_round(self, client: int) -> int | None:
        """Find the round whose state a client starts from: 0: none; None: not known."""
        return None if self.state_rounds is None else self.state_rounds.get(client, 0)

    @property
    def gamma(self) -> float | None:
        """What gamma is at most in the next round; None where only the schedule limits it."""
        return None if self.weight is None else self.weight.gamma

    def __repr__(self) -> str:
        """Show shapes in the place of numbers."""
        return summarise_record(self)


def init_server_state(
    model: Float[Tensor, " P"],
    settings: Settings | None = None,
    net: SplitNet | None = None,
    classes: int = 0,
) -> ServerState:
    """Make the state before round 1.

    Args:
        model: The first parameters, (P,).
        settings: With them and the net, an adaptive threshold or gamma and averaged centres begin.
        net: The net of the run.
        classes: Its number of classes.

    Returns:
        The state.
    """
    state = ServerState(0, model.clone(), torch.zeros_like(model))
    if settings is None or net is None:
        return state
    return state._replace(
        threshold=adaptive_threshold.init_control(
            settings.cel, net.cut.sigma, count_seen_features(settings.cel, net)
        ),
        centres=averaged_centres.init_centres(settings.cel, net.features, classes),
        weight=adaptive_weight.init_control(settings.cel),
        trained=list_trained_parameters(net),
    )


def advance_model(
    settings: Settings, state: ServerState, delta: Float[Tensor, " P"], *, plan: RoundPlan, cut: int
) -> ServerState:
    """Step along the sliding average: m <- beta m + (1 - beta) delta; w <- w + gamma m.

    With beta 0 and gamma 1 this is federated averaging written with deltas. A frozen encoder stays
    as it is, whatever the average still holds of it. The preconditioner learns until burn-in ends
    and is fixed from then on: a chain whose step sizes go on changing with its state has another
    target.

    Args:
        settings: The run's settings.
        state: Before the step.
        delta: The round's mean delta, (P,).
        plan: The plan of the round.
        cut: The first so many parameters are the encoder's.

    Returns:
        The state after the round.
    """
    rule = settings.strategy
    average = slide_average(
        state.average,
        delta,
        rule.momentum,
        damped=rule.damped,
        frozen=cut if plan.is_encoder_frozen else 0,
    )
    after = state._replace(
        round=state.round + 1,
        model=torch.add(state.model, average, alpha=rule.gain),
        average=average,
    )
    is_burnt_in = state.round >= burn_in_rounds(settings)
    if settings.local.precondition == "none" or is_burnt_in:
        return after
    speed = (delta / (plan.rate * plan.steps)).square()
    if state.squared_speed is not None:
        speed = torch.lerp(speed, state.squared_speed, _SPEED_MEMORY)
    return after._replace(squared_speed=speed)


def compute_preconditioner(state: ServerState) -> Float[Tensor, " P"] | None:
    """Compute G = 1/(1 + r/mean r), r the root of the squared speed, scaled to mean 1.

    The speed is the model's own movement, noise and the last G included, so that G evens out less
    than gradients would; any G that is fixed leaves the chain's target as it is. The smallest
    gradients have at most twice the step of the mean one.

    Returns:
        One step size for each parameter in units of eta, (P,), 0 for what is frozen; None without
        a preconditioner.

    References:
        RMSprop's preconditioner, Li et al., AAAI 2016, eq. 6, with their lambda at the mean of r,
        which frees it of units.
    """
    if state.squared_speed is None:
        return None
    moving = _select_trained(state)
    root = state.squared_speed[moving].sqrt()
    scale = 1 / (1 + root / root.mean().clamp_min(torch.finfo(root.dtype).tiny))
    preconditioner = torch.zeros_like(state.squared_speed)
    preconditioner[moving] = scale / scale.mean()
    return preconditioner


def _select_trained(state: ServerState) -> slice | Int[Tensor, " M"]:
    return slice(None) if state.trained is None else state.trained


def restore_shared_noise(
    settings: Settings,
    state: ServerState,
    delta: Float[Tensor, " P"],
    *,
    share: float,
    plan: RoundPlan,
) -> Float[Tensor, " P"]:
    """Add to a round's delta the shared noise that it lacks where clients were left out.

    Weights that add up to `share` make a step that much shorter, whose shared noise needs `share`
    of its variance; being the same everywhere it adds up to share^2 of it. The clients' own noise
    is right for its weights as it is.
    """
    if not plan.shared_noise or share >= 1:
        return delta
    preconditioner = compute_preconditioner(state)
    g = torch.ones(()) if preconditioner is None else preconditioner
    # A step's noise is pulled back by those after it, by the priors at least.
    q = 1 - plan.rate * (plan.pull + plan.decay) * g
    remaining = sum(q ** (2 * step) for step in range(plan.steps))
    deviation = 1.0 if preconditioner is None else plan.noise_scale(preconditioner)
    xi = torch.randn(delta.shape, generator=make_generator(settings.seed, "lost", state.round + 1))
    lost = plan.shared_noise * math.sqrt(share * (1 - share))
    moving = _select_trained(state)
    restored = delta.clone()
    restored[moving] = (delta + lost * deviation * remaining**0.5 * xi)[moving]
    return restored


def merge_client_centres(
    state: ServerState, statistics: Sequence[CentreStatistics], clusters: int
) -> tuple[ServerState, dict[str, float]]:
    """Merge the clients' class centres into the state; `client-spread` is for the log.

    The state stays as it is, and there is nothing to log, where no client sent any.
    """
    if state.centres is None or not statistics:
        return state, {}
    merged = averaged_centres.merge_centres(state.centres, statistics, clusters)
    spread = averaged_centres.client_spread(statistics)
    return state._replace(centres=merged), {"client-spread": spread}


def move_threshold(
    settings: Settings, state: ServerState, measured: Mapping[str, float], total_examples: int
) -> ServerState:
    """Move an adaptive threshold after a round in which the loss acted.

    One that follows the accuracy waits until the ramp's end: early on, the model is merely young,
    and a threshold that rose for it would have to come all the way back. In the chain it stays:
    so does the chain's target.

    Args:
        settings: The run's settings.
        state: The server's state after the round.
        measured: The clients' `spread`, if they report it, and the new model's scores on validation
            images.
        total_examples: N, the training images of all clients.

    Returns:
        The state that the next round begins with.
    """
    cel = settings.cel
    is_young = cel.target == "accuracy" and state.round < cel.ramp * settings.rounds
    if state.threshold is None or is_young or not _may_move(settings, state, total_examples):
        return state
    return state._replace(
        threshold=adaptive_threshold.next_threshold(state.threshold, measured, cel)
    )


def move_weight(
    settings: Settings, state: ServerState, measured: Mapping[str, float], total_examples: int
) -> ServerState:
    """Move an adaptive gamma after a round in which the loss acted; in the chain it stays.

    Args:
        settings: The run's settings.
        state: The server's state after the round.
        measured: The clients' `spread`, if they report it, and the new model's scores on validation
            images.
        total_examples: N, the training images of all clients.

    Returns:
        The state that the next round begins with.
    """
    if state.weight is None or not _may_move(settings, state, total_examples):
        return state
    weight = adaptive_weight.next_weight(state.weight, measured, settings.cel, settings.rounds)
    return state._replace(weight=weight)


def _may_move(settings: Settings, state: ServerState, total_examples: int) -> bool:
    """Say whether what follows a goal may move: the loss acted, and the chain has not begun."""
    plan = plan_round(settings, state.round, 1.0, total_examples, gamma=state.gamma)
    return plan.cel_acts and state.round <= burn_in_rounds(settings)
