"""Information, error and Fisher information of linear channels, exact or by random vectors."""

from collections.abc import Callable, Sequence
from math import e, log, pi
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from fedcel.leakage.image_prior import ImagePrior, plane_shape
from fedcel.leakage.local_channel import LocalChannel, is_computable

TOLERANCE = 0.1
"""Half the distance of the bounds on a trace, as a share of it, at which estimates end."""
MOST_STEPS = 30
"""Products with a Jacobian and with its transpose for one trace, at most."""
USUAL_PASSES = 80
"""Passes that an estimate usually takes: 20 such products for each of two traces."""
DAMPING, DAMPING_POWER = 1 / 30, 0.7
"""Constants of `choose_scale`."""


class QuadratureRule(NamedTuple):
    """Nodes and weights with which tr f(G) of each image is the sum of weight times f(node).

    From eigenvalues it is exact; else two ends bracket the share of a random vector.

    Attributes:
        nodes: (E, B, K): ends, images, nodes; 0 or more.
        weights: (E, B, K).
    """

    nodes: Float[Tensor, "E B K"]
    weights: Float[Tensor, "E B K"]

    def apply(self, function: Callable[[Tensor], Tensor]) -> Float[Tensor, "E B"]:
        """Compute the sum for each end and image."""
        return (self.weights * function(self.nodes)).sum(2)


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


def compute_nats(rule: QuadratureRule, gain: float = 1.0) -> Float[Tensor, "E B"]:
    """Compute 1/2 log det(I + g G) by the rule of the information."""
    return rule.apply(lambda nodes: torch.log1p(gain * nodes))


def compute_errors(rule: QuadratureRule, gain: float = 1.0) -> Float[Tensor, "E B"]:
    """Compute the trace of the posterior covariance by the rule of the errors."""
    return rule.apply(lambda nodes: 1 / (1 + gain * nodes))


def compute_fsinfo(
    nats: Float[Tensor, "*B"], variances: Float[Tensor, " d"]
) -> Float[Tensor, "*B"]:
    """Compute FSInfo from 1/2 log det(I + g G), in nats a direction that C has."""
    spread = variances[variances > 0]
    return (2 * nats - spread.log().sum()) / len(spread) - log(2 * pi * e)


