"""What a chain is judged by: one row of functionals for each sampled round."""

from math import ceil
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.errors import RunError
from fedcel.files import read_tensors
from fedcel.posterior.diagnostics import Diagnosis, diagnose

EVERY = 10  # rounds from one diagnosis to the next


class Trace:
    """The held-out log-likelihood and the probes' logits of every sampled round."""

    def __init__(self) -> None:
        self.rows: list[Float[Tensor, " F"]] = []
        self.rounds: list[int] = []
        self.latest: Diagnosis | None = None

    @staticmethod
    def read(path: Path, last: int | None = None) -> "Trace":
        """Return the trace of a run up to round `last`; an empty one where there is none."""
        found = Trace()
        if not path.exists():
            return found
        tensors = read_tensors(path)[0]
        if tensors.keys() != {"rounds", "functionals"}:
            raise RunError(f"{path} holds {sorted(tensors)}; it is damaged, start the run anew")
        for number, row in zip(tensors["rounds"].tolist(), tensors["functionals"], strict=True):
            if last is None or number <= last:
                found.rounds.append(int(number))
                found.rows.append(row)
        checked = len(found.rows) // EVERY * EVERY
        found.latest = diagnose(torch.stack(found.rows[:checked])) if checked else None
        return found

    def add(self, number: int, functionals: Float[Tensor, " F"]) -> Diagnosis | None:
        """Add a row; every tenth time, return the chain's diagnosis, if it is long enough."""
        self.rows.append(functionals)
        self.rounds.append(number)
        if len(self.rows) % EVERY:
            return None
        self.latest = diagnose(torch.stack(self.rows))
        return self.latest

    def thinning(self) -> int | None:
        """Return the rounds between samples that are nearly independent: the autocorrelation time.

        None until the chain is long enough to know.
        """
        return ceil(self.latest.autocorrelation) if self.latest else None
