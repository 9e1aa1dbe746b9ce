"""The server's state, and what moves it: the mean delta, the scores."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.federation.aggregation import slide_average
from fedcel.losses.cel import (
    CutShape,
    ThresholdControl,
    WeightControl,
    adaptive_threshold,
    adaptive_weight,
)
from fedcel.nets import SplitNet
from fedcel.posterior import RoundPlan, list_trained_parameters, plan_round
from fedcel.settings import Settings, burn_in_rounds
from fedcel.short_repr import summarise_record


class ServerState(NamedTuple):
    """All that the next round needs of the server."""

    round: int
    model: Float[Tensor, " P"]
    average: Float[Tensor, " P"]
    """m, the sliding average of deltas."""
    threshold: ThresholdControl | None = None
    """The state of an adaptive threshold."""
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
) -> ServerState:
    """Make the state before round 1.

    Args:
        model: The first parameters, (P,).
        settings: With them and the net, an adaptive threshold or gamma begins.
        net: The net of the run.

    Returns:
        The state.
    """
    state = ServerState(0, model.clone(), torch.zeros_like(model))
    if settings is None or net is None:
        return state
    return state._replace(
        threshold=adaptive_threshold.init_control(
            settings.cel, CutShape(0, net.features, net.cut.sigma, net.positions)
        ),
        weight=adaptive_weight.init_control(settings.cel),
        trained=list_trained_parameters(net),
    )


def advance_model(
    settings: Settings, state: ServerState, delta: Float[Tensor, " P"], *, plan: RoundPlan, cut: int
) -> ServerState:
    """Step along the sliding average: m <- beta m + (1 - beta) delta; w <- w + gamma m.

    With beta 0 and gamma 1 this is federated averaging written with deltas. A frozen encoder stays
    as it is, whatever the average still holds of it.

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
        frozen=cut if plan.is_encoder_frozen else 0,
    )
    return state._replace(
        round=state.round + 1,
        model=torch.add(state.model, average, alpha=rule.gain),
        average=average,
    )


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
