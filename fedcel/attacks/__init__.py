"""Attacks that reconstruct images from what is observed, and how they are scored.

Observations and the optimal attacker are in `fedcel.leakage`. Names are loaded when they are first
used: settings have their keys here, and need no attack.
"""

from typing import TYPE_CHECKING

from fedcel.lazy import export_lazily as _export_lazily

if TYPE_CHECKING:
    from fedcel.attacks.attack import ATTACK_CHECKS as ATTACK_CHECKS
    from fedcel.attacks.attack import Attack as Attack
    from fedcel.attacks.attack import Attacker as Attacker
    from fedcel.attacks.attack import OtherClasses as OtherClasses
    from fedcel.attacks.attack import Progress as Progress
    from fedcel.attacks.attack import Rebuild as Rebuild
    from fedcel.attacks.attack_clock import ESTIMATE as ESTIMATE
    from fedcel.attacks.attack_row import REPEAT_MARK as REPEAT_MARK
    from fedcel.attacks.attack_row import AttackConditions as AttackConditions
    from fedcel.attacks.attack_row import AttackId as AttackId
    from fedcel.attacks.attack_row import AttackRow as AttackRow
    from fedcel.attacks.attack_row import AttackScores as AttackScores
    from fedcel.attacks.attack_settings import AttackSettings as AttackSettings
    from fedcel.attacks.averaging import Averaging as Averaging
    from fedcel.attacks.averaging import RepeatedObservation as RepeatedObservation
    from fedcel.attacks.contradictions import MeasuredLeak as MeasuredLeak
    from fedcel.attacks.contradictions import find_contradictions as find_contradictions
    from fedcel.attacks.decoder import Decoder as Decoder
    from fedcel.attacks.decoder import LogitInversion as LogitInversion
    from fedcel.attacks.decoder import apply_network as apply_network
    from fedcel.attacks.decoder import build_decoder_network as build_decoder_network
    from fedcel.attacks.decoder import train_inverter as train_inverter
    from fedcel.attacks.gauss_newton import GaussNewton as GaussNewton
    from fedcel.attacks.inversion import Inversion as Inversion
    from fedcel.attacks.inversion import copy_differentiable as copy_differentiable
    from fedcel.attacks.inversion import invert as invert
    from fedcel.attacks.kernel_ridge import KernelRidge as KernelRidge
    from fedcel.attacks.malicious_server import set_trap_weights as set_trap_weights
    from fedcel.attacks.pixel_descent import RMLE as RMLE
    from fedcel.attacks.pixel_descent import HybridInversion as HybridInversion
    from fedcel.attacks.registry import ATTACKS as ATTACKS
    from fedcel.attacks.registry import REVISION as REVISION
    from fedcel.attacks.registry import NamedAttack as NamedAttack
    from fedcel.attacks.registry import parse_attacks as parse_attacks
    from fedcel.attacks.runner import FAILURE_PREFIX as FAILURE_PREFIX
    from fedcel.attacks.runner import AttackListener as AttackListener
    from fedcel.attacks.runner import AttackOutcome as AttackOutcome
    from fedcel.attacks.runner import run_attacks as run_attacks
    from fedcel.attacks.score_card import Anchors as Anchors
    from fedcel.attacks.score_card import ReconstructionScores as ReconstructionScores
    from fedcel.attacks.score_card import compute_anchors as compute_anchors
    from fedcel.attacks.score_card import mse as mse
    from fedcel.attacks.unknown_encoder import Shadow as Shadow
    from fedcel.attacks.update_inversion import FirstLayer as FirstLayer
    from fedcel.attacks.update_inversion import GradientInversion as GradientInversion
else:
    __all__, __getattr__, __dir__ = _export_lazily(__name__, __file__)
