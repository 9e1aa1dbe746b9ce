"""Private answers: each protects the INPUT of one query against whoever reads the answer.

Names are loaded when they are first used. (So no file may have the name of what it offers.)
"""

from typing import TYPE_CHECKING

from fedcel.lazy import export_lazily as _export_lazily

if TYPE_CHECKING:
    from fedcel.privacy.answer_calibration import AnswerCalibration as AnswerCalibration
    from fedcel.privacy.answer_calibration import fit_calibration as fit_calibration
    from fedcel.privacy.answer_utility import USUAL_EPSILONS as USUAL_EPSILONS
    from fedcel.privacy.answer_utility import AnswerScore as AnswerScore
    from fedcel.privacy.answer_utility import LabelledLogits as LabelledLogits
    from fedcel.privacy.answer_utility import accuracy_ceiling as accuracy_ceiling
    from fedcel.privacy.answer_utility import measure_utility as measure_utility
    from fedcel.privacy.answer_utility import score_answers as score_answers
    from fedcel.privacy.answer_utility import score_probabilities as score_probabilities
    from fedcel.privacy.budget_units import to_granted_micro as to_granted_micro
    from fedcel.privacy.budget_units import to_micro_epsilon as to_micro_epsilon
    from fedcel.privacy.clip import clip_sensitivity as clip_sensitivity
    from fedcel.privacy.composition import compose_prices as compose_prices
    from fedcel.privacy.label_only import LabelOnly as LabelOnly
    from fedcel.privacy.mechanism_contract import MECHANISM_TESTS as MECHANISM_TESTS
    from fedcel.privacy.mechanism_contract import MechanismCase as MechanismCase
    from fedcel.privacy.noise_mechanisms import Gaussian as Gaussian
    from fedcel.privacy.noise_mechanisms import Laplace as Laplace
    from fedcel.privacy.noise_mechanisms import perturb_rows as perturb_rows
    from fedcel.privacy.privacy_settings import ClippedAnswers as ClippedAnswers
    from fedcel.privacy.privacy_settings import GaussianAnswers as GaussianAnswers
    from fedcel.privacy.privacy_settings import LabelOnlyAnswers as LabelOnlyAnswers
    from fedcel.privacy.privacy_settings import LaplaceAnswers as LaplaceAnswers
    from fedcel.privacy.privacy_settings import OpenAnswers as OpenAnswers
    from fedcel.privacy.privacy_settings import OwnAnswers as OwnAnswers
    from fedcel.privacy.privacy_settings import PrivacySettings as PrivacySettings
    from fedcel.privacy.privacy_settings import private_logits as private_logits
    from fedcel.privacy.protocol import KnownLaw as KnownLaw
    from fedcel.privacy.protocol import Mechanism as Mechanism
    from fedcel.privacy.update_noise import NoisyRound as NoisyRound
    from fedcel.privacy.update_noise import account_updates as account_updates
    from fedcel.privacy.update_noise import add_update_noise as add_update_noise
    from fedcel.privacy.update_noise import clip_update as clip_update
    from fedcel.privacy.update_settings import UPDATE_DELTA as UPDATE_DELTA
    from fedcel.privacy.update_settings import UpdateSettings as UpdateSettings
else:
    __all__, __getattr__, __dir__ = _export_lazily(__name__, __file__)
