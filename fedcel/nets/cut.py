"""What happens to smashed data between encoder and head: the law that the optimal attacker uses."""

from dataclasses import dataclass
from math import log

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Cut:
    """z~ = m * z + sigma * xi: each value is kept with chance 1 - dropout, then noise is added.

    xi ~ N(0, I) and the mask m ~ Bernoulli(1 - dropout)^D are drawn afresh for every message, in
    training and in use; `sigma` in units of z, 0 <= `dropout` < 1.
    """

    sigma: float = 0.0
    dropout: float = 0.0

    @property
    def random(self) -> bool:
        """Say whether the same z gives different messages."""
        return self.sigma > 0 or self.dropout > 0

    def masks(
        self, shape: tuple[int, ...], generator: torch.Generator
    ) -> Bool[Tensor, "*shape"] | None:
        """Return which values are kept, or None where all are."""
        if self.dropout == 0:
            return None
        return torch.rand(shape, generator=generator) >= self.dropout

    def noise(
        self, shape: tuple[int, ...], generator: torch.Generator
    ) -> Float[Tensor, "*shape"] | None:
        """Return sigma * xi, or None where sigma is 0."""
        if self.sigma == 0:
            return None
        return torch.randn(shape, generator=generator) * self.sigma

    def disturb(
        self, z: Float[Tensor, "*shape"], generator: torch.Generator
    ) -> Float[Tensor, "*shape"]:
        """Return one message z~ for each z; z itself when nothing is random."""
        shape = tuple(z.shape)
        mask = self.masks(shape, generator)
        xi = None
        if self.sigma:
            xi = torch.randn(shape, generator=generator, dtype=torch.float64) * self.sigma
        return apply_noise(z, mask, xi)

    def log_prob(
        self, observed: Float[Tensor, "Q D"], codes: Float[Tensor, "M D"]
    ) -> Float[Tensor, "Q M"]:
        """Return log p(z~_q | z_j) in nats and float64, up to one constant for all pairs.

        Values are independent given z: each is N(z, sigma^2), or with dropout p the mixture
        (1 - p) N(z, sigma^2) + p N(0, sigma^2), at sigma 0 a choice between z and 0. ValueError
        when nothing is random. Distances are sums of squared differences: the expansion
        |a|^2 - 2ab + |b|^2 loses all digits when sigma is small, and breaks ties between equals.
        """
        if not self.random:
            raise ValueError("sigma is 0: z~ has no density; an attacker compares codes instead")
        if self.dropout == 0:
            scaled = observed.double() / self.sigma, codes.double() / self.sigma
            distance = torch.cdist(*scaled, compute_mode="donot_use_mm_for_euclid_dist")
            return distance.square() / -2
        total = torch.zeros(len(observed), len(codes), dtype=torch.float64)
        # One feature at a time: (Q, M, D) at once would not fit for thousands of images.
        for seen, code in zip(observed.double().T, codes.double().T, strict=True):
            total += self._one(seen[:, None], code[None])
        return total

    def _one(self, seen: Float[Tensor, "Q 1"], code: Float[Tensor, "1 M"]) -> Float[Tensor, "Q M"]:
        """Return the log-likelihood of one value under dropout."""
        kept, dropped = log(1 - self.dropout), log(self.dropout)
        if self.sigma == 0:
            impossible = -torch.inf
            own = torch.where(torch.eq(seen, code), kept, impossible)
            gone = torch.where(torch.eq(seen, 0.0), dropped, impossible)
            return torch.logaddexp(own, gone.expand_as(own))
        own = kept - (seen - code).square() / (2 * self.sigma**2)
        gone = dropped - seen.square() / (2 * self.sigma**2)
        return torch.logaddexp(own, gone.expand_as(own))


def apply_noise(
    z: Float[Tensor, "*shape"],
    mask: Bool[Tensor, "*shape"] | None,
    noise: Float[Tensor, "*shape"] | None,
) -> Float[Tensor, "*shape"]:
    """Return m * z + noise in the precision of z; None for what is not random.

    The noise is of double precision, and so is the sum before it is rounded. In single precision
    the low bits of most sums tell which z they can be a sum of, and with them the image, at any
    sigma (Mironov, CCS 2012): the law above would not be that of what is sent.
    """
    kept = z if mask is None else z * mask
    return kept if noise is None else (kept.double() + noise).to(z.dtype)
