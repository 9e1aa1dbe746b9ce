"""Contract suites that a part of your own inherits: name the subclass `TestMine`, run pytest."""

from fedcel.testing.attacks import AttackContract
from fedcel.testing.cel import CELContract
from fedcel.testing.defences import DefenceContract
from fedcel.testing.mechanisms import MechanismContract

__all__ = ["AttackContract", "CELContract", "DefenceContract", "MechanismContract"]
