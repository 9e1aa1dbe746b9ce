"""Information, error and Fisher information of linear channels, exact or by random vectors."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.leakage.image_prior import ImagePrior
from fedcel.leakage.local_channel import LocalChannel

MAX_VALUES = 2**25
"""Values of one image's Jacobian up to which it is computed."""
MAX_PASSES = 1024
"""Passes through an encoder of small images that computing its Jacobian may take."""
MAX_PASSES_LARGE = 256
"""The same of large images, where an estimate takes about as many whatever the features."""
SMALL_IMAGE = 4096
"""Values of an image that is small."""
PROBES = 2
"""Random vectors that a trace is estimated with."""
STEPS = 20
"""Steps of Lanczos' method."""
BREAKDOWN = 1e-12
"""Length of a new direction, as a share of its image under the matrix, that is rounding."""


class QuadratureRule(NamedTuple):
    """Nodes and weights with which tr f(G) of each image is the sum of weight times f(node).

    From eigenvalues it is exact; from Lanczos' method two ends bracket each random vector's share.

    Attributes:
        nodes: (E, P, B, K): ends, random vectors, images, nodes; 0 or more.
        weights: (E, P, B, K).
    """

    nodes: Float[Tensor, "E P B K"]
    weights: Float[Tensor, "E P B K"]

    def apply(self, function: Callable[[Tensor], Tensor]) -> Float[Tensor, "E P B"]:
        """Compute the sum for each end, random vector and image."""
        return (self.weights * function(self.nodes)).sum(3)


class ChannelNumbers(NamedTuple):
    """Numbers of a batch of linear channels, at any gain.

    The gain g multiplies I(x): it is the number of messages over the square of the noise, in units
    of the noise that the channels have. G is C^(1/2) I(x) C^(1/2).

    Attributes:
        information: Rule of 1/2 log det(I + g G), with f(node) = log(1 + g node).
        errors: Rule of the trace of the posterior covariance, with f(node) = 1 / (1 + g node).
        fisher: Diagonal of I(x) = A^T A in the prior's directions, (B, d).
        jacobians: A in the prior's directions, (B, F, d), where it is computed.
    """

    information: QuadratureRule
    errors: QuadratureRule
    fisher: Float[Tensor, "B d"]
    jacobians: Float[Tensor, "B F d"] | None


def compute_nats(rule: QuadratureRule, gain: float = 1.0) -> Float[Tensor, "E P B"]:
    """Compute 1/2 log det(I + g G) by the rule of the information."""
    return rule.apply(lambda nodes: torch.log1p(gain * nodes))


def compute_errors(rule: QuadratureRule, gain: float = 1.0) -> Float[Tensor, "E P B"]:
    """Compute the trace of the posterior covariance by the rule of the errors."""
    return rule.apply(lambda nodes: 1 / (1 + gain * nodes))


def join_rules(rules: Sequence[QuadratureRule]) -> QuadratureRule:
    """Join the rules of several images."""
    nodes, weights = (torch.cat(parts, 2) for parts in zip(*rules, strict=True))
    return QuadratureRule(nodes, weights)


def is_computable(width: int, values: int) -> bool:
    """Whether the Jacobian of `width` outputs by image values takes little time and memory."""
    passes = MAX_PASSES if values <= SMALL_IMAGE else MAX_PASSES_LARGE
    return min(width, values) <= passes and width * values <= MAX_VALUES


def compute_jacobians(channel: LocalChannel, prior: ImagePrior) -> Float[Tensor, "B F d"]:
    """Compute A Q, by rows where features are fewer than pixels and have a gradient."""
    count, values = len(channel.images), prior.variances.numel()
    if channel.has_gradient and channel.width <= values:
        units = torch.eye(channel.width, dtype=channel.images.dtype)
        rows = [channel.pull(unit.expand(count, -1)).cpu() for unit in units]
        pixels = torch.stack(rows, 1).flatten(0, 1)
        return prior.to_coefficients(pixels).double().view(count, channel.width, values)
    units = torch.eye(values, dtype=torch.float64)
    columns = [
        channel.push(prior.from_coefficients(unit[None]).expand(count, *prior.shape))
        for unit in units
    ]
    return torch.stack([column.detach().cpu().double() for column in columns], 2)


