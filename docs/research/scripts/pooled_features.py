"""What does a loss of pooled features buy? `pooled_features.py`.

Digits, 8 clients, 60 rounds, five seeds, all of a round's clients at once, a small convolutional
encoder that sends 4 channels of 4x4: losses of all 64 values beside losses of the 4 means.
Accuracy and bits beyond the label are of the validation images; test images are not looked at. It
writes docs/results/pooled-features.json.
"""

from typing import Final

from torch import nn

from fedcel.nets import ImportedNet
from weight_schedules import train_variants

NET: Final = {"net.name": "pooled_features:build_net", "net.features": 64}
VARIANTS: Final[dict[str, dict[str, object]]] = {
    "no loss": NET | {"cel.kind": "none", "cel.weight": 0.0},
    **{
        f"{kind}, {words}, weight {weight:g}": NET
        | {"cel.kind": kind, "cel.pool": pool, "cel.weight": weight}
        for kind in ("plain", "cluster")
        for pool, words, weights in (
            ("flatten", "all values", (0.1, 0.3)),
            ("mean", "means", (1.0, 3.0, 10.0)),
        )
        for weight in weights
    },
}


class Encoder(nn.Sequential):
    """Two convolutions; z holds channel after channel."""

    positions = 16


def build_net(
    shape: tuple[int, ...], classes: int, net: ImportedNet
) -> tuple[nn.Module, nn.Module]:
    """Return a convolutional encoder of 8x8 images and a head with one hidden layer."""
    encoder = Encoder(
        nn.Conv2d(shape[0], 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, net.features // Encoder.positions, 3, stride=2, padding=1),
        nn.Flatten(),
        nn.Sigmoid(),
    )
    head = nn.Sequential(
        nn.Linear(net.features, net.width), nn.ReLU(), nn.Linear(net.width, classes)
    )
    return encoder, head


if __name__ == "__main__":
    train_variants(VARIANTS, "pooled_features")
