"""Spread under a learned weighting of each class's members."""

import math
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedcel.errors import DataError, SettingsError
from fedcel.losses import adam
from fedcel.losses.cel.cel_module import CELModule
from fedcel.losses.cel.conditional_entropy import (
    Members,
    SpreadCEL,
    class_members,
    class_shares,
    drop_singletons,
    plain_spread,
    select_measured,
    select_rows,
    uniform_weights,
    weighted_mean,
    weighted_means,
    weighted_spread,
)
from fedcel.losses.protocol import (
    SHARE,
    Batch,
    FeatureReader,
    MetricRanges,
    State,
    Term,
)

FLOOR_SHARE = 0.5
"""Share r of the weights that the attention `floor` spreads evenly over a class."""
ATTENTION_RATE = 0.01
"""Step size of the attention's weights."""
COLLAPSED_SHARE = 0.5
"""Mean n_eff/n below which a warning is given."""


def attention_scores(
    theta: Float[Tensor, "*k P"], n: Float[Tensor, "*k B D"]
) -> Float[Tensor, "*k B"]:
    """Return a_i = w^T (tanh(V n_i) * sigmoid(U n_i)), `theta` = V, U (h, D) and w (h), flat.

    Gated attention without biases: Ilse et al., ICML 2018, eq. 9 before its softmax.
    """
    scores: Tensor = _AttentionScores.apply(theta, n)
    return scores


class _AttentionScores(torch.autograd.Function):
    """The scores as one operation of autograd, whose gradient is one vector like theta."""

    @staticmethod
    def forward(
        ctx: Any, theta: Float[Tensor, "*k P"], n: Float[Tensor, "*k B D"]
    ) -> Float[Tensor, "*k B"]:
        inner, w = _split_theta(theta, n.shape[-1])
        value, gate = torch.chunk(n @ inner.mT, 2, -1)
        # tanh(x) = 2 sigmoid(2 x) - 1, which PyTorch computes four times as fast.
        value, gate = (2 * value).sigmoid_().mul_(2).sub_(1), gate.sigmoid()
        product = value * gate
        ctx.save_for_backward(theta, n, value, gate, product)
        return (product * w.unsqueeze(-2)).sum(-1)

    @staticmethod
    def backward(ctx: Any, slope: Float[Tensor, "*k B"]) -> tuple[Tensor | None, Tensor | None]:
        theta, n, value, gate, product = ctx.saved_tensors
        inner, w = _split_theta(theta, n.shape[-1])
        by_product = slope.unsqueeze(-1) * w.unsqueeze(-2)
        by_inner_product = torch.cat(
            [by_product * gate * (1 - value.square()), by_product * product * (1 - gate)], -1
        )
        by_theta = by_n = None
        if ctx.needs_input_grad[0]:
            by_inner = (by_inner_product.mT @ n).flatten(-2)
            by_w = (slope.unsqueeze(-2) @ product).squeeze(-2)
            by_theta = torch.cat([by_inner, by_w], -1)
        if ctx.needs_input_grad[1]:
            by_n = by_inner_product @ inner
        return by_theta, by_n


def _split_theta(
    theta: Float[Tensor, "*k P"], features: int
) -> tuple[Float[Tensor, "*k h2 D"], Float[Tensor, "*k h"]]:
    """Return V above U (2h, D), and w (h,)."""
    hidden = theta.shape[-1] // (2 * features + 1)
    inner, w = torch.split(theta, [theta.shape[-1] - hidden, hidden], -1)
    return inner.view(*inner.shape[:-1], 2 * hidden, -1), w


def attention_weights(a: Float[Tensor, "*k B"], members: Members) -> Float[Tensor, "*k B C"]:
    """Return alpha_ic, the softmax of the scores over the members of each class, 0 for others."""
    weights: Tensor = _ClassSoftmax.apply(a, members.one_hot)
    return weights


