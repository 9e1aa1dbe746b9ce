"""Conditional entropy losses: a small spread of features within each class."""

from fedcel.losses.cel.class_spread import ClassShare, class_members
from fedcel.losses.cel.cluster import Cluster
from fedcel.losses.cel.conditional_entropy import CEL, NoCEL
from fedcel.losses.cel.gated import Gated
from fedcel.losses.cel.goal_control import GoalControl, init_control, move_control
from fedcel.losses.cel.hybrid import Hybrid
from fedcel.losses.cel.imported import ImportedCEL
from fedcel.losses.cel.modules import (
    CELModule,
    ClusterCEL,
    GatedCEL,
    HybridCEL,
    MutualInformationCEL,
    PlainCEL,
)
from fedcel.losses.cel.mutual_information import MutualInformation
from fedcel.losses.cel.plain import Plain
from fedcel.losses.cel.ramp import ramp_weight
from fedcel.losses.cel.spread_penalties import (
    THRESHOLD_SHARE,
    Penalty,
    SpreadCEL,
    channel_penalty,
    linear_penalty,
    log_penalty,
)
from fedcel.losses.one_client import CELTerm, OneClient
from fedcel.losses.protocol import (
    ConditionalEntropy,
    CutShape,
    FeatureBatches,
    FeatureReader,
    StackedFeatures,
    State,
    Stateless,
    Term,
    split_features,
)

__all__ = [
    "CEL",
    "THRESHOLD_SHARE",
    "CELModule",
    "CELTerm",
    "ClassShare",
    "Cluster",
    "ClusterCEL",
    "ConditionalEntropy",
    "CutShape",
    "FeatureBatches",
    "FeatureReader",
    "Gated",
    "GatedCEL",
    "GoalControl",
    "Hybrid",
    "HybridCEL",
    "ImportedCEL",
    "MutualInformation",
    "MutualInformationCEL",
    "NoCEL",
    "OneClient",
    "Penalty",
    "Plain",
    "PlainCEL",
    "SpreadCEL",
    "StackedFeatures",
    "State",
    "Stateless",
    "Term",
    "channel_penalty",
    "class_members",
    "init_control",
    "linear_penalty",
    "log_penalty",
    "move_control",
    "ramp_weight",
    "split_features",
]
