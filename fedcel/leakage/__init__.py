"""What the optimal attacker learns from one message, exactly, and bounds on it."""

from fedcel.leakage.answer_leakage import answer_bits
from fedcel.leakage.certificate import Certificate
from fedcel.leakage.gaussianity import Gaussianity
from fedcel.leakage.observation import Observation, SmashedData
from fedcel.leakage.optimal_attacker import OptimalLeak, optimal_leak

__all__ = [
    "Certificate",
    "Gaussianity",
    "Observation",
    "OptimalLeak",
    "SmashedData",
    "answer_bits",
    "optimal_leak",
]
