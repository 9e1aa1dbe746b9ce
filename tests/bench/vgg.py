"""What the losses add to a training step of a VGG11-like split network on 32x32 images.

`python -m tests.bench.vgg` prints the share of the loss alone, forward and backward, in the whole
step: 128 images, cut after two convolutions and pools, 64 channels of 8x8 make D 4096. Then a
client's epoch of 5 120 images with the net `vgg11` in bfloat16, refreshes of the loss included,
beside as many steps of a bare loop.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedcel.losses.cel import Cluster, Gated
from fedcel.nets import Vgg11, build_net
from tests.bench.batched import at_once, configure
from tests.bench.losses import CLASSES, SIGMA, slope
from tests.bench.ratios import line
from tests.fedcel.losses.single import single, split_features
from tests.fedcel.seeded import seeded

BATCH, FEATURES, CLUSTERS = 128, 4096, 5
PAIRS = 5  # a step takes more than a second
STEPS = 40  # of an epoch
EPOCH_PAIRS = 3


def main() -> None:
    """Time both losses against the step and print the table."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    z, y = torch.rand(BATCH, FEATURES, generator=generator), torch.arange(BATCH) % CLASSES
    cluster = single(Cluster(clusters=CLUSTERS), CLASSES, FEATURES, SIGMA)
    gated = single(Gated(), CLASSES, FEATURES, SIGMA)
    print("| what | against | ratio | quartiles | seconds |\n|---|---|---|---|---|")
    whole = step()
    for name, loss in (("cluster, K 5", cluster), ("gated", gated)):
        state = loss.refresh(None, split_features(z, y), generator)
        alone = slope(loss, state, z, y)
        line(f"{name}, the loss alone", "a VGG11-like step", alone, whole, pairs=PAIRS)
    bare = bare_epoch()
    for kind in ("none", "plain", "cluster"):
        what = f"bare bfloat16 loop, {STEPS} steps"
        line(what, f"a client's epoch, CEL {kind}", bare, client_epoch(kind), pairs=EPOCH_PAIRS)


def step() -> Callable[[], None]:
    """Return the cross-entropy and its gradient at all parameters of the split network."""
    encoder = nn.Sequential(*block(3, 64), *block(64, 128), nn.Conv2d(128, 64, 1), nn.Sigmoid())
    wide = [64, 256, 256, 512, 512, 512, 512]
    deep = [
        layer for pair in pairwise(wide) for layer in (nn.Conv2d(*pair, 3, padding=1), nn.ReLU())
    ]
    head = nn.Sequential(*deep[:4], nn.MaxPool2d(2), *deep[4:8], nn.MaxPool2d(2), *deep[8:])
    last = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, CLASSES))
    net = nn.Sequential(encoder, head, last)
    parameters = list(net.parameters())
    x, y = torch.rand(BATCH, 3, 32, 32), torch.arange(BATCH) % CLASSES

    def work() -> None:
        torch.autograd.grad(cross_entropy(net(x), y), parameters)

    return work


def bare_epoch() -> Callable[[], None]:
    """Return steps of plain torch: autocast, channels last, a gradient step in place."""
    net = build_net(Vgg11(features=512, noise=0.3), (3, 32, 32), CLASSES, seeded(0))
    both = nn.Sequential(net.encoder, net.head).to(memory_format=torch.channels_last)
    parameters = list(both.parameters())
    x, y = torch.rand(BATCH, 3, 32, 32), torch.arange(BATCH) % CLASSES
    x = x.to(memory_format=torch.channels_last)

    def work() -> None:
        for _ in range(STEPS):
            with torch.autocast("cpu", torch.bfloat16):
                loss = cross_entropy(both(x).float(), y)
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.sub_(gradient, alpha=1e-3)

    return work


def client_epoch(kind: str) -> Callable[[], object]:
    """Return a round of one client, one epoch of random images."""
    settings = configure(
        1,
        kind,
        **{
            "data.source": "tests.bench.posterior:colours",
            "data.train": STEPS * BATCH,
            "net.name": "vgg11",
            "net.features": 512,
            "local.steps": STEPS,
            "local.batch-size": BATCH,
            "local.precision": "bfloat16",
            "chain.burn-in": 1.0,
        },
    )
    return at_once(settings)


def block(inputs: int, outputs: int) -> list[nn.Module]:
    """Return a convolution, its activation and a pool."""
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]


if __name__ == "__main__":
    main()
