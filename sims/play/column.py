"""One encoder of the playground: all that can be computed before anybody asks."""

import base64
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks import compute_anchors, mse
from fedcel.data import Images
from fedcel.errors import NetError
from fedcel.leakage import (
    ImageLeak,
    ImagePrior,
    Noise,
    SmashedData,
    image_leak,
    image_picture,
    linearise,
)
from fedcel.metrics import bald, predictive_entropy
from fedcel.nets import Cut, SplitNet, apply_noise
from fedcel.posterior import Prediction, apply_heads
from fedcel.runs import Run, build_sent_net, fit_run_prior, posterior_samples
from fedcel.torch_state import make_generator
from sims.play.attackers import DECODER, RIDGE, Attackers, Background
from sims.play.noise_levels import MESSAGE_COUNTS, NoiseLevel, describe_level, find_level

GUESSES = 5
MAX_CANDIDATES = 1000
"""Test images that the exact attacker chooses among: more would not follow a slider."""
MAX_JACOBIAN = 2**17
"""Values of an image times features, up to which the picture's leak follows a slider."""
LEAST_EXPOSED, EXPOSED_DECADES = 1e-2, 6
"""Fisher information of a pixel that is drawn black, and powers of ten up to white."""
DRAWS = 256  # of an image's messages, over which its bits are averaged


class Look(NamedTuple):
    """Name and drawing of a column, as in the report."""

    label: str
    colour: str
    marker: str


class Sent(NamedTuple):
    """An image's features and the messages that leave the device."""

    features: Float[Tensor, "1 D"]
    """Output of the encoder."""
    messages: Float[Tensor, "m D"]
    """Each with fresh noise."""


