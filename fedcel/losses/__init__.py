"""What training minimises beside the task: conditional entropy losses, and rival defences."""

from fedcel.losses.contract import (
    evaluate_term,
    require_state,
    require_term,
    require_unchanged,
    store_state,
)
from fedcel.losses.terms import (
    Batch,
    CELTerm,
    DefenceTerm,
    GradientRule,
    LossTerm,
    Streams,
    TermSource,
    WeightedTerm,
    select_state,
)

__all__ = [
    "Batch",
    "CELTerm",
    "DefenceTerm",
    "GradientRule",
    "LossTerm",
    "Streams",
    "TermSource",
    "WeightedTerm",
    "evaluate_term",
    "require_state",
    "require_term",
    "require_unchanged",
    "select_state",
    "store_state",
]
