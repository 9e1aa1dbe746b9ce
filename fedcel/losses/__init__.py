"""What training minimises beside the task: conditional entropy losses, and rival defences."""

from fedcel.losses.composite import (
    NO_LOSSES,
    Batch,
    Losses,
    Streams,
    TermSource,
)
from fedcel.losses.contract import (
    evaluate_term,
    require_state,
    require_term,
    require_unchanged,
    store_state,
)
from fedcel.losses.stacked_losses import stack_losses

__all__ = [
    "NO_LOSSES",
    "Batch",
    "Losses",
    "Streams",
    "TermSource",
    "evaluate_term",
    "require_state",
    "require_term",
    "require_unchanged",
    "stack_losses",
    "store_state",
]
