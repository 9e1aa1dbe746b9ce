"""Read images off the first layer's gradient: no search, and no noise at the cut hides them.

A layer W x + b that sees pixels has the gradients delta x^T and delta: each of its rows, divided by
its bias's, is the image (Phong et al., IEEE TIFS 2018, section 3). In a batch, a row is the image
of the only example that its unit is active for (Boenisch et al., EuroS&P 2023, section 4).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.protocol import Progress, report_progress
from fedcel.data import Images
from fedcel.leakage import FIRST_LAYER, Observation, ObservationFirstLayer, make_refusal

SAME = 1e-3  # rows nearer than this a pixel, root mean square, show the same image


@dataclass(frozen=True)
class FirstLayer:
    """The rows' image where all rows agree on one, by least squares; else the commonest images.

    There is no training: `budget` and the generator change nothing.
    """

    name: str = "first-layer"
    needs: frozenset[str] = frozenset({FIRST_LAYER})
    observes: str = "update"

    def reconstruct(
        self,
        observation: Observation,
        auxiliary: Images,
        observed: Float[Tensor, "T P"],
        budget: float,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Float[Tensor, "T C H W"]:
        """Return one image in [0, 1] per row, a batch in any order; ValueError if not granted."""
        if not isinstance(observation, ObservationFirstLayer):
            raise make_refusal(observation, FIRST_LAYER)
        found, size = [], observation.batch
        centre = auxiliary.x.mean(0).flatten()
        for start in range(0, len(observed), size):
            count = min(size, len(observed) - start)
            weight, bias = observation.first_layer(observed[start])
            if count == 1:
                found.append((bias @ weight / bias.square().sum())[None])
            else:
                found.append(select_most_frequent(weight / bias[:, None], count, centre))
            report_progress(progress, "image", start + count, len(observed), "read")
        return torch.cat(found).nan_to_num(0.0).clamp(0, 1).view(-1, *auxiliary.x.shape[1:])


def select_most_frequent(
    rows: Float[Tensor, "U N"], count: int, otherwise: Float[Tensor, " N"]
) -> Float[Tensor, "b N"]:
    """Return the `count` images in [0, 1] that most rows show, `otherwise` where there are fewer.

    A row of a unit that is active for several examples is a mixture that hardly another shows.
    """
    possible = rows.isfinite().all(1) & (rows > -SAME).all(1) & (rows < 1 + SAME).all(1)
    left, found = rows[possible], []
    for _ in range(count):
        if len(left) == 0:
            found.append(otherwise)
            continue
        near = torch.cdist(left, left) < SAME * left.shape[1] ** 0.5
        chosen = int(near.sum(1).argmax())
        found.append(left[near[chosen]].mean(0))
        left = left[~near[chosen]]
    return torch.stack(found)
