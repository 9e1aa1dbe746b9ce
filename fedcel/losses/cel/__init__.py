"""Conditional entropy losses: a small spread of smashed data within each class."""

from fedcel.losses.cel.adaptive_threshold import ThresholdControl
from fedcel.losses.cel.averaged_centres import (
    AveragedCentres,
    CentreStatistics,
    SharedCentres,
    summarise_centres,
)
from fedcel.losses.cel.build_cel import KINDS, build_cel
from fedcel.losses.cel.class_spread import class_members
from fedcel.losses.cel.cluster import Cluster
from fedcel.losses.cel.gated import Attention, Gated
from fedcel.losses.cel.hybrid import Hybrid
from fedcel.losses.cel.mutual_information import MutualInformation
from fedcel.losses.cel.penalties import (
    THRESHOLD,
    Penalty,
    build_penalty,
    channel_penalty,
    class_shares,
    linear_penalty,
    log_penalty,
)
from fedcel.losses.cel.plain import Plain
from fedcel.losses.cel.protocol import Codes, ConditionalEntropy, State, Term, split_pieces

__all__ = [
    "KINDS",
    "THRESHOLD",
    "Attention",
    "AveragedCentres",
    "CentreStatistics",
    "Cluster",
    "Codes",
    "ConditionalEntropy",
    "Gated",
    "Hybrid",
    "MutualInformation",
    "Penalty",
    "Plain",
    "SharedCentres",
    "State",
    "Term",
    "ThresholdControl",
    "build_cel",
    "build_penalty",
    "channel_penalty",
    "class_members",
    "class_shares",
    "linear_penalty",
    "log_penalty",
    "split_pieces",
    "summarise_centres",
]
