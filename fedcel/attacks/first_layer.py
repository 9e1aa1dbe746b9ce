"""Read images off the first layer's gradient: no search, and no noise at the cut hides them."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.attacker import Attacker, BaseAttack, Reconstructions
from fedcel.leakage import FIRST_LAYER, ObservationFirstLayer, make_refusal

SAME_IMAGE_DISTANCE = 1e-3  # a pixel, root mean square, below which rows show the same image


@dataclass(frozen=True)
class FirstLayer(BaseAttack):
    """Read images off what an upload has of the first layer.

    A layer W x + b that sees pixels has the gradients delta x^T and delta: each of its rows,
    divided by its bias's, is the image. An upload of one image gives it by least squares over all
    rows. In a batch, a row is the image of the only example that its unit is active for: the
    commonest ones are taken. There is no training: budget and generator change nothing.

    Args:
        name, needs, observes: See `Attack`.

    References:
        Phong et al., IEEE TIFS 2018, section 3 (one image).
        Boenisch et al., EuroS&P 2023, section 4 (a batch).
    """

    name: str = "first-layer"
    needs: frozenset[str] = frozenset({FIRST_LAYER})
    observes: str = "update"

    def invert(self, attacker: Attacker, observed: Float[Tensor, "T P"]) -> Reconstructions:
        """Return one image per row, a batch in any order."""
        observation, x = attacker.observation, attacker.auxiliary.x
        if not isinstance(observation, ObservationFirstLayer):
            raise make_refusal(observation, FIRST_LAYER)
        images = []
        batch = observation.batch
        centre = x.mean(0).flatten()
        for start in range(0, len(observed), batch):
            count = min(batch, len(observed) - start)
            weight, bias = observation.first_layer(observed[start])
            if count == 1:
                images.append((bias @ weight / bias.square().sum())[None])
            else:
                images.append(select_most_frequent(weight / bias[:, None], count, centre))
            attacker.report("image", start + count, len(observed), "read")
        return torch.cat(images).nan_to_num(0.0).clamp(0, 1).view(-1, *x.shape[1:])


def select_most_frequent(
    rows: Float[Tensor, "U N"], count: int, default: Float[Tensor, " N"]
) -> Float[Tensor, "b N"]:
    """Return the `count` images in [0, 1] that most rows show, the default where there are fewer.

    A row of a unit that is active for several examples is a mixture that hardly another shows.
    """
    low, high = -SAME_IMAGE_DISTANCE, 1 + SAME_IMAGE_DISTANCE
    rows = rows[rows.isfinite().all(1) & (rows > low).all(1) & (rows < high).all(1)]
    images = []
    for _ in range(count):
        if len(rows) == 0:
            images.append(default)
            continue
        near = torch.cdist(rows, rows) < SAME_IMAGE_DISTANCE * rows.shape[1] ** 0.5
        commonest = near[int(near.sum(1).argmax())]
        images.append(rows[commonest].mean(0))
        rows = rows[~commonest]
    return torch.stack(images)
