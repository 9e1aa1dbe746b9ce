"""PyTorch's Adam on one flat vector, as a pure function of a state that can be packed."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim.adam import adam

from fedcel.losses.cel.protocol import State

BETAS = (0.9, 0.999)
EPSILON = 1e-16
"""Far below any gradient, which arrives scaled by the loss's weight, often tiny."""

STATE_NAMES = ("theta", "m", "v", "t")
"""What a state holds: `theta` (P,), a leaf that gathers its gradient in `backward`; the moments
`m`, `v` (P,); the step count `t`. Other names that a state holds are kept as they are."""


def init_state(theta: Float[Tensor, " P"]) -> State:
    """Return the state before the first step; `theta` itself learns from now on."""
    return {
        "theta": theta.requires_grad_(),
        "m": torch.zeros_like(theta),
        "v": torch.zeros_like(theta),
        "t": torch.zeros((), dtype=torch.int64),
    }


def resume_state(state: State) -> State:
    """Return `state` with a theta of its own, ready to learn: arrays do not remember that."""
    return {**state, "theta": state["theta"].detach().clone().requires_grad_()}


@torch.no_grad()
def take_step(state: State, rate: float) -> State:
    """Return the state after one step (Kingma and Ba, ICLR 2015, algorithm 1).

    Moves theta by about `rate` whatever the scale of the gradient, which is cleared. Without a
    gradient nothing moves and the state itself comes back.
    """
    theta = state["theta"]
    gradient, theta.grad = theta.grad, None
    if gradient is None or not gradient.any():
        return state
    moved, m, v, t = (state[name].detach().clone() for name in STATE_NAMES)
    adam(
        *([moved], [gradient], [m], [v], [], [t]),
        amsgrad=False,
        beta1=BETAS[0],
        beta2=BETAS[1],
        lr=rate,
        weight_decay=0.0,
        eps=EPSILON,
        maximize=False,
    )
    return {**state, "theta": moved.requires_grad_(), "m": m, "v": v, "t": t}
