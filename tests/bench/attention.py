"""The attention's loss, all classes at once, against a loop over them.

`python -m tests.bench.attention` prints a table. Forward and backward pass, one thread.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from fedcel.losses import ClientLoss
from fedcel.losses.cel.conditional_entropy import Penalty, channel_penalty
from fedcel.losses.cel.gated import Gated
from fedcel.losses.cel.mutual_information import MutualInformation
from fedcel.losses.cel.plain import Plain
from fedcel.losses.protocol import State
from tests.bench.ratios import line
from tests.fedcel.losses.single import single, split_features

Pair = tuple[str, str, Callable[[], None], Callable[[], None]]
CLASSES, SIGMA = 10, 0.3
LOOP = "a loop over the classes"


def main() -> None:
    """Time every pair and print the table."""
    torch.set_num_threads(1)
    print("| what | against | ratio | quartiles | seconds |\n|---|---|---|---|---|")
    for batch, features in ((128, 4096), (32, 64)):
        for pair in pairs(batch, features):
            line(*pair)


def pairs(batch: int, features: int) -> list[Pair]:
    """Return what is timed at one size."""
    generator = torch.Generator().manual_seed(0)
    z, y = torch.rand(batch, features, generator=generator), torch.arange(batch) % CLASSES
    size = f"B {batch}, D {features}"
    penalty = partial(channel_penalty, features=features, sigma=SIGMA)
    gated = single(Gated(), CLASSES, features, SIGMA)
    state = gated.refresh(None, split_features(z, y), generator)
    ours, loop = slope(gated, state, z, y), gated_loop(penalty, state["theta"], z, y)
    plain = slope(single(Plain(), CLASSES, features, SIGMA), {}, z, y)
    information = slope(single(MutualInformation(), CLASSES, features, SIGMA), {}, z, y)
    return [
        (f"gated, {size}", LOOP, ours, loop),
        (f"plain, {size}", LOOP, plain, plain_loop(penalty, z, y)),
        (f"information, {size}", LOOP, information, information_loop(z, y)),
    ]


def slope(mine: ClientLoss, state: State, z: Tensor, y: Tensor) -> Callable[[], None]:
    """Return one loss and its gradient, at the attention's weights too."""
    leaf = z.clone().requires_grad_()

    def work() -> None:
        leaf.grad = None
        for tensor in state.values():
            tensor.grad = None
        torch.autograd.backward(mine.loss(state, leaf, y, measure=False).loss)

    return work


def looped(
    of_class: Callable[[Tensor], Tensor], z: Tensor, y: Tensor, learned: list[Tensor]
) -> Callable[[], None]:
    """Return the batch-share mean over classes of what `of_class` makes of each, and gradients."""
    leaf = z.clone().requires_grad_()

    def work() -> None:
        leaf.grad = None
        for tensor in learned:
            tensor.grad = None
        terms, total = [], 0
        for c in y.unique():
            own = leaf[y == c]
            if len(own) > 1:
                terms.append(len(own) * of_class(own))
                total += len(own)
        torch.autograd.backward(torch.stack(terms).sum() / total)

    return work


def gated_loop(penalty: Penalty, theta: Tensor, z: Tensor, y: Tensor) -> Callable[[], None]:
    """Return the attention as its formula reads: V, U and w apart, one class at a time."""
    features = z.shape[1]
    hidden = theta.numel() // (2 * features + 1)
    value, gate, last = torch.split(theta.detach(), [hidden * features] * 2 + [hidden])
    weights = [value.view(hidden, -1).clone(), gate.view(hidden, -1).clone(), last.clone()]
    for weight in weights:
        weight.requires_grad_()
    v, u, w = weights

    def of_class(own: Tensor) -> Tensor:
        n = layer_norm(own, own.shape[1:])
        alpha = (((n @ v.T).tanh() * (n @ u.T).sigmoid()) @ w).softmax(0)
        gap = own - (alpha[:, None] * own).sum(0)
        return penalty((alpha * gap.square().sum(1)).sum())

    return looped(of_class, z, y, weights)


def plain_loop(penalty: Penalty, z: Tensor, y: Tensor) -> Callable[[], None]:
    """Return the spread around each class's mean, one class at a time."""
    return looped(lambda own: penalty((own - own.mean(0)).square().sum(1).mean()), z, y, [])


def information_loop(z: Tensor, y: Tensor) -> Callable[[], None]:
    """Return the upper bound from all pairs' differences, one class at a time."""

    def of_class(own: Tensor) -> Tensor:
        gap = (own[:, None] - own).square().sum(2) / (2 * SIGMA**2)
        return -gap.neg().exp().mean(1).log().mean()

    return looped(of_class, z, y, [])


if __name__ == "__main__":
    main()
