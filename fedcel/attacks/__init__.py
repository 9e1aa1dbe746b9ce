"""Attacks: what they see, what they do, how they are scored."""

from fedcel.attacks.averaging import Averaging, RepeatedObservation
from fedcel.attacks.black_box_search import BlackBoxSearch
from fedcel.attacks.contradictions import find_contradictions
from fedcel.attacks.decoder import Decoder
from fedcel.attacks.first_layer import FirstLayer
from fedcel.attacks.gan_decoder import GANDecoder
from fedcel.attacks.gradient_inversion import GradientInversion
from fedcel.attacks.hijacked_encoder import hijack_encoder
from fedcel.attacks.hybrid_inversion import Hybrid
from fedcel.attacks.inversion_training import Effort, train_and_invert
from fedcel.attacks.logit_inversion import LogitInversion
from fedcel.attacks.mi_face import MIFace
from fedcel.attacks.protocol import Attack, OtherClasses, Progress, TellAttack
from fedcel.attacks.registry import ATTACKS, REVISION, find_attack, list_entries, parse_attacks
from fedcel.attacks.rmle import RMLE
from fedcel.attacks.runner import FAILED, Attacked, run_attacks
from fedcel.attacks.score_card import mean_image, mse, score_reconstructions
from fedcel.attacks.shadow import Shadow
from fedcel.attacks.unsplit import UnSplit

__all__ = [
    "ATTACKS",
    "FAILED",
    "REVISION",
    "RMLE",
    "Attack",
    "Attacked",
    "Averaging",
    "BlackBoxSearch",
    "Decoder",
    "Effort",
    "FirstLayer",
    "GANDecoder",
    "GradientInversion",
    "Hybrid",
    "LogitInversion",
    "MIFace",
    "OtherClasses",
    "Progress",
    "RepeatedObservation",
    "Shadow",
    "TellAttack",
    "UnSplit",
    "find_attack",
    "find_contradictions",
    "hijack_encoder",
    "list_entries",
    "mean_image",
    "mse",
    "parse_attacks",
    "run_attacks",
    "score_reconstructions",
    "train_and_invert",
]
