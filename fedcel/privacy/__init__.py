"""Private answers: each protects the INPUT of one query against whoever reads the answer."""

from fedcel.privacy.answer_utility import measure_utility
from fedcel.privacy.build_mechanism import build_mechanism, private_logits
from fedcel.privacy.clip import clip_rows, project_simplex
from fedcel.privacy.composition import Composition, compose_basic, compose_exactly, compose_prices
from fedcel.privacy.discrete_laplace import add_grid_noise
from fedcel.privacy.empirical_bounds import (
    EstimatedSensitivity,
    estimate_sensitivity,
    measure_epsilon,
)
from fedcel.privacy.label_only import LabelOnly
from fedcel.privacy.noise_mechanisms import Gaussian, Laplace, perturb_rows
from fedcel.privacy.protocol import Mechanism
from fedcel.privacy.update_noise import (
    Round,
    SpentPrivacy,
    account_updates,
    add_update_noise,
    clip_update,
)
from fedcel.settings import sensitivity

__all__ = [
    "Composition",
    "EstimatedSensitivity",
    "Gaussian",
    "LabelOnly",
    "Laplace",
    "Mechanism",
    "Round",
    "SpentPrivacy",
    "account_updates",
    "add_grid_noise",
    "add_update_noise",
    "build_mechanism",
    "clip_rows",
    "clip_update",
    "compose_basic",
    "compose_exactly",
    "compose_prices",
    "estimate_sensitivity",
    "measure_epsilon",
    "measure_utility",
    "perturb_rows",
    "private_logits",
    "project_simplex",
    "sensitivity",
]
