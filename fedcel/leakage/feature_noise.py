"""Gaussian noise of each feature: of all that meet a target, that which harms the answer least."""

from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedcel.nets import choose_batch_size, evaluation_mode, place_images
from fedcel.torch_state import make_generator

RANGE = 10.0
"""Factor by which a feature's noise is at most above or below the one that is right for all."""
MAX_ROUNDS = 100
CONVERGED = 1e-4
"""Relative change of the variances at which the noise is found."""
PRECISION = 1e-12
"""Relative precision of the noise."""
ANSWERS = 16
"""Answers that are drawn of each image for the sensitivity of answers."""
TINY = torch.finfo(torch.float64).tiny


def spread_noise(
    scaled: Float[Tensor, "n D d"],
    root: Float[Tensor, " d"],
    harms: Float[Tensor, " D"],
    sigma: float,
    *,
    allowed: float,
    is_error: bool,
) -> Float[Tensor, " D"]:
    """Spread noise over the features so that it does the least harm and meets a target.

    Minimises sum_i harm_i v_i. The leak is convex in the variances v and concave in the precisions
    1 / v, so that its tangent in these bounds it from above. Each round minimises the harm under
    the tangent, which has a closed form: every round meets the target, and none does more harm than
    the one before. No feature gets less than a tenth, or more than ten times, of the noise that is
    right for all, `sigma`: features that are silent on these images may speak on others.

    `scaled` is J C^(1/2) of each image and `root` C^(1/2), in the prior's directions. The leak that
    is allowed is in nats or, with `is_error`, the squared error that a message takes off, summed
    over pixels.

    References:
        Diggavi and Cover, IEEE Trans. Inf. Theory 2001: convexity of the bits. Hunter and Lange, A
        Tutorial on MM Algorithms, 2004: the iteration.
    """
    low, high = (sigma / RANGE) ** 2, (sigma * RANGE) ** 2
    variances = torch.full_like(harms, sigma**2)
    for _ in range(MAX_ROUNDS):
        parts = [differentiate_leak(part, 1 / variances, root, is_error) for part in scaled]
        slope = torch.stack([part[1] for part in parts]).mean(0).clamp_min(0)
        leak = sum(part[0] for part in parts) / len(parts)
        room = allowed - leak + float((slope / variances).sum())
        ideal = (slope / harms.clamp_min(TINY)).sqrt()
        least, most = sqrt(TINY), 1 / sqrt(TINY)  # of the factor of all variances
        while most > least * (1 + PRECISION):
            middle = sqrt(least) * sqrt(most)
            is_little = float((slope / (middle * ideal).clamp(low, high)).sum()) > room
            least, most = (middle, most) if is_little else (least, middle)
        before, variances = variances, (most * ideal).clamp(low, high)
        if float((variances / before).log().abs().max()) < CONVERGED:
            break
    return variances.sqrt()


def differentiate_leak(
    scaled: Float[Tensor, "D d"],
    precisions: Float[Tensor, " D"],
    root: Float[Tensor, " d"],
    is_error: bool,
) -> tuple[float, Float[Tensor, " D"]]:
    """Compute the leak of one image and its slope in the precisions T.

    With M = J C^(1/2) it is 1/2 log det(I + M^T T M), or the error that a message takes off,
    tr C - tr(C^(1/2) (I + M^T T M)^-1 C^(1/2)).
    """
    if len(scaled) <= scaled.shape[1]:  # by the Gram matrix of features: pixels are more
        weighted = scaled * precisions.sqrt()[:, None]
        gram = weighted @ weighted.T
        factor = torch.linalg.cholesky(gram + torch.eye(len(gram), dtype=gram.dtype))
        if is_error:
            solution = torch.cholesky_solve(weighted, factor) * root
            value = float((solution * weighted * root).sum())
            return value, solution.square().sum(1) / precisions
        inverse = torch.cholesky_inverse(factor).diagonal()
        return float(factor.diagonal().log().sum()), (1 - inverse) / precisions / 2
    gram = scaled.T @ (scaled * precisions[:, None])
    factor = torch.linalg.cholesky(gram + torch.eye(len(gram), dtype=gram.dtype))
    if is_error:
        remainder = torch.cholesky_solve(torch.diag(root), factor)
        value = float(root.square().sum() - (remainder.diagonal() * root).sum())
        return value, (scaled @ remainder).square().sum(1)
    whitened = torch.linalg.solve_triangular(factor, scaled.T, upper=False)
    return float(factor.diagonal().log().sum()), whitened.square().sum(0) / 2


def measure_sensitivity(
    head: nn.Module,
    features: Float[Tensor, "N D"],
    *,
    shape: tuple[int, ...],
    sigma: float = 0.0,
    seed: int = 0,
) -> Float[Tensor, " D"]:
    """Measure how much noise on each feature changes the answers, per variance of the noise.

    Diagonal of the mean Fisher information F of a drawn answer about the features. Noise of
    variances v changes the answers by a KL divergence of sum_i v_i F_ii / 2, to second order.
    `shape` is that of one image's features; F is that of features with noise of `sigma`.

    References:
        Amari, Natural Gradient Works Efficiently in Learning, 1998: the Fisher metric.
    """
    generator = make_generator(seed, "answer-sensitivity")
    total = torch.zeros(features.shape[1], dtype=torch.float64)
    with evaluation_mode(head):
        for rows in torch.split(features, choose_batch_size(features)):
            noisy = rows + sigma * torch.randn(rows.shape, generator=generator)
            smashed = place_images(noisy.reshape(-1, *shape), head).detach().requires_grad_()
            log_chances = head(smashed).log_softmax(1)
            answers = (
                log_chances.detach().exp().cpu().multinomial(ANSWERS, True, generator=generator)
            )
            for column in answers.to(log_chances.device).unbind(1):
                chosen = log_chances.gather(1, column[:, None]).sum()
                (slopes,) = torch.autograd.grad(chosen, smashed, retain_graph=True)
                total += slopes.flatten(1).cpu().double().square().sum(0)
    return total / (len(features) * ANSWERS)