def join_rules(rules: Sequence[QuadratureRule]) -> QuadratureRule:
    """Join the rules of several images."""
    size = max(rule.nodes.shape[2] for rule in rules)

    def join(parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([functional.pad(part, (0, size - part.shape[2])) for part in parts], 1)

    return QuadratureRule(*(join(parts) for parts in zip(*rules, strict=True)))


def count_passes(width: int, values: int) -> int:
    """Count the passes through an encoder of one image's numbers, about, of either kind."""
    return min(width, values) if is_computable(width, values) else USUAL_PASSES


def solve_exactly(channel: LocalChannel, prior: ImagePrior) -> ChannelNumbers:
    """Compute the numbers from Jacobians, by eigenvalues of the smaller Gram matrix.

    With G = V diag(nodes) V^T, the weight of a node in the error is v^T C v.
    """
    jacobians = channel.jacobians(prior)
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
    padded = functional.pad(nodes, (0, weights.shape[1] - nodes.shape[1]))
    return ChannelNumbers(
        information=QuadratureRule(nodes[None], halves[None]),
        errors=QuadratureRule(padded[None], weights[None]),
        fisher=jacobians.square().sum(1),
        jacobians=jacobians,
    )


def van_trees_bound(
    fisher: Float[Tensor, "*d d"], variances: Float[Tensor, " d"]
) -> Float[Tensor, ""]:
    """Bound the mean squared error of any attacker from below, for Gaussian images.

    tr((E I(x) + C^-1)^-1) / d, in directions in which C is diagonal. Of E I(x) the diagonal
    suffices, because (J^-1)_kk is at least 1 / J_kk; the bound is lower then.

    References:
        Gill and Levit, Bernoulli 1995, section 2: the multivariate inequality.
    """
    if fisher.dim() == 1:
        return (variances / (1 + variances * fisher)).mean()
    root = variances.sqrt()
    gram = root[:, None] * fisher * root
    factor = torch.linalg.cholesky(gram + torch.eye(len(gram), dtype=gram.dtype))
    whitened = torch.linalg.solve_triangular(factor, torch.diag(root), upper=False)
    bound: Tensor = whitened.square().sum() / len(root)
    return bound


def estimate_numbers(
    channel: LocalChannel, prior: ImagePrior, generator: torch.Generator
) -> ChannelNumbers:
    """Estimate the numbers of one image by random signs and subspaces that bracket each trace.

    With M = A C^(1/2), signs u of the features have E u^T log(I + M M^T) u = log det(I + G), and
    signs of the pixels' coefficients E u^T C^(1/2) (I + G)^-1 C^(1/2) u = the trace of the
    posterior covariance. The former also have E (A^T u)^2 = the diagonal of the Fisher information.
    """
    dtype, root = channel.images.dtype, prior.variances.sqrt().to(channel.images.dtype)

    def send(coefficients: Float[Tensor, " d"]) -> Float[Tensor, " F"]:
        images = prior.from_coefficients((root * coefficients)[None])
        return channel.push(images)[0].detach().cpu()

    def receive(outputs: Float[Tensor, " F"]) -> Float[Tensor, " d"]:
        return root * prior.to_coefficients(channel.pull(outputs[None]))[0]

    signs = [draw_signs((size,), generator).to(dtype) for size in (channel.width, len(root))]
    pulled = prior.to_coefficients(channel.pull(signs[0][None]))[0]
    fisher = pulled.double().square()
    information = find_rules(
        receive, send, signs[0], function=torch.log1p, first_product=root * pulled
    )
    errors = find_rules(
        send,
        receive,
        root * signs[1],
        function=lambda nodes: 1 / (1 + nodes),
        scale=choose_scale(fisher, prior).to(dtype),
    )
    return ChannelNumbers(
        information=information._replace(weights=information.weights / 2),
        errors=errors,
        fisher=fisher[None],
        jacobians=None,
    )


def draw_signs(shape: tuple[int, ...], generator: torch.Generator) -> Float[Tensor, "..."]:
    """Draw random signs, in float64."""
    return torch.randint(2, shape, generator=generator).double() * 2 - 1


def choose_scale(fisher: Float[Tensor, " d"], prior: ImagePrior) -> Float[Tensor, " d"]:
    """Choose factors of coefficients under which I + G has a smaller range of eigenvalues.

    The Fisher information of a coefficient is averaged with that of its neighbours. The constants
    are those with which the errors of two encoders of photographs converged fastest.
    """
    planes = plane_shape(prior.shape) if prior.rotation is None else (1, 1, len(fisher))
    smooth = functional.avg_pool2d(
        fisher.view(1, *planes), 3, stride=1, padding=1, count_include_pad=False
    )
    return (1 + DAMPING * smooth.flatten() * prior.variances) ** (-DAMPING_POWER / 2)


def find_rules(
    multiply: Callable[[Tensor], Tensor],
    transpose: Callable[[Tensor], Tensor],
    start: Float[Tensor, " n"],
    *,
    function: Callable[[Tensor], Tensor],
    scale: Float[Tensor, " n"] | None = None,
    first_product: Float[Tensor, " m"] | None = None,
    tolerance: float = TOLERANCE,
    steps: int = MOST_STEPS,
) -> QuadratureRule:
    """Find two rules (2, 1, K) between which w^T f(H^T H) w lies, for any gain of H^T H.

    `multiply` and `transpose` are H and H^T, `start` is w, `first_product` H w where it is known,
    `function` f. It ends where both rules differ by less than twice the tolerance, as a share of
    their mean.

    The vectors that are tried are Lanczos' of D H^T H D + D^2, with factors D = diag(scale). For
    f(x) = 1 / (1 + g x) the rules are bounds whatever the vectors: x^T w for the best x among them
    from below, and the residual of the best reconstruction from above. For other f whose
    derivatives alternate in sign they are bounds without factors: Gauss' rule and Gauss-Radau's
    with a node at 0.

    References:
        Golub and Meurant, Matrices, Moments and Quadrature, 2010, sections 6.2 and 6.3.
    """
    scale = torch.ones_like(start) if scale is None else scale
    space = TrialSpace(start, scale, min(steps, len(start)))
    vector = scale * start
    length = vector.norm()
    while True:
        vector = vector / length
        if first_product is None:
            middle = multiply(scale * vector)
        else:
            middle, first_product = first_product / length, None
        product = transpose(middle)
        space.add(vector, middle, product)
        rule = space.find_rules()
        ends = rule.apply(function)[:, 0]
        gap = float((ends[0] - ends[1]).abs())
        if space.is_full or gap <= tolerance * float(ends.sum().abs()):
            return rule
        vector = scale * (scale * vector + product)
        size = vector.norm()
        vector = space.remove(vector)
        length = vector.norm()
        if length <= 10 * torch.finfo(vector.dtype).eps * size:
            return rule


class TrialSpace:
    """Vectors v, their H v and H^T H v, and the inner products that two rules are made of."""

    def __init__(self, start: Float[Tensor, " n"], scale: Float[Tensor, " n"], steps: int) -> None:
        self._start, self._scale, self._count = start, scale, 0
        self._vectors = start.new_empty(steps, len(start))
        # Squares of products have twice the range of eigenvalues: too much for float32.
        self._products = start.new_empty(steps, len(start), dtype=torch.float64)
        self._middles = start.new_empty(0)
        self._overlap, self._gram, self._squares = (
            torch.zeros(steps, steps, dtype=torch.float64) for _ in range(3)
        )
        self._shares, self._pulled = (torch.zeros(steps, dtype=torch.float64) for _ in range(2))

    @property
    def is_full(self) -> bool:
        """Whether all steps are done."""
        return self._count == len(self._vectors)

    def add(self, vector: Tensor, middle: Tensor, product: Tensor) -> None:
        """Add v without its scale, H v and H^T H v with it."""
        last, count, steps = self._count, self._count + 1, len(self._vectors)
        middle, product = middle.double(), product.double()
        if not last:
            self._middles = middle.new_empty(steps, len(middle))
        self._vectors[last], self._middles[last], self._products[last] = vector, middle, product
        scaled = self._scale * vector
        for table, stack, row in (
            (self._overlap, self._vectors, self._scale * scaled),
            (self._gram, self._middles, middle),
            (self._squares, self._products, product),
        ):
            table[last, :count] = table[:count, last] = (stack[:count] @ row).double()
        self._shares[last] = scaled @ self._start
        self._pulled[last] = product @ self._start.double()
        self._count = count

    def remove(self, vector: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Remove what a vector has of those that are there."""
        stack = self._vectors[: self._count]
        return vector - (stack @ vector) @ stack

    def find_rules(self) -> QuadratureRule:
        """Find the two rules."""
        count, eps = self._count, torch.finfo(self._vectors.dtype).eps
        basis = find_basis(self._overlap[:count, :count], eps)
        nodes, turn = torch.linalg.eigh(basis.mT @ self._gram[:count, :count] @ basis)
        basis, nodes = basis @ turn, nodes.clamp_min(0)
        weights = (basis.mT @ self._shares[:count]).square()
        basis = (basis / nodes.sqrt())[:, nodes > eps * nodes.amax()]
        others, turn = torch.linalg.eigh(basis.mT @ self._squares[:count, :count] @ basis)
        is_heard = others > eps * others.amax(dim=-1, keepdim=True)
        heard = (turn.mT @ (basis.mT @ self._pulled[:count])).square()[is_heard] / others[is_heard]
        silent = (self._start.double().square().sum() - heard.sum()).clamp_min(0)
        rules = ((nodes, weights), (others[is_heard], heard))
        pairs = [functional.pad(torch.stack(rule), (0, count + 1 - len(rule[0]))) for rule in rules]
        pairs[1][1, -1] = silent  # its node is 0
        joined = torch.stack(pairs, 1)[:, :, None]
        return QuadratureRule(joined[0], joined[1])


def find_basis(overlap: Float[Tensor, "n n"], eps: float) -> Float[Tensor, "n m"]:
    """Find combinations of vectors that are orthonormal, given their inner products."""
    sizes, directions = torch.linalg.eigh(overlap)
    is_kept = sizes > eps * sizes[-1]
    basis: Tensor = directions[:, is_kept] / sizes[is_kept].sqrt()
    return basis
