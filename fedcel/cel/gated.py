"""Spread under a learned weighting of each class's members."""

from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from fedcel.cel.base import Codes, State, Term
from fedcel.cel.penalty import Penalty, Share, shares
from fedcel.cel.spread import (
    Members,
    average,
    means,
    members,
    paired,
    plain_spread,
    spread,
    uniform,
)

Attention = Literal["ascend", "minimise", "detach", "floor"]

BETAS = (0.9, 0.999)
EPS = 1e-16
"""Of Adam; far below any gradient, which arrives scaled by the loss's weight, often tiny."""


def hidden_size(features: int, hidden: int = 0) -> int:
    """Return `hidden`, or for 0 a quarter of the features, from 64 to 256."""
    return hidden or min(256, max(64, features // 4))


def scores(theta: Float[Tensor, " P"], n: Float[Tensor, "B D"], hidden: int) -> Float[Tensor, " B"]:
    """Return a_i = w^T (tanh(V n_i) * sigmoid(U n_i)), `theta` = V, U (h, D) and w (h), flat.

    Gated attention without biases: Ilse et al., ICML 2018, eq. 9 before its softmax.
    """
    # split and chunk, not slices: the backward pass of a slice fills a whole theta with zeros.
    inner, last = torch.split(theta, [theta.numel() - hidden, hidden])
    value, gate = torch.chunk(n @ inner.view(2 * hidden, -1).T, 2, 1)
    return value.tanh().mul(gate.sigmoid()).mv(last)


def attend(a: Float[Tensor, " B"], group: Members) -> Float[Tensor, "B C"]:
    """Return alpha_ic, the softmax of the scores over the members of each class."""
    # The lowest finite number in place of -inf: an absent class would be 0/0.
    masked = torch.where(group.one_hot > 0, a[:, None], torch.finfo(a.dtype).min)
    return masked.softmax(0) * group.one_hot


@final
@dataclass(frozen=True)
class Gated:
    """sum_c beta_c R(v_c), v_c = sum_i alpha_i |z_i - zbar_c|^2, zbar_c = sum_i alpha_i z_i.

    alpha: gated attention (Ilse et al., ICML 2018) on LayerNorm(z) without affine, within the
    class; the spread is taken on raw z. dv/da_j = alpha_j (|z_j - zbar|^2 - v): an attention that
    minimises v ends with all weight on one member and v = 0, the encoder untouched. Modes:

    - `ascend`: gradient reversal (Ganin et al., JMLR 2016): the attention climbs, the encoder
      descends, on the worst weighting.
    - `minimise`: both descend, for comparison; watch `attention-share`.
    - `detach`: alpha is a constant to autograd.
    - `floor`: both descend on (1 - r) alpha + r/n, r = `floor`, so that v >= r * plain spread.

    Classes with fewer than 2 members carry no signal: they are left out and beta is taken over the
    rest. State: `theta` (P,), a leaf that gathers its gradient in `backward`; Adam's moments `m`,
    `v` (P,) and step count `t`; `step` moves theta by about `rate` whatever the loss's weight.
    """

    penalty: Penalty
    share: Share
    classes: int
    features: int
    attention: Attention
    floor: float
    hidden: int
    rate: float

    @torch.no_grad()
    def refresh(self, state: State | None, codes: Codes, generator: torch.Generator) -> State:
        """Return `state` with theta ready to learn; without one, theta drawn as linear layers are.

        Needed once after a state was unpacked: arrays do not remember that theta learns.
        """
        if state is not None:
            return {**state, "theta": state["theta"].detach().clone().requires_grad_()}
        hidden = hidden_size(self.features, self.hidden)
        dtype = next(codes())[0].dtype
        gates = torch.rand(2 * hidden * self.features, generator=generator, dtype=dtype)
        last = torch.rand(hidden, generator=generator, dtype=dtype)
        bounds = [self.features**-0.5, hidden**-0.5]
        theta = torch.cat([(2 * gates - 1) * bounds[0], (2 * last - 1) * bounds[1]])
        return {
            "theta": theta.requires_grad_(),
            "m": torch.zeros_like(theta),
            "v": torch.zeros_like(theta),
            "t": torch.zeros((), dtype=torch.int64),
        }

    def loss(
        self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"], measure: bool = True
    ) -> Term:
        """Return the loss, exactly 0 when no class has 2 members.

        Logged, over classes of 2 or more: `spread` weighs classes by members; means over classes
        of `plain-spread`, `weighted-spread` and `attention-share` = n_eff/n, n_eff =
        1/sum alpha^2. All are 0 when there is no such class.
        """
        group = members(y, self.classes, z)
        counts = paired(group.counts)
        normal = functional.layer_norm(z, z.shape[1:])
        alpha = self.weigh(state["theta"], normal, group)
        v = spread(z, means(z, alpha)[y], alpha)
        loss = shares(counts, self.share) @ self.penalty(v)
        if not measure:
            return Term(loss, {})
        with torch.no_grad():
            plain = plain_spread(z, y, group)
            present = (counts > 0).to(z.dtype)
            power = (alpha.square().sum(0) * counts).clamp_min(1)
            metrics = {
                "spread": average(plain, counts),
                "plain-spread": average(plain, present),
                "weighted-spread": average(v, present),
                "attention-share": average(power.reciprocal(), present),
            }
        return Term(loss, metrics)

    def weigh(
        self, theta: Float[Tensor, " P"], n: Float[Tensor, "B D"], group: Members
    ) -> Float[Tensor, "B C"]:
        """Return each member's weight in its class from its normalised features n."""
        hidden = hidden_size(n.shape[1], self.hidden)
        if self.attention == "detach":
            with torch.no_grad():
                return attend(scores(theta, n, hidden), group)
        if self.attention == "ascend":
            theta = 2 * theta.detach() - theta  # the same bits, the gradient reversed
        alpha = attend(scores(theta, n, hidden), group)
        if self.attention == "floor":
            return (1 - self.floor) * alpha + self.floor * uniform(group)
        return alpha

    @torch.no_grad()
    def step(self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"]) -> State:
        """Return the state after a step of Adam (Kingma and Ba, ICLR 2015); clears the gradient.

        The state itself where no gradient arrived.
        """
        theta = state["theta"]
        grad, theta.grad = theta.grad, None
        if grad is None or not grad.any():
            return state
        t = state["t"] + 1
        m = torch.lerp(grad, state["m"], BETAS[0])
        v = torch.lerp(grad.square(), state["v"], BETAS[1])
        rate = self.rate * (1 - BETAS[1] ** int(t)) ** 0.5 / (1 - BETAS[0] ** int(t))
        moved = theta - rate * m / (v.sqrt() + EPS)
        return {"theta": moved.requires_grad_(), "m": m, "v": v, "t": t}
