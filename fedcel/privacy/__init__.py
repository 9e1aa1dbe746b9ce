"""Private answers: each protects the INPUT of one query against whoever reads the answer.

Names are loaded when they are first used. (So no file may have the name of what it offers.)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedcel.privacy.answer_calibration import AnswerCalibration, fit_calibration
    from fedcel.privacy.answer_options import (
        AnswerOption,
        choose_cheapest,
        label_only_epsilon,
        list_options,
        score_options,
    )
    from fedcel.privacy.answer_utility import (
        AnswerScore,
        LabelledLogits,
        accuracy_ceiling,
        measure_utility,
        score_answers,
        score_probabilities,
    )
    from fedcel.privacy.budget_units import to_granted_micro, to_micro_epsilon
    from fedcel.privacy.clip import clip_rows
    from fedcel.privacy.composition import compose_exactly, compose_prices
    from fedcel.privacy.empirical_bounds import (
        estimate_sensitivity,
        measure_epsilon,
        push_to_boundary,
    )
    from fedcel.privacy.epsilon_range import check_epsilon
    from fedcel.privacy.label_only import LabelOnly
    from fedcel.privacy.mechanism_contract import MECHANISM_TESTS, MechanismCase
    from fedcel.privacy.noise_mechanisms import Gaussian, Laplace, perturb_rows
    from fedcel.privacy.privacy_settings import (
        ClippedAnswers,
        GaussianAnswers,
        LabelOnlyAnswers,
        LaplaceAnswers,
        OpenAnswers,
        OwnAnswers,
        PrivacySettings,
        private_logits,
    )
    from fedcel.privacy.protocol import KnownLaw, Mechanism
    from fedcel.privacy.sensitivity import ClipKind, clip_sensitivity, noise_sensitivity
    from fedcel.privacy.update_noise import (
        NoisyRound,
        account_updates,
        add_update_noise,
        clip_update,
    )
    from fedcel.privacy.update_settings import UpdateSettings

__all__ = [
    "MECHANISM_TESTS",
    "AnswerCalibration",
    "AnswerOption",
    "AnswerScore",
    "ClipKind",
    "ClippedAnswers",
    "Gaussian",
    "GaussianAnswers",
    "KnownLaw",
    "LabelOnly",
    "LabelOnlyAnswers",
    "LabelledLogits",
    "Laplace",
    "LaplaceAnswers",
    "Mechanism",
    "MechanismCase",
    "NoisyRound",
    "OpenAnswers",
    "OwnAnswers",
    "PrivacySettings",
    "UpdateSettings",
    "account_updates",
    "accuracy_ceiling",
    "add_update_noise",
    "check_epsilon",
    "choose_cheapest",
    "clip_rows",
    "clip_sensitivity",
    "clip_update",
    "compose_exactly",
    "compose_prices",
    "estimate_sensitivity",
    "fit_calibration",
    "label_only_epsilon",
    "list_options",
    "measure_epsilon",
    "measure_utility",
    "noise_sensitivity",
    "perturb_rows",
    "private_logits",
    "push_to_boundary",
    "score_answers",
    "score_options",
    "score_probabilities",
    "to_granted_micro",
    "to_micro_epsilon",
]

_MODULES = (
    "sensitivity",
    "epsilon_range",
    "budget_units",
    "answer_calibration",
    "answer_options",
    "answer_utility",
    "clip",
    "composition",
    "empirical_bounds",
    "label_only",
    "mechanism_contract",
    "noise_mechanisms",
    "privacy_settings",
    "protocol",
    "update_noise",
    "update_settings",
)


def __getattr__(name: str) -> object:
    """Return a public name, loaded now."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    modules = (import_module(f"{__name__}.{module}") for module in _MODULES)
    value: object = next(vars(module)[name] for module in modules if name in vars(module))
    globals()[name] = value
    return value