@dataclass(frozen=True, eq=False)
class Column:
    """A run's encoder, its features of the candidates, and what attackers learned of it."""

    look: Look
    run: Run
    net: SplitNet
    candidates: Images
    """Test images, (M, C, H, W), with labels."""
    features: Float[Tensor, "M D"]
    averages: Float[Tensor, "K C H W"]
    """Mean image of each class: what its label tells."""
    attackers: Attackers
    prior: ImagePrior | None
    """Law of the run's images; None where the picture's leak is not estimated."""

    def send(
        self, image: Float[Tensor, "C H W"], position: int, level: NoiseLevel, *, seed: int
    ) -> Sent:
        """Return messages of an image; the same seed draws the same noise at every level.

        A test image is not encoded again: by itself it would get other last bits, by
        which a message without noise would be that of no candidate.
        """
        with torch.no_grad():
            is_candidate = position < len(self.features)
            z = self.features[position, None] if is_candidate else self.net.encode(image[None])
            scale = self.net.scale_noise(z)
        stream = make_generator(seed, "play-message")
        cut, count = self.net.cut, max(MESSAGE_COUNTS)
        mask, noise = cut.draw_mask((count, z.shape[1]), stream), None
        if cut.sigma:
            xi = torch.randn(count, z.shape[1], generator=stream, dtype=torch.float64)
            noise = cut.sigma * level.factor * xi
        messages = apply_noise(z.expand(count, -1), mask, noise, scale)
        return Sent(z, messages[: level.messages])

    def list_possible(self, sent: Sent, *, is_own: bool) -> Float[Tensor, "M D"]:
        """Return the features of all candidates; an image of one's own is one more behind them."""
        return torch.cat([self.features, sent.features]) if is_own else self.features

    def posterior(self, sent: Sent, level: NoiseLevel, *, is_own: bool) -> Float[Tensor, " M"]:
        """Return each candidate's probability given these messages, by Bayes' rule."""
        table = self.list_possible(sent, is_own=is_own)
        cut = Cut(self.net.cut.sigma * level.factor, self.net.cut.dropout)
        if not cut.is_random:  # what is sent is exact
            is_equal = (table == sent.messages[:1]).all(1)
            return is_equal.double() / is_equal.sum()
        with torch.no_grad():
            scale = self.net.scale_noise(table)
        return cut.log_prob(sent.messages, table, scale).sum(0).softmax(0)

    def measure(self, sent: Sent, position: int, label: int, level: NoiseLevel) -> ImageLeak:
        """Return what such messages of the image tell; `position` M is an image of one's own."""
        is_own = position == len(self.features)
        table, labels = self.list_possible(sent, is_own=is_own), self.candidates.y
        if is_own:
            labels = torch.cat([labels, torch.tensor([label])])
        sigma = self.net.cut.sigma * level.factor
        with torch.no_grad():
            scale = self.net.scale_noise(table)
        if scale is None:
            noise = table.new_full((table.shape[1],), sigma)
        else:
            noise = sigma * (scale if self.net.noise_shape == "image" else scale[0])
        return image_leak(
            table,
            labels,
            position,
            noise=noise,
            generator=make_generator(self.run.settings.seed, "play-bits"),
            dropout=self.net.cut.dropout,
            messages=level.messages,
            draws=DRAWS,
        )

    def describe_noise(self, factor: float) -> Noise | None:
        """Return the law of so many times the noise; None where there is none that is Gaussian."""
        law = SmashedData(self.net).describe_noise()
        return (lambda z: factor * law(z)) if callable(law) else law and factor * law

    def estimate_picture(
        self, image: Float[Tensor, "C H W"], level: NoiseLevel
    ) -> dict[str, Any] | None:
        """Return how much of the picture such messages tell, and its maps; None where unknown."""
        noise = self.describe_noise(level.factor)
        if self.prior is None or noise is None:
            return None
        try:
            picture = image_picture(
                self.net.encode,
                image,
                noise=noise,
                prior=self.prior,
                messages=level.messages,
            )
        except NetError:
            return None
        maps = picture.maps
        decades = (maps.information[0].sum(0, keepdim=True) / LEAST_EXPOSED).clamp_min(1).log10()
        deviation, prior = (
            part.square().mean(0, keepdim=True).sqrt()
            for part in (maps.deviation[0], maps.prior_deviation)
        )
        return {
            "bits": picture.bits,
            "mse": picture.mmse,
            "dfil": picture.dfil,
            "fsinfo": picture.fsinfo,
            **dict(zip(("bound", "bound-half-width"), bound_error(self, level), strict=True)),
            "is-beyond-label": self.prior.is_within_class,
            "exposed": encode_pixels(decades / EXPOSED_DECADES),
            "unknown": encode_pixels(deviation / prior.max()),
        }

    def rebuild(self, sent: Sent, level: NoiseLevel) -> dict[str, Float[Tensor, "C H W"] | str]:
        """Return what each attacker makes of the messages' mean, or what it waits for."""
        mean = sent.messages.mean(0, keepdim=True)
        numbers = mean.new_tensor([describe_level(self.net, level)])
        inputs = {DECODER: torch.cat([mean, numbers], 1), RIDGE: mean}
        attackers = self.attackers.find(find_level(self.net, level))
        return {
            name: attacker if isinstance(attacker, str) else attacker(inputs[name])[0]
            for name, attacker in attackers.items()
        }

    def predict(self, message: Float[Tensor, "1 D"]) -> Prediction:
        """Return what each posterior sample answers to one message."""
        samples = posterior_samples(self.run)
        if self.run.settings.chain.scope == "head":
            return Prediction(apply_heads(self.run.flat, samples, message))
        pairs = zip(samples, torch.chunk(message, len(samples), 1), strict=True)
        parts = [apply_heads(self.run.flat, [vector], part) for vector, part in pairs]
        return Prediction(torch.cat(parts))


@lru_cache(maxsize=1024)  # a level that a slider comes back to
def bound_error(column: Column, level: NoiseLevel) -> tuple[float, float]:
    """Van Trees' bound on any attacker's mean error over images, and its half width."""
    noise = column.describe_noise(level.factor)
    assert noise is not None
    channels = linearise(column.net.encode, column.candidates.x, noise=noise, prior=column.prior)
    return channels.totals.bound(float(level.messages))


