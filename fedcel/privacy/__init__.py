"""Private answers: each protects the INPUT of one query against whoever reads the answer."""

from fedcel.privacy.base import Mechanism
from fedcel.privacy.clip import clip
from fedcel.privacy.composition import Composed, composed, composed_exactly, together
from fedcel.privacy.discrete import on_grid
from fedcel.privacy.empirical import (
    EstimatedSensitivity,
    estimated_sensitivity,
    measured_epsilon,
)
from fedcel.privacy.mechanism import build, private_logits
from fedcel.privacy.noise import Gaussian, Laplace, perturb
from fedcel.privacy.response import LabelOnly
from fedcel.privacy.updates import Spent, protected, spent
from fedcel.privacy.utility import utility
from fedcel.settings_groups.answers import sensitivity

__all__ = [
    "Composed",
    "EstimatedSensitivity",
    "Gaussian",
    "LabelOnly",
    "Laplace",
    "Mechanism",
    "Spent",
    "build",
    "clip",
    "composed",
    "composed_exactly",
    "estimated_sensitivity",
    "measured_epsilon",
    "on_grid",
    "perturb",
    "private_logits",
    "protected",
    "sensitivity",
    "spent",
    "together",
    "utility",
]
