"""Private answers: each protects the INPUT of one query against whoever reads the answer.

Names are loaded when they are first used: settings check their sensitivity here, and need neither
tensors nor what else the mechanisms import. (So no file may have the name of what it offers.)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedcel.privacy.answer_utility import measure_utility
    from fedcel.privacy.clip import clip_rows, project_simplex
    from fedcel.privacy.composition import (
        Composition,
        compose_basic,
        compose_exactly,
        compose_prices,
    )
    from fedcel.privacy.discrete_laplace import add_grid_noise
    from fedcel.privacy.empirical_bounds import (
        EstimatedSensitivity,
        estimate_sensitivity,
        measure_epsilon,
    )
    from fedcel.privacy.epsilon_range import check_epsilon
    from fedcel.privacy.label_only import LabelOnly
    from fedcel.privacy.mechanism_builder import build_mechanism, private_logits
    from fedcel.privacy.noise_mechanisms import Gaussian, Laplace, perturb_rows
    from fedcel.privacy.protocol import Mechanism
    from fedcel.privacy.sensitivity import ClipKind, clip_sensitivity, noise_sensitivity
    from fedcel.privacy.update_noise import (
        Round,
        SpentPrivacy,
        account_updates,
        add_update_noise,
        clip_update,
    )

__all__ = [
    "ClipKind",
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
    "check_epsilon",
    "clip_rows",
    "clip_sensitivity",
    "clip_update",
    "compose_basic",
    "compose_exactly",
    "compose_prices",
    "estimate_sensitivity",
    "measure_epsilon",
    "measure_utility",
    "noise_sensitivity",
    "perturb_rows",
    "private_logits",
    "project_simplex",
]

MODULES = {
    "fedcel.privacy.answer_utility": ("measure_utility",),
    "fedcel.privacy.clip": (
        "clip_rows",
        "project_simplex",
    ),
    "fedcel.privacy.composition": (
        "Composition",
        "compose_basic",
        "compose_exactly",
        "compose_prices",
    ),
    "fedcel.privacy.discrete_laplace": ("add_grid_noise",),
    "fedcel.privacy.empirical_bounds": (
        "EstimatedSensitivity",
        "estimate_sensitivity",
        "measure_epsilon",
    ),
    "fedcel.privacy.epsilon_range": ("check_epsilon",),
    "fedcel.privacy.label_only": ("LabelOnly",),
    "fedcel.privacy.mechanism_builder": (
        "build_mechanism",
        "private_logits",
    ),
    "fedcel.privacy.noise_mechanisms": (
        "Gaussian",
        "Laplace",
        "perturb_rows",
    ),
    "fedcel.privacy.protocol": ("Mechanism",),
    "fedcel.privacy.sensitivity": (
        "ClipKind",
        "clip_sensitivity",
        "noise_sensitivity",
    ),
    "fedcel.privacy.update_noise": (
        "Round",
        "SpentPrivacy",
        "account_updates",
        "add_update_noise",
        "clip_update",
    ),
}
"""Where each public name is defined."""

_MODULE_OF_NAME = {name: module for module, names in MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """Return a public name, loaded now."""
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_MODULE_OF_NAME[name]), name)
    globals()[name] = value
    return value