def solve_exactly(channel: LocalChannel, prior: ImagePrior) -> ChannelNumbers:
    """Compute the numbers from Jacobians, by eigenvalues of the smaller Gram matrix.

    With G = V diag(nodes) V^T, the weight of a node in the error is v^T C v.
    """
    jacobians = compute_jacobians(channel, prior)
    root = prior.variances.sqrt()
    scaled = jacobians * root
    is_wide = scaled.shape[1] <= scaled.shape[2]
    nodes, vectors = torch.linalg.eigh(scaled @ scaled.mT if is_wide else scaled.mT @ scaled)
    if is_wide:
        # Of G's eigenvectors v = M^T u / node^(1/2); in all others the message tells nothing.
        smallest = nodes[:, -1:] * nodes.shape[1] * torch.finfo(nodes.dtype).eps
        lengths = ((vectors.mT @ scaled) * root).square().sum(2)
        weights = torch.where(nodes > smallest, lengths / nodes, 0.0)
        silent = (prior.variances.sum() - weights.sum(1, keepdim=True)).clamp_min(0)
        weights = torch.cat([weights, silent], 1)
    else:
        weights = (vectors * root[:, None]).square().sum(1)
    nodes = nodes.clamp_min(0)
    halves = torch.full_like(nodes, 0.5)
    padded = torch.nn.functional.pad(nodes, (0, weights.shape[1] - nodes.shape[1]))
    return ChannelNumbers(
        information=QuadratureRule(nodes[None, None], halves[None, None]),
        errors=QuadratureRule(padded[None, None], weights[None, None]),
        fisher=jacobians.square().sum(1),
        jacobians=jacobians,
    )


def factor_gram(
    scaled: Float[Tensor, "B F d"],
) -> tuple[Float[Tensor, "B s s"], Float[Tensor, " B"]]:
    """Return the Cholesky factor of I + M M^T, or of I + M^T M if d < F, and 1/2 log det of it."""
    gram = scaled @ scaled.mT if scaled.shape[1] <= scaled.shape[2] else scaled.mT @ scaled
    factor = torch.linalg.cholesky(gram + torch.eye(gram.shape[-1], dtype=gram.dtype))
    return factor, factor.diagonal(dim1=1, dim2=2).log().sum(1)


def trace_posterior(
    factor: Float[Tensor, "B d d"], root: Float[Tensor, " d"]
) -> Float[Tensor, " B"]:
    """Return tr(P^(1/2) (I + G)^-1 P^(1/2)) by the Cholesky factor of I + G."""
    whitened = torch.linalg.solve_triangular(
        factor, torch.diag(root).expand_as(factor), upper=False
    )
    traces: Tensor = whitened.square().sum((1, 2))
    return traces


def van_trees_bound(
    fisher: Float[Tensor, "*d d"], variances: Float[Tensor, " d"]
) -> Float[Tensor, ""]:
    """Bound the mean squared error of any attacker from below, for Gaussian images.

    tr((E I(x) + C^-1)^-1) / d, in directions in which C is diagonal. Of E I(x) the diagonal
    suffices, because (J^-1)_kk is at least 1 / J_kk; the bound is lower then.

    Args:
        fisher: E I(x), (d, d), or its diagonal (d,).
        variances: Of the images, (d,).

    References:
        Gill and Levit, Bernoulli 1995, section 2: the multivariate inequality.
    """
    if fisher.dim() == 1:
        return (variances / (1 + variances * fisher)).mean()
    root = variances.sqrt()
    gram = root[:, None] * fisher * root
    factor = torch.linalg.cholesky(gram + torch.eye(len(gram), dtype=gram.dtype))
    return trace_posterior(factor[None], root)[0] / len(root)


