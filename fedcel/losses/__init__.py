"""What training minimises beside the task: conditional entropy losses, and rival defences."""

from fedcel.losses.terms import (
    Batch,
    GradientRule,
    LossTerm,
    States,
    Streams,
    TermSource,
    WeightedTerm,
    part_states,
    refresh_terms,
    refuse_undefined_terms,
    select_state,
    start_terms,
)

__all__ = [
    "Batch",
    "GradientRule",
    "LossTerm",
    "States",
    "Streams",
    "TermSource",
    "WeightedTerm",
    "part_states",
    "refresh_terms",
    "refuse_undefined_terms",
    "select_state",
    "start_terms",
]
