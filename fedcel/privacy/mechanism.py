"""Private logits: protects the INPUT of one query against whoever reads the answer.

Any two inputs give answers whose chances differ by at most exp(epsilon), for each query on its
own: answers to repeated queries add up (pure composition, epsilon times their number), and the
images a model was trained on are not protected by this. Where the asker owns the input, it is
protected from whoever else reads the answer.

q(x) = clip(logits) + Laplace(Delta_1 / epsilon), Dwork et al., TCC 2006, proposition 1. Noise is
OpenDP's discrete Laplace on the grid of doubles, because textbook sampling leaks through low bits
(Mironov, CCS 2012). It comes from the system's secure generator and cannot be seeded.
"""

import math

import torch
from jaxtyping import Float
from opendp.domains import atom_domain, vector_domain
from opendp.measurements import make_laplace
from opendp.metrics import l1_distance
from opendp.mod import enable_features
from torch import Tensor

from fedcel.settings_groups import Privacy

enable_features("contrib")  # OpenDP asks for consent to constructors with written proofs

LARGEST = 1e100  # logits beyond are taken as this, so that centring cannot overflow
MARGIN = 1 - 1e-12  # clipped rows shrink by this, so that rounding cannot exceed the sensitivity


def clip(logits: Float[Tensor, "B C"], kind: str, c: float) -> Float[Tensor, "B C"]:
    """Return rows in double precision, any two of which differ by at most `sensitivity` in L1.

    `clamp`: centred, each value in [-c, c]. `l1`: centred, Euclidean projection onto |row|_1 <= c.
    `probabilities`: softmax, c is not used. Ties may arise, the order of classes never turns.
    ValueError on undefined logits, an unknown kind or c not above 0.
    """
    sensitivity(kind, c, 1)
    if not logits.isfinite().all():
        raise ValueError("logits hold NaN or infinity, must be finite; check the model's weights")
    wide = logits.double().clamp(-LARGEST, LARGEST)
    if kind == "probabilities":
        return wide.softmax(1) * MARGIN
    centred = wide - wide.mean(1, keepdim=True)
    clipped = centred.clamp(-c, c) if kind == "clamp" else project_l1(centred, c)
    return clipped * MARGIN


def project_l1(rows: Float[Tensor, "B C"], radius: float) -> Float[Tensor, "B C"]:
    """Return the nearest rows with |row|_1 <= radius; Duchi et al., ICML 2008, figure 1."""
    size = rows.abs()
    inside = size.sum(1, keepdim=True) <= radius
    return torch.where(inside, rows, rows.sign() * project_simplex(size, radius))


def project_simplex(rows: Float[Tensor, "B C"], total: float) -> Float[Tensor, "B C"]:
    """Return the nearest rows with values >= 0 and sum `total`; Duchi et al., ICML 2008, fig. 1.

    Computed relative to each row's maximum: what lies more than `total` below it becomes 0 in any
    case, and huge values lose no digits.
    """
    below = (rows - rows.amax(1, keepdim=True)).clamp_min(-total)
    ordered = below.sort(1, descending=True).values
    rank = torch.arange(1, rows.shape[1] + 1, dtype=rows.dtype)
    threshold = (ordered.cumsum(1) - total) / rank
    last = (ordered > threshold).sum(1, keepdim=True) - 1
    return (below - threshold.gather(1, last)).clamp_min(0)


def sensitivity(kind: str, c: float, classes: int) -> float:
    """Return Delta_1, the largest L1 distance of two clipped rows; ValueError says what is wrong.

    Of `clamp` 2 c classes, of `l1` 2 c, of `probabilities` 2.
    """
    if not 0 < c < math.inf:
        raise ValueError(f"c is {c}, must be finite and above 0; try 4")
    found = {"clamp": 2 * c * classes, "l1": 2 * c, "probabilities": 2.0}
    if kind not in found:
        raise ValueError(f"kind is {kind!r}, must be one of {', '.join(found)}")
    return found[kind]


def perturb(
    clipped: Float[Tensor, "B C"], epsilon: float, sensitivity: float
) -> Float[Tensor, "B C"]:
    """Return rows plus independent Laplace noise, each row's release epsilon-DP in that row.

    `sensitivity` is the largest L1 distance of two rows. ValueError on values that are not finite,
    or not above 0. RuntimeError when OpenDP does not confirm epsilon.
    """
    for name, value in (("epsilon", epsilon), ("sensitivity", sensitivity)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} is {value}, must be finite and above 0")
    if not clipped.isfinite().all():
        raise ValueError("clipped logits hold NaN or infinity, must be finite; clip them first")
    scale = math.nextafter(sensitivity / epsilon, math.inf)  # a rounded quotient may be too small
    if scale == math.inf:
        raise ValueError(f"epsilon is {epsilon}, too small for any finite noise; try 0.5")
    space = vector_domain(atom_domain(T=float, nan=False)), l1_distance(T=float)
    mechanism = make_laplace(*space, scale=scale)
    spent = mechanism.map(sensitivity)  # type: ignore[no-untyped-call]
    if spent > epsilon:
        raise RuntimeError(f"OpenDP states a privacy loss of {spent}, more than epsilon {epsilon}")
    noisy = mechanism(clipped.double().flatten().tolist())
    return torch.tensor(noisy, dtype=torch.float64).reshape(clipped.shape)


def private_logits(
    logits: Float[Tensor, "B C"], privacy: Privacy, epsilon: float | None = None
) -> Float[Tensor, "B C"]:
    """Return clipped, perturbed logits in the dtype of `logits`; not repeatable by a seed.

    Each row is one answer with privacy loss `epsilon`, by default `privacy.epsilon`. Mechanism
    `none` returns the clipped logits as they are and protects nothing.
    """
    clipped = clip(logits, privacy.clip_kind, privacy.clip)
    if privacy.mechanism == "laplace":
        bound = sensitivity(privacy.clip_kind, privacy.clip, logits.shape[1])
        spend = privacy.epsilon if epsilon is None else epsilon
        clipped = perturb(clipped, spend, bound)
    return clipped.to(logits.dtype)  # rounding an answer costs no privacy
