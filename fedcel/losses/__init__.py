"""Terms added to the task's loss: conditional entropy losses, and rival defences."""

from fedcel.losses.contract import CEL_TESTS, DEFENCE_TESTS, LossCase
from fedcel.losses.protocol import SHARE, MetricRange, MetricScale
from fedcel.losses.terms import (
    Batch,
    GradientRule,
    LossTerm,
    States,
    Streams,
    WeightedTerm,
    part_states,
    refresh_terms,
    refuse_undefined_terms,
    select_state,
    start_terms,
)

__all__ = [
    "CEL_TESTS",
    "DEFENCE_TESTS",
    "SHARE",
    "Batch",
    "GradientRule",
    "LossCase",
    "LossTerm",
    "MetricRange",
    "MetricScale",
    "States",
    "Streams",
    "WeightedTerm",
    "part_states",
    "refresh_terms",
    "refuse_undefined_terms",
    "select_state",
    "start_terms",
]
