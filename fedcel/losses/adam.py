"""Adam of K vectors at once, as a function of a state that can be stored.

It is PyTorch's up to rounding, except that a vector without a gradient stands still.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.errors import SettingsError
from fedcel.tensors import State, check_state_names

BETAS = (0.9, 0.999)
EPSILON = 1e-16
"""Far below any gradient, which arrives scaled by the loss's weight, often tiny."""

STATE_NAMES = ("theta", "m", "v", "t")
"""Tensors of a state: `theta` (P,), a leaf that gathers its gradient in `backward`; the moments
`m`, `v` (P,); the step count `t`. Other names that a state holds are kept as they are."""


def draw_layers(
    layers: Sequence[tuple[int, int]],
    generator: torch.Generator,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, " P"]:
    """Draw theta as linear layers are: values are uniform in +-inputs^-1/2.

    `layers` are the number of values and of inputs of each.
    """
    parts = [
        (2 * torch.rand(count, generator=generator, dtype=dtype) - 1) * inputs**-0.5
        for count, inputs in layers
    ]
    return torch.cat(parts)


def init_states(thetas: Sequence[Float[Tensor, " P"]]) -> State:
    """Return the state of K clients before the first step."""
    theta = torch.stack(list(thetas))
    return {
        "theta": theta.requires_grad_(),
        "m": torch.zeros_like(theta),
        "v": torch.zeros_like(theta),
        "t": torch.zeros(len(theta), dtype=torch.int64),
    }


def resume_state(state: State, size: int, part: str, keys: str) -> State:
    """Return `state` with a theta of its own, ready to learn: arrays do not remember that.

    SettingsError when the state is not that of this `part` or theta has not `size` values, which
    the settings `keys` decide.
    """
    check_state_names(state, STATE_NAMES, f"an {part}")
    if state["theta"].shape[-1] != size:
        raise SettingsError(
            f"a client's stored {part} has {state['theta'].shape[-1]} weights, must have {size}: "
            f"{keys} changed; start from an empty state"
        )
    return {**state, "theta": state["theta"].detach().clone().requires_grad_()}


@torch.no_grad()
def take_step(state: State, rate: float) -> State:
    """Return the state after one step (Kingma and Ba, ICLR 2015, algorithm 1).

    Moves theta by about `rate` whatever the scale of the gradient, and clears `theta.grad`. A
    client without a gradient does not move. Of K clients theta is (K, P), t is (K,).
    """
    theta = state["theta"]
    gradient, theta.grad = theta.grad, None
    if gradient is None:
        return state
    m = torch.lerp(state["m"], gradient, 1 - BETAS[0])
    v = (state["v"] * BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
    t = state["t"] + 1
    first, second = (1 - beta ** t.double() for beta in BETAS)
    scale = v.sqrt().div_(second.sqrt()[..., None].to(v.dtype)).add_(EPSILON)
    moved = (m * (-rate / first)[..., None].to(m.dtype)).div_(scale).add_(theta)
    after = {"theta": moved, "m": m, "v": v, "t": t}
    # A sum of sizes, which `any` takes several times as long as; NaN is a gradient too.
    has_gradient = torch.linalg.vector_norm(gradient, 1, -1) != 0
    if not has_gradient.all():
        for name, tensor in after.items():
            is_moved = has_gradient if name == "t" else has_gradient[..., None]
            after[name] = torch.where(is_moved, tensor, state[name].detach())
    after["theta"].requires_grad_()
    return {**state, **after}


def reverse_gradient(theta: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return the same values, whose gradient has the other sign (Ganin et al., JMLR 2016)."""
    return theta.detach() + (theta.detach() - theta)
