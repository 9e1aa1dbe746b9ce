"""Contract of attacks: short trials of reconstruction, beside what every run checks."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from unittest.mock import patch

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks import ATTACK_CHECKS, Attack, compute_anchors, mse
from fedcel.data import Digits, Images, read_source
from fedcel.leakage import FREE_QUERIES, LOG_PROB, MEAN, NOISELESS, Law, Observation
from fedcel.plugins import hold_contract, require

KNOWN, TARGETS, FEATURES = 250, 60, 32
SQUARE = torch.randn(64, 64, generator=torch.Generator().manual_seed(11))
PROJECTION = torch.linalg.qr(SQUARE).Q[:, :FEATURES]
QUICK = 0.1  # share of the effort where the result does not matter
PROGRESS = re.compile(r"(\d+)/(\d+)")


@dataclass(frozen=True)
class LinearObservation:
    """No defence at all: 32 orthonormal projections of 8x8 digits, Gaussian noise of sd 0.01."""

    name: str
    grants: frozenset[str] = frozenset({MEAN, LOG_PROB, FREE_QUERIES})
    sigma: float = 0.01

    def mean(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B F"]:
        """Return the projections, with a gradient."""
        return torch.mm(images.flatten(1), PROJECTION)

    def sample(
        self, images: Float[Tensor, "B C H W"], generator: torch.Generator
    ) -> Float[Tensor, "B F"]:
        """Return the projections with fresh noise."""
        z = self.mean(images)
        return z + self.sigma * torch.randn(z.shape, generator=generator)

    def law_of(self, images: Float[Tensor, "M C H W"]) -> Law:
        """Return the Gaussian log-likelihood up to a constant, in nats."""
        means = self.mean(images).double() / self.sigma
        return lambda observed: torch.cdist(observed.double() / self.sigma, means).square() / -2


def make_stream(seed: int = 0) -> torch.Generator:
    """Return a generator."""
    return torch.Generator().manual_seed(seed)


@cache
def load_digit_targets() -> tuple[Images, Images]:
    """Return the attacker's own digits and the targets, disjoint."""
    x, y = (part[: KNOWN + TARGETS] for part in read_source(Digits()).train)
    return Images(x[:KNOWN], y[:KNOWN]), Images(x[KNOWN:], y[KNOWN:])


def check_attack(
    build: Callable[[], Attack],
    *,
    observation: Observation | None = None,
    budget: float = 0.3,
    share: float = 0.25,
) -> None:
    """Hold an attack to its contract, see `fedcel.attacks.Attack`; it is tried on 8x8 digits.

    Args:
        build: Makes your attack.
        observation: What is attacked; None: projections of the digits with a little noise and no
            defence, which grant `MEAN`, `LOG_PROB` and `FREE_QUERIES`.
        budget: Multiplies your attack's effort, and keeps the trials short.
        share: The attack's MSE must be below this share of the mean image's: a weak attack passes
            for privacy. Ridge regression reaches .12 here, the mean of the right class .72.
    """
    attack = build()
    require(isinstance(attack, Attack), "it must have name, observes, needs and reconstruct")
    hold_contract(ATTACK_CHECKS, attack)
    attacked = observation or LinearObservation(attack.observes)
    lacking = ", ".join(sorted(attack.needs - attacked.grants))
    require(not lacking, f"it must run on what is granted; {lacking} is not")

    own_images, images = load_digit_targets()
    x, steps, _ = _try_attack(build(), attacked, images.x, budget)
    line = "`reconstruct` must return an image for each target, finite, in [0, 1], without gradient"
    require(x.shape == images.x.shape and not x.requires_grad, f"{line}; it made {tuple(x.shape)}")
    require(bool(x.isfinite().all() and x.min() >= 0 and x.max() <= 1), line)
    mean = compute_anchors([own_images]).mean
    error = mse(x, images.x) / mse(mean.expand_as(images.x), images.x)
    line = f"without a defence its MSE must be below {share:g} of the mean image's"
    require(error < share, f"{line}; it is {error:.3g} of it")

    quick, quick_steps, draws = _try_attack(build(), attacked, images.x, QUICK * budget)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)  # and nobody listens to its progress
        again, *_ = _try_attack(build(), attacked, images.x, QUICK * budget, is_heard=False)
    line = "the same seed must give the same images, whatever torch's global stream does"
    require(torch.equal(quick, again), line)
    is_fresh = NOISELESS in attacked.grants or len(set(draws)) == len(draws)
    require(is_fresh, "each query must draw its own noise; a generator's state was used twice")
    line = "progress must name the part done as k/n, in the last line n/n"
    require(all(s and s[-1][0] == s[-1][1] for s in (steps, quick_steps)), line)
    totals = [sum({total for _, total in counted}) for counted in (steps, quick_steps)]
    require(totals[0] > totals[1], "a larger budget must mean more work, counted in its progress")


def _try_attack(
    attack: Attack,
    observation: Observation,
    targets: Float[Tensor, "T C H W"],
    budget: float,
    *,
    is_heard: bool = True,
) -> tuple[Float[Tensor, "T C H W"], list[tuple[int, int]], list[bytes]]:
    """Return reconstructions, the counts k/n of its progress, generator states at its queries."""
    lines, draws = list[str](), list[bytes]()
    original = type(observation).sample

    def sample(self: Observation, images: Tensor, generator: torch.Generator) -> Tensor:
        draws.append(generator.get_state().numpy().tobytes())
        return original(self, images, generator)

    originals = load_digit_targets()[0]
    auxiliary = Images(*(part.clone() for part in originals))
    with patch.object(type(observation), "sample", sample):
        observed = observation.sample(targets, make_stream(5))
        images = attack.reconstruct(
            *(observation, auxiliary, observed, budget, make_stream(1)),
            lines.append if is_heard else None,
        )
    is_kept = all(map(torch.equal, auxiliary, originals))
    require(is_kept, "the attacker's own images must stay as they are; they were written to")
    counts = [(int(k), int(n)) for line in lines for k, n in PROGRESS.findall(line)]
    return images, counts, draws
