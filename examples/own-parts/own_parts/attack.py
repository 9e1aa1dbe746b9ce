"""An attack: show the own images whose features are nearest to what was seen."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedcel import Images
from fedcel.attacks import Progress
from fedcel.leakage import FREE_QUERIES, Observation

DRAWS = 16  # of the smashed data of each auxiliary image at budget 1, averaged


@dataclass(frozen=True)
class Neighbours:
    """The mean of the `near` nearest auxiliary images in feature space: nothing is trained.

    Weak where the attacker has few images. What it finds, anybody with the encoder finds.
    """

    name: str = "neighbours"
    needs: frozenset[str] = frozenset({FREE_QUERIES})
    observes: str = "smashed-data"
    near: int = 3

    def reconstruct(
        self,
        observation: Observation,
        auxiliary: Images,
        observed: Tensor,
        budget: float,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Tensor:
        """Return one image in [0, 1] for each row observed (T, F)."""
        draws = max(1, round(DRAWS * budget))
        features = torch.zeros(len(auxiliary.y), observed.shape[1])
        for draw in range(1, draws + 1):
            features += observation.sample(auxiliary.x, generator) / draws
            if progress:
                progress(f"draw {draw}/{draws}")
        nearest = torch.cdist(observed, features).topk(self.near, 1, largest=False).indices
        return auxiliary.x[nearest].mean(1)
