"""Composition: simulate, attack, bench, report, the command line."""

from sims.attack import attack
from sims.bench import bench
from sims.simulate import simulate

__all__ = ["attack", "bench", "simulate"]
