"""PyTorch's Adam on one flat vector, as a pure function of a state that can be packed."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim.adam import adam

BETAS = (0.9, 0.999)
EPS = 1e-16
"""Far below any gradient, which arrives scaled by the loss's weight, often tiny."""

NAMES = ("theta", "m", "v", "t")
"""What a state holds."""

State = dict[str, Tensor]
"""`theta` (P,), a leaf that gathers its gradient in `backward`; moments `m`, `v` (P,); count `t`.

Other names that a state holds are kept as they are.
"""


def start(theta: Float[Tensor, " P"]) -> State:
    """Return the state before the first step; `theta` itself learns from now on."""
    return {
        "theta": theta.requires_grad_(),
        "m": torch.zeros_like(theta),
        "v": torch.zeros_like(theta),
        "t": torch.zeros((), dtype=torch.int64),
    }


def resume(state: State) -> State:
    """Return `state` with a theta of its own, ready to learn: arrays do not remember that."""
    return {**state, "theta": state["theta"].detach().clone().requires_grad_()}


@torch.no_grad()
def step(state: State, rate: float) -> State:
    """Return the state after one step (Kingma and Ba, ICLR 2015, algorithm 1).

    Moves theta by about `rate` whatever the scale of the gradient, which is cleared. The state
    itself where no gradient arrived.
    """
    theta = state["theta"]
    grad, theta.grad = theta.grad, None
    if grad is None or not grad.any():
        return state
    moved, m, v, t = (state[name].detach().clone() for name in NAMES)
    adam(
        *([moved], [grad], [m], [v], [], [t]),
        amsgrad=False,
        beta1=BETAS[0],
        beta2=BETAS[1],
        lr=rate,
        weight_decay=0.0,
        eps=EPS,
        maximize=False,
    )
    return {**state, "theta": moved.requires_grad_(), "m": m, "v": v, "t": t}
