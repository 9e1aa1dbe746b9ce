"""Private answers: each protects the INPUT of one query against whoever reads the answer."""

from fedcel.privacy.answer_utility import utility
from fedcel.privacy.build_mechanism import build, private_logits
from fedcel.privacy.clip import clip
from fedcel.privacy.composition import Composed, composed, composed_exactly, together
from fedcel.privacy.discrete_laplace import on_grid
from fedcel.privacy.empirical_bounds import (
    EstimatedSensitivity,
    estimated_sensitivity,
    measured_epsilon,
)
from fedcel.privacy.label_only import LabelOnly
from fedcel.privacy.noise_mechanisms import Gaussian, Laplace, perturb
from fedcel.privacy.protocol import Mechanism
from fedcel.privacy.update_noise import Spent, protected, spent
from fedcel.settings.answers import sensitivity

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