def prepare_column(run: Run, look: Look, background: Background) -> Column:
    """Encode a run's candidates, and let attackers begin to learn its messages."""
    net = build_sent_net(run)
    candidates = Images(*(part[:MAX_CANDIDATES] for part in run.splits.test))
    is_small = net.features * candidates.x[0].numel() <= MAX_JACOBIAN
    return Column(
        look,
        run,
        net=net,
        candidates=candidates,
        features=net.encode_all(candidates.x),
        averages=compute_anchors([run.splits.auxiliary]).guess(torch.arange(run.splits.classes)),
        attackers=Attackers(net, run, background),
        prior=fit_run_prior(run) if is_small else None,
    )


def encode_pixels(image: Float[Tensor, "C H W"]) -> str:
    """Return an image as bytes in base64, row by row; of 2 or more than 3 channels the mean."""
    shown = image if len(image) in (1, 3) else image.mean(0, keepdim=True)
    levels = (255 * shown.clamp(0, 1)).round().to(torch.uint8).permute(1, 2, 0)
    return base64.b64encode(np.ascontiguousarray(levels.numpy()).tobytes()).decode()


def describe_column(
    column: Column,
    image: Float[Tensor, "C H W"],
    position: int,
    label: int,
    *,
    level: NoiseLevel,
    seed: int,
) -> dict[str, Any]:
    """Return all that a column shows of an image, as JSON; `position` M: an image of one's own."""
    count = len(column.features)
    sent = column.send(image, position, level, seed=seed)
    leak = column.measure(sent, position, label, level)
    prediction = column.predict(sent.messages[:1])
    probabilities = prediction.samples.double()
    posterior = column.posterior(sent, level, is_own=position == count)
    best = posterior.topk(min(GUESSES, len(posterior)))
    rebuilt = column.rebuild(sent, level) | {"average": column.averages[label]}
    return {
        "sigma": column.net.cut.sigma * level.factor,
        "features": [round(value, 4) for value in sent.features[0].tolist()],
        "sent": [round(value, 4) for value in sent.messages[0].tolist()],
        "rebuilt": {
            name: {"coming": picture}
            if isinstance(picture, str)
            else {"pixels": encode_pixels(picture), "mse": mse(picture[None], image[None])}
            for name, picture in rebuilt.items()
        },
        "guesses": [
            describe_guess(column, image, label, place)
            | {
                "is-right": place == position,
                "probability": probability,
            }
            for place, probability in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ],
        "right": {
            "place": 1 + int((posterior > posterior[position]).sum()),
            "probability": float(posterior[position]),
        },
        "bits": {
            "information": leak.information,
            "information-half-width": leak.information_half_width,
            "information-cap": leak.cap,
            "beyond-label": leak.beyond_label,
            "beyond-half-width": leak.beyond_half_width,
            "beyond-cap": leak.cap_beyond_label,
        },
        "picture": column.estimate_picture(image, level),
        "answer": {
            "label": int(prediction.probabilities[0].argmax()),
            "probabilities": [round(p, 5) for p in probabilities.mean(0)[0].tolist()],
            "entropy": float(predictive_entropy(probabilities)[0]),
            "bald": float(bald(probabilities)[0]),
        },
    }


def describe_guess(
    column: Column, image: Float[Tensor, "C H W"], label: int, place: int
) -> dict[str, Any]:
    """Return a candidate; the one behind the test images is the image itself."""
    x, y = column.candidates
    if place < len(y):
        image, label = x[place], int(y[place])
    return {"position": place, "label": label, "pixels": encode_pixels(image)}


def find_label(column: Column, image: Float[Tensor, "C H W"]) -> int:
    """Return what a column's model takes an image for, of a message without noise."""
    with torch.no_grad():
        z = column.net.encode(image[None]) * (1 - column.net.cut.dropout)
    return int(column.predict(z).probabilities[0].argmax())
