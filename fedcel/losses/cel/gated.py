"""Spread under a learned weighting of each class's members."""

import math
import warnings
from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from fedcel.errors import DataError, SettingsError
from fedcel.losses import adam
from fedcel.losses.cel.class_spread import (
    Members,
    class_members,
    drop_singletons,
    plain_spread,
    weighted_mean,
    weighted_means,
    weighted_spread,
)
from fedcel.losses.cel.penalties import Penalty, Share, class_shares
from fedcel.losses.cel.protocol import Codes, State, Term
from fedcel.losses.cel.state_names import check_holds
from fedcel.settings import check_entropy_bonus

Attention = Literal["ascend", "minimise", "detach", "floor"]

COLLAPSE = 0.5
"""Mean n_eff/n below which a warning is given."""


def hidden_size(features: int, hidden: int = 0) -> int:
    """Return `hidden`, or for 0 a quarter of the features, from 64 to 256."""
    return hidden or min(256, max(64, features // 4))


def attention_scores(
    theta: Float[Tensor, " P"], n: Float[Tensor, "B D"], hidden: int
) -> Float[Tensor, " B"]:
    """Return a_i = w^T (tanh(V n_i) * sigmoid(U n_i)), `theta` = V, U (h, D) and w (h), flat.

    Gated attention without biases: Ilse et al., ICML 2018, eq. 9 before its softmax.
    """
    # split and chunk, not slices: the backward pass of a slice fills a whole theta with zeros.
    inner, last = torch.split(theta, [theta.numel() - hidden, hidden])
    value, gate = torch.chunk(n @ inner.view(2 * hidden, -1).T, 2, 1)
    return value.tanh().mul(gate.sigmoid()).mv(last)


def attention_log_weights(a: Float[Tensor, " B"], group: Members) -> Float[Tensor, "B C"]:
    """Return log alpha_ic, the log-softmax of the scores over the members of each class.

    Close to the lowest finite number for others, not -inf: an absent class would be inf - inf.
    """
    masked = torch.where(group.one_hot > 0, a[:, None], torch.finfo(a.dtype).min)
    return masked.log_softmax(0)


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

    `entropy` > 0 keeps the weights apart from a single member: the attention also ascends
    entropy * sum_c beta_c H(alpha_c) in nats, that is it climbs L + entropy H in `ascend` and
    descends L - entropy H in `minimise` and `floor`. The encoder gets no gradient of it and the
    loss's value is without it. SettingsError in `detach`, where no attention moves.

    Classes with fewer than 2 members carry no signal: they are left out and beta is taken over the
    rest. NaN codes give a NaN loss. State: `theta` (P,), a leaf that gathers its gradient in
    `backward`; Adam's moments `m`, `v` (P,) and step count `t`; `step` moves theta by about `rate`
    whatever the loss's weight.
    """

    penalty: Penalty
    share: Share
    classes: int
    features: int
    attention: Attention
    floor: float
    hidden: int
    rate: float
    entropy: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a bonus for an attention that never moves."""
        check_entropy_bonus(self.entropy, self.attention)

    @torch.no_grad()
    def refresh(self, state: State | None, codes: Codes, generator: torch.Generator) -> State:
        """Return `state` with theta ready to learn; without one, theta drawn as linear layers are.

        Needed once after a state was unpacked: arrays do not remember that theta learns. DataError
        when there is no example; SettingsError when theta or the codes are of another size.
        """
        hidden = hidden_size(self.features, self.hidden)
        size = (2 * self.features + 1) * hidden
        if state is not None:
            check_holds(state, adam.NAMES, "an attention")
            if state["theta"].numel() != size:
                raise SettingsError(
                    f"a client's stored attention has {state['theta'].numel()} weights, must have "
                    f"{size} for {self.features} features and hidden size {hidden}: net.features "
                    "or cel.hidden changed; start from an empty state"
                )
            return adam.resume(state)
        dtype = self._dtype(codes)
        gates = torch.rand(2 * hidden * self.features, generator=generator, dtype=dtype)
        last = torch.rand(hidden, generator=generator, dtype=dtype)
        bounds = [self.features**-0.5, hidden**-0.5]
        theta = torch.cat([(2 * gates - 1) * bounds[0], (2 * last - 1) * bounds[1]])
        return adam.start(theta)

    def _dtype(self, codes: Codes) -> torch.dtype:
        for z, _ in codes():
            if z.shape[1] != self.features:
                raise SettingsError(
                    f"smashed data have {z.shape[1]} values, the attention was made for "
                    f"{self.features}; set net.features to what the encoder returns"
                )
            return z.dtype
        raise DataError("a client has 0 examples, must have 1 or more; leave it out")

    def loss(
        self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"], measure: bool = True
    ) -> Term:
        """Return the loss, exactly 0 when no class has 2 members.

        Logged, over classes of 2 or more: `weighted_spread` weighs classes by members; means over
        classes of `plain-spread`, `weighted-spread` and `attention-share` = n_eff/n, n_eff = 1/sum
        alpha^2, and each of these for every such class c as `attention-share-c`. Without such a
        class the means are 0. Measuring warns (UserWarning) when the mean share is below 0.5,
        whatever the mode: the loss then sees few of the members.
        """
        group = class_members(y, self.classes, z)
        counts = drop_singletons(group.counts)
        beta = class_shares(counts, self.share)
        normal = functional.layer_norm(z, z.shape[1:])
        logs = self.weigh(state["theta"], normal, group)
        alpha = logs.exp() * group.one_hot
        v = weighted_spread(z, weighted_means(z, alpha)[y], alpha)
        loss = beta @ self.penalty(v)
        if self.entropy:
            loss = loss + self._bonus(state["theta"], normal.detach(), group, beta)
        if not (measure and counts.any()):  # without a pair there is nothing to measure
            return Term(loss, {})
        metrics = _measure_attention(
            plain_spread(z.detach(), y, group), v.detach(), alpha.detach(), counts
        )
        if metrics["attention-share"] < COLLAPSE:
            self._warn(float(metrics["attention-share"]))
        return Term(loss, metrics)

    def weigh(
        self, theta: Float[Tensor, " P"], n: Float[Tensor, "B D"], group: Members
    ) -> Float[Tensor, "B C"]:
        """Return the logarithm of each member's weight in its class from its normalised n."""
        hidden = hidden_size(self.features, self.hidden)
        if self.attention == "detach":
            with torch.no_grad():
                return attention_log_weights(attention_scores(theta, n, hidden), group)
        if self.attention == "ascend":
            theta = 2 * theta.detach() - theta  # the same bits, the gradient reversed
        logs = attention_log_weights(attention_scores(theta, n, hidden), group)
        if self.attention == "floor":
            # Logarithms of tensors: both r = 0 and r = 1 are allowed and have one of -inf.
            part, even = logs.new_tensor([1 - self.floor, self.floor]).log()
            return torch.logaddexp(logs + part, even - group.counts.clamp_min(1).log())
        return logs

    def _bonus(
        self,
        theta: Float[Tensor, " P"],
        n: Float[Tensor, "B D"],
        group: Members,
        beta: Float[Tensor, " C"],
    ) -> Float[Tensor, ""]:
        """Return 0 whose gradient moves theta alone, towards a larger entropy."""
        logs = self.weigh(theta, n, group)
        entropy = -(logs.exp() * logs * group.one_hot).sum(0) @ beta
        bonus = self.entropy * (entropy if self.attention == "ascend" else -entropy)
        return bonus - bonus.detach()

    def _warn(self, share: float) -> None:
        """Warn, in at most five wordings, so that Python's default filter prints each once."""
        warnings.warn(
            f"attention-share is below {math.ceil(10 * share) / 10:.1f} (1: all members weigh "
            f"alike) under cel.attention {self.attention!r}: the loss sees few of a class's "
            "members; use cel.attention 'floor' or 'detach', or raise cel.entropy",
            stacklevel=3,
        )

    def step(self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"]) -> State:
        """Return the state after a step of Adam, itself where no gradient arrived."""
        return adam.step(state, self.rate)


def _measure_attention(
    plain: Float[Tensor, " C"],
    weighted: Float[Tensor, " C"],
    alpha: Float[Tensor, "B C"],
    counts: Float[Tensor, " C"],
) -> dict[str, Float[Tensor, ""]]:
    """Return the metrics, over classes whose count is not 0."""
    share = (alpha.square().sum(0) * counts).clamp_min(1).reciprocal()
    metrics = {"spread": weighted_mean(plain, counts)}
    each = {"plain-spread": plain, "weighted-spread": weighted, "attention-share": share}
    present = counts > 0
    for name, values in each.items():
        metrics[name] = weighted_mean(values, present.to(values.dtype))
        metrics |= {f"{name}-{c}": values[c] for c in present.nonzero()[:, 0].tolist()}
    return metrics
