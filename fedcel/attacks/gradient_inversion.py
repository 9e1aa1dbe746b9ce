"""Gradient inversion: find the images whose update points where the uploaded one does.

Source: Geiping et al., NeurIPS 2020, equation 4. Labels need not be known: the head's bias shows
how many images each class has; see `Uploads` for a batch of one, Zhao et al., 2020 (iDLG). Noise at
the cut, and what is dropped there, were drawn once for each image and are searched for with it: an
upload has far more values than all of them together, so they hide nothing.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cosine_similarity

from fedcel.attacks.pixel_descent import total_variation
from fedcel.attacks.protocol import Progress, report_progress
from fedcel.attacks.score_card import order_batches
from fedcel.data import Images
from fedcel.errors import SettingsError
from fedcel.leakage import UPDATE, Observation, ObservationUpdate, make_refusal

TUNED_ON = 8  # own images on which the weight is chosen, or one batch where that is more
PRIOR = 1e-4  # weight of the noise's mean square, in units of its variance, beside the distance
SPREAD = 0.1  # sd of the first images around the mean: images of one class must not start equal


@dataclass(frozen=True)
class GradientInversion:
    """Minimise 1 - cosine(update(x, y, u, m), uploaded) + tv TV(x) + 1e-4 mean u^2.

    By Adam on the gradient's signs, over the images x, the noise u at the cut, in units of its
    standard deviation, and the mask m there, in [0, 1].
    Starts at the mean of the attacker's own images. The weight tv is that which rebuilds best his
    own images from their uploads; what is found is drawn back to that mean by the share that
    rebuilds them best, all the way where noise leaves nothing to find.
    """

    name: str = "gradient-inversion"
    needs: frozenset[str] = frozenset({UPDATE})
    observes: str = "update"
    steps: int = 1000
    rate: float = 0.1
    weights: tuple[float, ...] = (0.0, 0.001, 0.01, 0.1)

    def reconstruct(
        self,
        observation: Observation,
        auxiliary: Images,
        observed: Float[Tensor, "T P"],
        budget: float,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Float[Tensor, "T C H W"]:
        """Return one image in [0, 1] per row, a batch in any order.

        ValueError without updates, SettingsError on fewer own images than are behind an upload.
        """
        if not isinstance(observation, ObservationUpdate):
            raise make_refusal(observation, UPDATE)
        steps, size = max(1, round(self.steps * budget)), observation.batch
        centre = auxiliary.x.mean(0)
        count = count_tuning_images(size, len(auxiliary.y))
        own = auxiliary.x[torch.randperm(len(auxiliary.y), generator=generator)[:count]]
        weight, share = self.tuned(observation, own, centre, steps, generator, progress)
        found = self.search(observation, centre, observed, weight, steps, generator, progress)
        return centre + share * (found - centre)

    def tuned(
        self,
        observation: ObservationUpdate,
        own: Float[Tensor, "N C H W"],
        centre: Float[Tensor, "C H W"],
        steps: int,
        generator: torch.Generator,
        progress: Progress | None,
    ) -> tuple[float, float]:
        """Return the weight with the lowest MSE on own images, and the share it is reached with."""
        size, count = observation.batch, len(self.weights)
        uploads = observation.sample(own, generator)[::size]
        labels = observation.labels(uploads, size).repeat(count, 1)
        weights = torch.tensor(self.weights).repeat_interleave(len(uploads))
        found = self.descend(
            observation,
            centre,
            labels,
            uploads.repeat(count, 1),
            weights,
            steps,
            generator,
            progress,
        )
        best = (torch.inf, self.weights[0], 0.0)
        for tried, images in zip(self.weights, found.chunk(count), strict=True):
            moved = order_batches(images.flatten(0, 1), own, size) - centre
            share = fit_shrinkage(moved, own - centre)
            best = min(
                best, (float((share * moved - (own - centre)).square().mean()), tried, share)
            )
        return best[1:]

    def search(
        self,
        observation: ObservationUpdate,
        centre: Float[Tensor, "C H W"],
        observed: Float[Tensor, "T P"],
        weight: float,
        steps: int,
        generator: torch.Generator,
        progress: Progress | None,
    ) -> Float[Tensor, "T C H W"]:
        """Return the images of all uploads; a last, smaller batch is searched on its own."""
        size = observation.batch
        whole = len(observed) // size * size
        parts = [
            (observed[:whole:size], size),
            (observed[whole : whole + 1], len(observed) - whole),
        ]
        found = []
        for uploads, batch in parts:
            if len(uploads):
                labels = observation.labels(uploads, batch)
                images = self.descend(
                    observation, centre, labels, uploads, weight, steps, generator, progress
                )
                found.append(images.flatten(0, 1))
        return torch.cat(found)

    def descend(
        self,
        observation: ObservationUpdate,
        centre: Float[Tensor, "C H W"],
        labels: Int[Tensor, "G b"],
        uploads: Float[Tensor, "G P"],
        weight: float | Float[Tensor, " G"],
        steps: int,
        generator: torch.Generator,
        progress: Progress | None,
    ) -> Float[Tensor, "G b C H W"]:
        """Return images in [0, 1] for each client's upload; steps fall to 0 in a cosine."""
        start = torch.randn((*labels.shape, *centre.shape), generator=generator)
        images = (centre + SPREAD * start).clamp(0, 1).requires_grad_()
        noise, mask = init_unknowns(observation, labels)
        sought = [leaf for leaf in (images, noise, mask) if leaf is not None]
        adam = torch.optim.Adam(sought, self.rate)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
        for step in range(1, steps + 1):
            made = observation.update(images, labels, generator, noise, mask)
            gap = 1 - cosine_similarity(made, uploads, dim=1)
            rough = total_variation(images.flatten(0, 1)).view(labels.shape).mean(1)
            loss = (gap + weight * rough).sum()
            if noise is not None:
                loss = loss + PRIOR * noise.square().mean((1, 2)).sum()
            for leaf, slope in zip(sought, torch.autograd.grad(loss, sought), strict=True):
                leaf.grad = slope.sign()
            adam.step()
            cosine.step()
            with torch.no_grad():
                images.clamp_(0, 1)
                if mask is not None:
                    mask.clamp_(0, 1)
            report_progress(
                progress, "step", step, steps, f"cosine {1 - float(gap.detach().mean()):.3f}"
            )
        return images.detach()


