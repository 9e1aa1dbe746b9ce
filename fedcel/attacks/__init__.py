"""Attacks that reconstruct images from what is observed, and how they are scored.

Observations and the optimal attacker are in `fedcel.leakage`.
"""

from fedcel.attacks.attack_contract import ATTACK_CHECKS
from fedcel.attacks.attack_row import (
    REPEAT_MARK,
    AttackConditions,
    AttackId,
    AttackRow,
    AttackScores,
)
from fedcel.attacks.attacker import Attacker, Rebuild
from fedcel.attacks.averaging import Averaging, RepeatedObservation
from fedcel.attacks.black_box_search import BlackBoxSearch
from fedcel.attacks.contradictions import MeasuredLeak, find_contradictions
from fedcel.attacks.decoder import Decoder
from fedcel.attacks.first_layer import FirstLayer
from fedcel.attacks.gan_decoder import GANDecoder
from fedcel.attacks.gradient_inversion import GradientInversion
from fedcel.attacks.hijacked_encoder import hijack_encoder
from fedcel.attacks.hybrid_inversion import HybridInversion
from fedcel.attacks.inversion_training import Effort
from fedcel.attacks.invert import Inversion, choose_attacks, copy_differentiable, invert
from fedcel.attacks.kernel_ridge import KernelRidge
from fedcel.attacks.logit_inversion import LogitInversion
from fedcel.attacks.mi_face import MIFace
from fedcel.attacks.protocol import Attack, OtherClasses, Progress
from fedcel.attacks.registry import ATTACKS, REVISION, parse_attacks
from fedcel.attacks.rmle import RMLE
from fedcel.attacks.runner import (
    FAILURE_PREFIX,
    AttackedAttributes,
    AttackListener,
    AttackOutcome,
    run_attacks,
)
from fedcel.attacks.score_card import (
    ReconstructionScores,
    class_means,
    mean_image,
    mse,
    score_reconstructions,
)
from fedcel.attacks.shadow import Shadow
from fedcel.attacks.trap_weights import set_trap_weights
from fedcel.attacks.unsplit import UnSplit

__all__ = [
    "ATTACKS",
    "ATTACK_CHECKS",
    "FAILURE_PREFIX",
    "REPEAT_MARK",
    "REVISION",
    "RMLE",
    "Attack",
    "AttackConditions",
    "AttackId",
    "AttackListener",
    "AttackOutcome",
    "AttackRow",
    "AttackScores",
    "AttackedAttributes",
    "Attacker",
    "Averaging",
    "BlackBoxSearch",
    "Decoder",
    "Effort",
    "FirstLayer",
    "GANDecoder",
    "GradientInversion",
    "HybridInversion",
    "Inversion",
    "KernelRidge",
    "LogitInversion",
    "MIFace",
    "MeasuredLeak",
    "OtherClasses",
    "Progress",
    "Rebuild",
    "ReconstructionScores",
    "RepeatedObservation",
    "Shadow",
    "UnSplit",
    "choose_attacks",
    "class_means",
    "copy_differentiable",
    "find_contradictions",
    "hijack_encoder",
    "invert",
    "mean_image",
    "mse",
    "parse_attacks",
    "run_attacks",
    "score_reconstructions",
    "set_trap_weights",
]
