"""Black-box search: ask the service about made-up images until its answers are the target's."""

from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedcel.attacks.attack import Attacker, BaseAttack, Reconstructions
from fedcel.attacks.decoder import apply_network, centre_logits, minimise_loss
from fedcel.errors import SpentError
from fedcel.extras import import_optional
from fedcel.leakage import Observation, ObservationPaid
from fedcel.nets import initialise_parameters

HIDDEN_UNITS = 256  # of the autoencoder
PIXEL_VARIANCE = 0.02  # around the decoder's image, so that the two terms weigh about the same
MAX_PROBES = 32  # own images whose answers tell how noisy answers are
PROBES_DIVISOR = 4  # of what is allowed, at most one part in so many goes to them
PROBE_SHIFT = 1e-4  # towards grey: another image to whoever remembers answers, to all others none
MIN_RELATIVE_VARIANCE = 1e-6  # of an answer, in units of its square: keeps noiseless ones in reach


@dataclass(frozen=True)
class BlackBoxSearch(BaseAttack):
    """Search the image whose answers are the target's, among those of a small autoencoder.

    It maximises log p(answer) + log p(latent). An answer that the service gives to a made-up image
    is as noisy as the target's, so the gap of the two has twice the variance v of one: minimise
    |gap|^2 / (4 v) + |latent|^2 / 2. The result is the mean of the last search distribution, over
    which the noise has averaged out. When the answers are spent before, the search ends with what
    it has.

    Args:
        name, needs, observes: See `Attack`.
        queries: Answers paid for each target at budget 1, or as many whole rounds of them as are
            allowed where answers are paid for.
        latents: Number of the autoencoder's latent values.
        epochs: The autoencoder's passes over the attacker's own images at budget 1.
        width: Standard deviation of the first search distribution, around latent 0.

    References:
        An et al., CVPR 2022 (MIRROR: a search of a generator's latents without gradients), here for
        the image that was sent instead of its class.
        Hansen, 2016 (covariance matrix adaptation), here instead of a genetic algorithm.
    """

    name: str = "blackbox-search"
    needs: frozenset[str] = frozenset()
    observes: str = "private-logits"
    queries: int = 2000
    latents: int = 16
    epochs: int = 200
    width: float = 0.5

    def invert(self, attacker: Attacker, observed: Float[Tensor, "T F"]) -> Reconstructions:
        """Return one image per answer.

        Raises:
            SpentError: Not one round of queries can be paid.
        """
        observation, generator = attacker.observation, attacker.generator
        CMA = import_optional("cmaes").CMA  # noqa: N806 - a class; a second, for its whole toolbox

        size = CMA(np.zeros(self.latents), self.width).population_size
        rounds = max(1, round(self.queries * attacker.budget) // size)
        rounds, probes = plan_queries(observation, rounds, len(observed) * size)
        decoder = fit_vae(attacker, self.latents, attacker.scale(self.epochs))
        probe_images = attacker.auxiliary.x[:probes]
        variance = estimate_answer_variance(observation, probe_images, generator)
        seeds = torch.randint(2**31, (len(observed),), generator=generator).tolist()
        searches = [CMA(np.zeros(self.latents), self.width, seed=seed) for seed in seeds]
        goal = centre_logits(observed).repeat_interleave(size, 0)
        for number in range(1, rounds + 1):
            populations = np.stack([[search.ask() for _ in range(size)] for search in searches])
            latents = torch.from_numpy(populations).flatten(0, 1).float()
            images = apply_network(decoder, latents)
            try:
                answers = centre_logits(observation.sample(images, generator))
            except SpentError:
                if number == 1:
                    raise
                done = (number - 1) * size
                attacker.report("queries", done, done, "the budget is spent")
                break
            gap = answers - goal
            nats = gap.square().sum(1) / (4 * variance) + latents.square().sum(1) / 2
            costs = nats.view(-1, size)
            for search, population, values in zip(
                searches, populations, costs.tolist(), strict=True
            ):
                search.tell(list(zip(population, values, strict=True)))
            cost = f"cost {costs.mean():.3g}"
            attacker.report("queries", number * size, rounds * size, cost)
        centres = np.stack([search.mean for search in searches])
        return apply_network(decoder, torch.from_numpy(centres).float())


def plan_queries(observation: Observation, rounds: int, price: int) -> tuple[int, int]:
    """Return how many rounds at `price` answers each are allowed, and how many own images to probe.

    SpentError where not one round is.
    """
    if not isinstance(observation, ObservationPaid):
        return rounds, MAX_PROBES
    allowed = observation.allowance
    probes = min(MAX_PROBES, allowed // (2 * PROBES_DIVISOR))
    affordable = (allowed - 2 * probes) // price
    if not (probes and affordable):
        raise SpentError(
            f"{allowed} answers are allowed for a search, a round takes {price} and a quarter goes "
            "to probes; ask for fewer attack.targets or attack.seeds, or grant more"
        )
    return min(rounds, affordable), probes


def estimate_answer_variance(
    observation: Observation, images: Float[Tensor, "N C H W"], generator: torch.Generator
) -> float:
    """Return the variance of one value of an answer about one image.

    From the answers to each image and to one that hardly differs, because a service may answer the
    same image the same.
    """
    shifted = images.lerp(torch.full_like(images, 0.5), PROBE_SHIFT)
    first, second = (
        centre_logits(observation.sample(probes, generator)) for probes in (images, shifted)
    )
    least = MIN_RELATIVE_VARIANCE * first.square().mean()
    return float(((first - second).square().mean() / 2).clamp_min(least))


def fit_vae(attacker: Attacker, latents: int, epochs: int) -> nn.Module:
    """Return a decoder (B, latents) of the attacker's images whose latents are about N(0, I).

    Kingma and Welling, ICLR 2014, equation 10, with a Gaussian decoder.
    """
    images, generator = attacker.auxiliary.x, attacker.generator
    shape = tuple(images.shape[1:])
    encoder = nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(shape), HIDDEN_UNITS),
        nn.ReLU(),
        nn.Linear(HIDDEN_UNITS, 2 * latents),
    )
    decoder = nn.Sequential(
        nn.Linear(latents, HIDDEN_UNITS),
        nn.ReLU(),
        nn.Linear(HIDDEN_UNITS, prod(shape)),
        nn.Unflatten(1, shape),
        nn.Sigmoid(),
    )
    both = nn.ModuleList([encoder, decoder])
    initialise_parameters(both, generator)

    def batch_loss(batch: Int[Tensor, " b"]) -> Float[Tensor, ""]:
        mean, log_variance = encoder(images[batch]).chunk(2, 1)
        noise = torch.randn(mean.shape, generator=generator)
        decoded = decoder(mean + noise * (log_variance / 2).exp())
        error = (decoded - images[batch]).square().flatten(1).sum(1) / (2 * PIXEL_VARIANCE)
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1) / 2
        loss: Tensor = (error + divergence).mean()
        return loss

    def tell_epoch(epoch: int, loss: float) -> None:
        attacker.report("prior epoch", epoch, epochs, f"loss {loss:.2f} nats")

    minimise_loss(
        both.parameters(),
        batch_loss,
        len(images),
        epochs,
        generator=generator,
        tell_epoch=tell_epoch,
    )
    return decoder