def init_unknowns(
    observation: ObservationUpdate, labels: Int[Tensor, "G b"]
) -> tuple[Float[Tensor, "G b F"] | None, Float[Tensor, "G b F"] | None]:
    """Return the noise at the cut, 0, and the mask there, one half; None where there is none."""
    noise = torch.zeros(*labels.shape, observation.noisy).requires_grad_()
    mask = torch.full((*labels.shape, observation.masked), 0.5).requires_grad_()
    return noise if observation.noisy else None, mask if observation.masked else None


def fit_shrinkage(moved: Float[Tensor, "N C H W"], true: Float[Tensor, "N C H W"]) -> float:
    """Return the share s in [0, 1] with the least mean (s moved - true)^2."""
    along = float((moved * true).sum() / moved.square().sum().clamp_min(torch.finfo().tiny))
    return min(max(along, 0.0), 1.0)


def count_tuning_images(batch: int, own: int) -> int:
    """Return how many own images the weight is chosen on, a multiple of the batch.

    SettingsError where they do not make one batch.
    """
    if batch > own:
        raise SettingsError(
            f"attack.batch is {batch}, must be at most {own}, the attacker's own images, of which "
            "he makes uploads to choose a weight on; lower it, or raise data.auxiliary"
        )
    return min(max(1, TUNED_ON // batch), own // batch) * batch
