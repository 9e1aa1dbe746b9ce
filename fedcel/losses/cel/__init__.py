"""Conditional entropy losses: a small spread of features within each class."""

from fedcel.lazy import list_names as _list_names
from fedcel.losses.cel.cel_module import CELModule as CELModule
from fedcel.losses.cel.cluster import Cluster as Cluster
from fedcel.losses.cel.cluster import ClusterCEL as ClusterCEL
from fedcel.losses.cel.conditional_entropy import CEL as CEL
from fedcel.losses.cel.conditional_entropy import THRESHOLD_SHARE as THRESHOLD_SHARE
from fedcel.losses.cel.conditional_entropy import ClassShare as ClassShare
from fedcel.losses.cel.conditional_entropy import NoCEL as NoCEL
from fedcel.losses.cel.conditional_entropy import Penalty as Penalty
from fedcel.losses.cel.conditional_entropy import SpreadCEL as SpreadCEL
from fedcel.losses.cel.conditional_entropy import channel_penalty as channel_penalty
from fedcel.losses.cel.conditional_entropy import class_members as class_members
from fedcel.losses.cel.conditional_entropy import linear_penalty as linear_penalty
from fedcel.losses.cel.conditional_entropy import log_penalty as log_penalty
from fedcel.losses.cel.conditional_entropy import ramp_weight as ramp_weight
from fedcel.losses.cel.gated import Gated as Gated
from fedcel.losses.cel.gated import GatedCEL as GatedCEL
from fedcel.losses.cel.goal_control import GoalControl as GoalControl
from fedcel.losses.cel.goal_control import init_control as init_control
from fedcel.losses.cel.goal_control import move_control as move_control
from fedcel.losses.cel.hybrid import Hybrid as Hybrid
from fedcel.losses.cel.hybrid import HybridCEL as HybridCEL
from fedcel.losses.cel.mutual_information import MutualInformation as MutualInformation
from fedcel.losses.cel.mutual_information import MutualInformationCEL as MutualInformationCEL
from fedcel.losses.cel.plain import Plain as Plain
from fedcel.losses.cel.plain import PlainCEL as PlainCEL
from fedcel.losses.protocol import CutShape as CutShape
from fedcel.losses.protocol import FeatureBatches as FeatureBatches
from fedcel.losses.protocol import FeatureReader as FeatureReader
from fedcel.losses.protocol import StackedFeatures as StackedFeatures
from fedcel.losses.protocol import State as State
from fedcel.losses.protocol import Term as Term

__all__ = _list_names(globals())