class _ClassSoftmax(torch.autograd.Function):
    """The softmax within each class, with the gradient alpha_i (g_i - sum_j alpha_j g_j)."""

    @staticmethod
    def forward(
        ctx: Any, a: Float[Tensor, "*k B"], one_hot: Float[Tensor, "*k B C"]
    ) -> Float[Tensor, "*k B C"]:
        is_member = one_hot > 0
        masked = torch.where(is_member, a.unsqueeze(-1), -torch.inf)
        alpha = torch.where(is_member, masked.softmax(-2), 0.0)  # an absent class has NaN
        ctx.save_for_backward(alpha)
        return alpha

    @staticmethod
    def backward(ctx: Any, slope: Float[Tensor, "*k B C"]) -> tuple[Float[Tensor, "*k B"], None]:
        (alpha,) = ctx.saved_tensors
        weighted = alpha * slope
        return (weighted - alpha * weighted.sum(-2, keepdim=True)).sum(-1), None


class Gated(SpreadCEL):
    """Keeps each class close together under weights that a gated attention gives its members.

    sum_c beta_c R(v_c), v_c = sum_i alpha_i |z_i - zbar_c|^2, zbar_c = sum_i alpha_i z_i, alpha the
    softmax within the class of a gated attention on LayerNorm(z) without affine; the spread is
    taken on raw z. dv/da_j = alpha_j (|z_j - zbar|^2 - v): an attention that minimises v ends with
    all weight on one member and v = 0, the encoder untouched.

    How the attention moves: `ascend`: it climbs while the encoder descends, on the worst weighting,
    by gradient reversal. `minimise`: both descend, for comparison; watch `attention-share`.
    `detach`: alpha is a constant to autograd. `floor`: both descend on (1 - r) alpha + r/n, so that
    v >= r * plain spread. A step moves theta by about `ATTENTION_RATE`, whatever the loss's weight.

    Classes with fewer than 2 members carry no signal: they are left out and beta is taken over the
    rest. Features that are NaN give a NaN loss.

    State: `theta` (P,), a leaf that gathers its gradient in `backward`; Adam's moments `m`, `v`
    (P,) and step count `t`.

    References:
        Ilse et al., ICML 2018, eq. 9 (gated attention). Ganin et al., JMLR 2016 (gradient
        reversal).
    """

    kind: Literal["gated"] = "gated"
    attention: Literal["ascend", "minimise", "detach", "floor"] = Field(
        "ascend", description="Training of the attention: against the loss, with it, or not at all."
    )

    metric_ranges: ClassVar[MetricRanges] = {
        "spread": lambda scale: scale.spread,
        "plain-spread": lambda scale: scale.spread._replace(is_per_class=True),
        "weighted-spread": lambda scale: scale.spread._replace(is_per_class=True),
        "attention-share": SHARE._replace(is_per_class=True),
    }

    @property
    def hidden_size(self) -> int:
        """The width h of the attention: a quarter of the features, from 64 to 256."""
        return min(256, max(64, self._cut.features // 4))

    @property
    def theta_size(self) -> int:
        """Number of weights of the attention."""
        return (2 * self._cut.features + 1) * self.hidden_size

    @torch.no_grad()
    def refresh(
        self,
        state: State | None,
        read_features: FeatureReader,
        generators: Sequence[torch.Generator],
    ) -> State:
        """Make theta ready to learn, drawn as linear layers are at first; see `LossTerm.refresh`.

        A state that was stored has lost theta's `requires_grad`; this sets it.

        Raises:
            DataError: There is no example.
            SettingsError: theta or the features are of another size.
        """
        hidden = self.hidden_size
        if state is not None:
            return adam.resume_state(state, self.theta_size, "attention", "net.features")
        layers = [(2 * hidden * self._cut.features, self._cut.features), (hidden, hidden)]
        dtype = self._feature_dtype(read_features)
        return adam.init_states([adam.draw_layers(layers, stream, dtype) for stream in generators])

    def _feature_dtype(self, read_features: FeatureReader) -> torch.dtype:
        for z, *_ in read_features():
            if z.shape[1] != self._cut.features:
                raise SettingsError(
                    f"the encoder makes {z.shape[1]} features, the attention was made for "
                    f"{self._cut.features}; set net.features to what the encoder returns"
                )
            return z.dtype
        raise DataError("a client has 0 examples, must have 1 or more; leave it out")

    def loss(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute the loss, exactly 0 when no class has 2 members; see `LossTerm.loss`.

        Logged, over classes of 2 or more: `spread`, the plain one, weighs classes by members; means
        over classes of `plain-spread`, `weighted-spread` and `attention-share` = n_eff/n, n_eff =
        1/sum alpha^2, and each of these for every such class c as `attention-share-c`. Measuring
        warns (UserWarning) when the mean share is below 0.5, whatever the mode: the loss then sees
        few of the members.
        """
        z, y = batch.z, batch.y
        members = class_members(y, self._cut.classes, z)
        counts = drop_singletons(members.counts)
        beta = class_shares(counts, self.share)
        normalised_z = functional.layer_norm(z, z.shape[-1:])
        alpha = self._weights(state["theta"], normalised_z, members)
        v = weighted_spread(z, select_rows(weighted_means(z, alpha), y), alpha)
        loss = torch.linalg.vecdot(beta, self.charge(v))
        if not measure:
            return Term(loss, {})
        metrics = _measure_attention(
            plain_spread(z.detach(), y, members), v.detach(), alpha.detach(), counts
        )
        for share in metrics.get("attention-share", counts.new_empty(0)).view(-1).tolist():
            if share < COLLAPSED_SHARE:
                self._warn_of_collapse(share)
        return Term(loss, metrics)

    def _weights(
        self, theta: Float[Tensor, "*k P"], n: Float[Tensor, "*k B D"], members: Members
    ) -> Float[Tensor, "*k B C"]:
        """Return each member's weight in its class from its normalised n."""
        if self.attention == "detach":
            theta, n = theta.detach(), n.detach()
        if self.attention == "ascend":
            theta = adam.reverse_gradient(theta)
        alpha = attention_weights(attention_scores(theta, n), members)
        if self.attention != "floor":
            return alpha
        return (1 - FLOOR_SHARE) * alpha + FLOOR_SHARE * uniform_weights(members)

    def _warn_of_collapse(self, share: float) -> None:
        """Warn, in at most five wordings, so that Python's default filter prints each once."""
        warnings.warn(
            f"attention-share is below {math.ceil(10 * share) / 10:.1f} (1: all members weigh "
            f"alike) under the attention {self.attention!r}: the loss sees few of a class's "
            "members; use the attention 'floor' or 'detach' (in a run cel.attention)",
            stacklevel=3,
        )

    def update(self, state: State) -> State:
        """Move theta where a gradient arrived; see `LossTerm.update`."""
        return adam.take_step(state, ATTENTION_RATE)


class GatedCEL(CELModule, options=Gated):
    """Penalises the spread of each class under the weights of a learned attention.

    The attention learns by itself: it takes its step at the next `forward` after a backward pass.
    It is made at the first batch; `refresh` is not needed.
    """


def _measure_attention(
    plain: Float[Tensor, "*k C"],
    weighted: Float[Tensor, "*k C"],
    alpha: Float[Tensor, "*k B C"],
    counts: Float[Tensor, "*k C"],
) -> dict[str, Float[Tensor, "*k"]]:
    """Return the metrics, over classes whose count is not 0; see `select_measured`."""
    share = (alpha.square().sum(-2) * counts).clamp_min(1).reciprocal()
    metrics = {"spread": weighted_mean(plain, counts)}
    per_class = {"plain-spread": plain, "weighted-spread": weighted, "attention-share": share}
    present = counts > 0
    for name, values in per_class.items():
        metrics[name] = weighted_mean(values, present.to(values.dtype))
    measured = select_measured(metrics, present.any(-1))
    for name, values in per_class.items():
        for c, is_present in enumerate(present.unbind(-1)):
            measured |= select_measured({f"{name}-{c}": values[..., c]}, is_present)
    return measured