def estimate_numbers(
    channel: LocalChannel, prior: ImagePrior, generator: torch.Generator
) -> ChannelNumbers:
    """Estimate the numbers of one image, given `PROBES` times, by stochastic Lanczos quadrature.

    Random signs u have E u^T f(G) u = tr f(G); each is bracketed by Gauss' and Gauss-Radau's rule.
    """
    probes, root = len(channel.images), prior.variances.sqrt().to(channel.images.dtype)

    def apply_gram(vectors: Float[Tensor, "P d"]) -> Float[Tensor, "P d"]:
        pulled = channel.pull(channel.push(prior.from_coefficients(root * vectors)).detach())
        return root * prior.to_coefficients(pulled)

    signs = draw_signs((2, probes, len(root)), generator).to(root)
    information = find_quadrature(apply_gram, signs[0])
    errors = find_quadrature(apply_gram, root * signs[1])
    outputs = draw_signs((probes, channel.width), generator)
    fisher = prior.to_coefficients(channel.pull(outputs)).double().square().mean(0, keepdim=True)
    return ChannelNumbers(
        information=information._replace(weights=information.weights / 2),
        errors=errors,
        fisher=fisher,
        jacobians=None,
    )


def draw_signs(shape: tuple[int, ...], generator: torch.Generator) -> Float[Tensor, "..."]:
    """Draw random signs, in float64."""
    return torch.randint(2, shape, generator=generator).double() * 2 - 1


def find_quadrature(
    multiply: Callable[[Tensor], Tensor], start: Float[Tensor, "P d"], steps: int = STEPS
) -> QuadratureRule:
    """Find two rules between which w^T f(G) w lies, for f whose derivatives alternate in sign.

    G is positive semi-definite. Gauss' rule is one end, Gauss-Radau's with a node at 0 the other.
    The rules are of one image: nodes (2, P, 1, K).

    References:
        Golub and Meurant, Matrices, Moments and Quadrature, 2010, sections 6.2 and 6.3.
    """
    lengths = start.norm(dim=1)
    vectors, previous = start / lengths[:, None], torch.zeros_like(start)
    beta = start.new_zeros(len(start))
    diagonal, off_diagonal = [], []
    for _ in range(min(steps, start.shape[1])):
        product = multiply(vectors)
        size = product.norm(dim=1)
        product = product - beta[:, None] * previous
        alpha = (product * vectors).sum(1)
        product = product - alpha[:, None] * vectors
        beta = product.norm(dim=1)
        beta = beta.where(beta > BREAKDOWN * size, 0.0)
        diagonal.append(alpha)
        off_diagonal.append(beta)
        previous = vectors
        vectors = torch.where(beta[:, None] > 0, product / beta[:, None], 0.0)
    alphas, betas = (torch.stack(parts, 1).double() for parts in (diagonal, off_diagonal))
    inner = torch.diag_embed(alphas)
    for offset in (1, -1):
        inner = inner + torch.diag_embed(betas[:, :-1], offset)
    steps = alphas.shape[1]
    last = torch.zeros_like(alphas)
    last[:, -1] = betas[:, -1].square()
    # Rounding, and a G without full rank, leave `inner` without a largest inverse.
    shift = BREAKDOWN * alphas.amax(1).clamp_min(torch.finfo(alphas.dtype).tiny)
    ridge = inner + shift[:, None, None] * torch.eye(steps, dtype=alphas.dtype)
    corner = torch.linalg.solve(ridge, last)[:, -1]
    outer = torch.nn.functional.pad(inner, (0, 1, 0, 1))
    outer[:, steps, steps] = corner
    outer[:, steps, steps - 1] = outer[:, steps - 1, steps] = betas[:, -1]
    rules = []
    for tridiagonal in (torch.nn.functional.pad(inner, (0, 1, 0, 1)), outer):
        nodes, directions = torch.linalg.eigh(tridiagonal)
        rules.append((nodes.clamp_min(0), directions[:, 0].square()))
    nodes, weights = (torch.stack(parts)[:, :, None] for parts in zip(*rules, strict=True))
    return QuadratureRule(nodes, lengths.double().square()[:, None, None] * weights)
