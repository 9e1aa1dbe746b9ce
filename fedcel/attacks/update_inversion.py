"""Attacks on a client's upload: read images off it, or search those that explain it."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cosine_similarity

from fedcel.attacks.attack import Attacker, BaseAttack, Reconstructions
from fedcel.attacks.pixel_descent import total_variation
from fedcel.attacks.score_card import order_batches
from fedcel.errors import SettingsError
from fedcel.leakage import (
    FIRST_LAYER,
    UPDATE,
    ObservationFirstLayer,
    ObservationUpdate,
)

TUNING_IMAGES = 8  # own images on which the weight is chosen, or one batch where that is more
NOISE_WEIGHT = 1e-4  # of the noise's mean square, in units of its variance, next to the distance
START_SPREAD = 0.1  # sd of the first images around the mean: those of one class must differ
SAME_IMAGE_DISTANCE = 1e-3  # a pixel, root mean square, below which rows show the same image


class FirstLayer(BaseAttack):
    """Read images off what an upload has of the first layer.

    A layer W x + b that sees pixels has the gradients delta x^T and delta: each of its rows,
    divided by its bias's, is the image. An upload of one image gives it by least squares over all
    rows. In a batch, a row is the image of the only example that its unit is active for: the
    commonest ones are taken. There is no training: budget and generator change nothing.

    References:
        Phong et al., IEEE TIFS 2018, section 3 (one image).
        Boenisch et al., EuroS&P 2023, section 4 (a batch).
    """

    name = "first-layer"
    needs = frozenset({FIRST_LAYER})
    observes = "update"

    def invert(self, attacker: Attacker, observed: Float[Tensor, "T P"]) -> Reconstructions:
        """Return one image per row, a batch in any order."""
        observation, x = attacker.observation, attacker.auxiliary.x
        assert isinstance(observation, ObservationFirstLayer)
        images = []
        batch = observation.batch
        centre = x.mean(0).flatten()
        for start in range(0, len(observed), batch):
            count = min(batch, len(observed) - start)
            weight, bias = observation.first_layer(observed[start])
            if count == 1:
                images.append((bias @ weight / bias.square().sum())[None])
            else:
                images.append(select_most_frequent(weight / bias[:, None], count, centre))
            attacker.report("image", start + count, len(observed), "read")
        return torch.cat(images).nan_to_num(0.0).clamp(0, 1).view(-1, *x.shape[1:])


def select_most_frequent(
    rows: Float[Tensor, "U N"], count: int, default: Float[Tensor, " N"]
) -> Float[Tensor, "b N"]:
    """Return the `count` images in [0, 1] that most rows show, the default where there are fewer.

    A row of a unit that is active for several examples is a mixture that hardly another shows.
    """
    low, high = -SAME_IMAGE_DISTANCE, 1 + SAME_IMAGE_DISTANCE
    rows = rows[rows.isfinite().all(1) & (rows > low).all(1) & (rows < high).all(1)]
    images = []
    for _ in range(count):
        if len(rows) == 0:
            images.append(default)
            continue
        near = torch.cdist(rows, rows) < SAME_IMAGE_DISTANCE * rows.shape[1] ** 0.5
        commonest = near[int(near.sum(1).argmax())]
        images.append(rows[commonest].mean(0))
        rows = rows[~commonest]
    return torch.stack(images)


class GradientInversion(BaseAttack):
    """Search the images whose update points where the uploaded one does.

    It minimises 1 - cosine(update(x, y, u, m), uploaded) + tv TV(x) + 1e-4 mean u^2 by Adam on the
    gradient's signs, over the images x, the noise u at the cut, in units of its standard deviation,
    and the mask m there, in [0, 1]. Noise and mask were drawn once for each image: an upload has
    far more values than all of them together, so they hide nothing. The labels y are read off the
    upload, see `ObservationUpdate.labels`.

    It starts at the mean of the attacker's own images. The weight tv is that which rebuilds best
    these images from their uploads; what comes out is drawn back to that mean by the share that
    rebuilds them best, all the way where noise leaves nothing to find.

    References:
        Geiping et al., NeurIPS 2020, equation 4.
        Zhao et al., 2020 (iDLG: the label of a batch of one).
    """

    name = "gradient-inversion"
    needs = frozenset({UPDATE})
    observes = "update"
    steps = 1000
    rate = 0.1  # of Adam's first step; it falls to 0 as a cosine
    weights = (0.0, 0.001, 0.01, 0.1)

    def invert(self, attacker: Attacker, observed: Float[Tensor, "T P"]) -> Reconstructions:
        """Return one image per row, a batch in any order.

        Raises:
            SettingsError: There are fewer own images than are behind an upload.
        """
        observation, x = attacker.observation, attacker.auxiliary.x
        assert isinstance(observation, ObservationUpdate)
        count = count_tuning_images(observation.batch, len(x))
        tuning_images = x[torch.randperm(len(x), generator=attacker.generator)[:count]]
        steps = attacker.scale(self.steps)
        search = UploadSearch(attacker, observation, x.mean(0), self.rate, steps, len(observed))
        tv, share = search.tune(tuning_images, self.weights)
        return search.centre + share * (search.invert(observed, tv) - search.centre)


@dataclass(frozen=True)
class UploadSearch:
    """The search of the images behind uploads: where it starts, how fast and long it goes."""

    attacker: Attacker
    observation: ObservationUpdate
    centre: Float[Tensor, "C H W"]
    rate: float
    steps: int
    targets: int

    def tune(
        self, images: Float[Tensor, "N C H W"], weights: tuple[float, ...]
    ) -> tuple[float, float]:
        """Return the weight with the lowest MSE on own images, and the share it is reached with."""
        batch = self.observation.batch
        uploads = self.observation.sample(images, self.attacker.generator)[::batch]
        labels = self.observation.labels(uploads, batch).repeat(len(weights), 1)
        tv = torch.tensor(weights).repeat_interleave(len(uploads))
        share = len(labels) / (len(labels) + self.targets / batch)
        rebuilt = self.descend(uploads.repeat(len(weights), 1), labels, tv, share)
        best = (torch.inf, weights[0], 0.0)
        true = images - self.centre
        for weight, part in zip(weights, rebuilt.chunk(len(weights)), strict=True):
            moved = order_batches(part.flatten(0, 1), images, batch) - self.centre
            share = fit_shrinkage(moved, true)
            error = float((share * moved - true).square().mean())
            best = min(best, (error, weight, share))
        return best[1:]

    def invert(self, observed: Float[Tensor, "T P"], tv: float) -> Float[Tensor, "T C H W"]:
        """Return the images of all uploads; a last, smaller batch is searched on its own."""
        batch = self.observation.batch
        whole = len(observed) // batch * batch
        groups = [
            (observed[:whole:batch], batch),
            (observed[whole : whole + 1], len(observed) - whole),
        ]
        images = []
        for uploads, size in groups:
            if len(uploads):
                labels = self.observation.labels(uploads, size)
                remaining = len(observed) if size == batch else size
                share = len(uploads) * size / remaining
                images.append(self.descend(uploads, labels, tv, share).flatten(0, 1))
        return torch.cat(images)

    def descend(
        self,
        uploads: Float[Tensor, "G P"],
        labels: Int[Tensor, "G b"],
        tv: float | Float[Tensor, " G"],
        share: float = 1.0,
    ) -> Float[Tensor, "G b C H W"]:
        """Return images in [0, 1] for each client's upload; `share` as of `AttackClock.steps`."""
        shape = (*labels.shape, *self.centre.shape)
        start = torch.randn(shape, generator=self.attacker.generator)
        images = (self.centre + START_SPREAD * start).clamp(0, 1).requires_grad_()
        noise, mask = None, None
        if self.observation.noisy:
            noise = torch.zeros(*labels.shape, self.observation.noisy).requires_grad_()
        if self.observation.masked:
            mask = torch.full((*labels.shape, self.observation.masked), 0.5).requires_grad_()
        unknowns = [leaf for leaf in (images, noise, mask) if leaf is not None]
        adam = torch.optim.Adam(unknowns, self.rate)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, self.steps)
        for step in self.attacker.clock.steps(self.steps, share=share):
            update = self.observation.update(images, labels, self.attacker.generator, noise, mask)
            distance = 1 - cosine_similarity(update, uploads, dim=1)
            roughness = total_variation(images.flatten(0, 1)).view(labels.shape).mean(1)
            loss = (distance + tv * roughness).sum()
            if noise is not None:
                loss = loss + NOISE_WEIGHT * noise.square().mean((1, 2)).sum()
            for leaf, slope in zip(unknowns, torch.autograd.grad(loss, unknowns), strict=True):
                leaf.grad = slope.sign()
            adam.step()
            cosine.step()
            with torch.no_grad():
                images.clamp_(0, 1)
                if mask is not None:
                    mask.clamp_(0, 1)
            similarity = 1 - float(distance.detach().mean())
            self.attacker.report("step", step, self.steps, f"cosine {similarity:.3f}")
        return images.detach()


def fit_shrinkage(moved: Float[Tensor, "N C H W"], true: Float[Tensor, "N C H W"]) -> float:
    """Return the share s in [0, 1] with the least mean (s moved - true)^2."""
    share = float((moved * true).sum() / moved.square().sum().clamp_min(torch.finfo().tiny))
    return min(max(share, 0.0), 1.0)


def check_batch_size(batch: int, images: int) -> None:
    """Refuse a batch larger than the attacker's own images; SettingsError."""
    if batch > images:
        raise SettingsError(
            f"attack.batch is {batch}, must be at most {images}, the attacker's own images, of "
            "which uploads are made to choose a weight on; lower it, or raise data.auxiliary"
        )


def count_tuning_images(batch: int, images: int) -> int:
    """Return how many own images the weight is chosen on, a multiple of the batch.

    SettingsError where they do not make one batch.
    """
    check_batch_size(batch, images)
    return min(max(1, TUNING_IMAGES // batch), images // batch) * batch
