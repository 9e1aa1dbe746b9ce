"""Uploads of clients, as a curious or malicious server sees them."""

from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from fedcel.data import Images
from fedcel.errors import DataError
from fedcel.federation import ClientRound, protect_update, train_clients
from fedcel.leakage import FIRST_LAYER, UPDATE
from fedcel.nets import FlatNet, SplitNet
from fedcel.posterior import RoundPlan
from fedcel.settings import UpdateSettings
from fedcel.tensors import digest_pixels
from fedcel.torch_state import make_generator as stream

CLIP_FACTORS = 33
"""Tried between the least that fits and 1, each the same multiple of the last."""
MIN_FACTOR = 1e-6
"""Least factor of a clip."""


class Through(nn.Module):
    """A split net from image to logits, with a given disturbance at the cut."""

    def __init__(self, net: SplitNet) -> None:
        super().__init__()
        self.net = net

    def forward(
        self, images: Float[Tensor, "B C H W"], mask: Tensor, xi: Tensor
    ) -> Float[Tensor, "B K"]:
        """Return the logits of mask * z + xi, xi scaled as the net scales its noise."""
        z = self.net.encode(images)
        scale = self.net.scale_noise(z)
        return self.net.answer(z * mask + (xi if scale is None else xi * scale))


@dataclass(frozen=True)
class Uploads:
    """The deltas of clients that hold `batch` images each and take `steps` steps on all of them.

    The attacker's best case: plain steps, whatever `local.sampler`, each on all images. He knows
    the model received, the number and size of the steps, the law of the noise at the cut and that
    of the Langevin noise, and what the model answers on average to images like these. He explains
    an upload by cross-entropy and the priors only, even where other losses act.
    """

    flat: FlatNet
    received: Float[Tensor, " P"]
    plan: RoundPlan
    updates: UpdateSettings
    """Clip and noise of uploads."""
    book: Images
    """All images that a client may hold, with the labels it gives them."""
    expected: Float[Tensor, " K"]
    """Mean probabilities that the model answers to images of the attacker's own."""
    batch: int
    steps: int = 1
    """Local steps behind an upload."""
    noise: float = 0.0
    """Standard deviation of a client's Langevin noise per step."""
    name: str = "update"

    @property
    def grants(self) -> frozenset[str]:
        """Return the update, and the first layer where it sees the pixels."""
        layers = self.flat.net.encoder.modules()
        first = next(layer for layer in layers if list(layer.parameters(recurse=False)))
        plain = isinstance(first, nn.Linear) and first.in_features == self.book.x[0].numel()
        return frozenset({UPDATE, FIRST_LAYER} if plain else {UPDATE})

    def sample(
        self, images: Float[Tensor, "B C H W"], generator: torch.Generator
    ) -> Float[Tensor, "B P"]:
        """Return each image's client's delta, by the real local update.

        DataError for an image that has no label in the book.
        """
        local = self.plan.local.model_copy(
            update={
                "steps": self.steps,
                "batch_size": self.batch,
                "balance": False,
                "augment": "none",
                "sampler": "langevin",
            }
        )
        plan = self.plan._replace(local=local)
        labels = self.labels_of(images)
        rows = []
        trained = self.flat.trained
        batches = zip(torch.split(images, self.batch), torch.split(labels, self.batch), strict=True)
        for x, y in batches:
            seed = int(torch.randint(2**62, (), generator=generator))
            client = ClientRound(Images(x, y), partial(stream, seed), self.noise)
            (update,) = train_clients(self.flat, self.received, [client], plan)
            update = protect_update(self.updates, update, self.received, trained=trained)
            rows.append(update.delta.expand(len(y), -1))
        return torch.cat(rows)

    def labels_of(self, images: Float[Tensor, "B C H W"]) -> Int[Tensor, " B"]:
        """Return the labels that the holders give to these images."""
        label_of = dict(zip(map(digest_pixels, self.book.x), self.book.y.tolist(), strict=True))
        try:
            return torch.tensor([label_of[digest_pixels(image)] for image in images])
        except KeyError:
            raise DataError("an image has no label in the book; take it from the run") from None

    @property
    def noisy(self) -> int:
        """Return the values at the cut, of all steps, where noise is added to them, or 0."""
        return self.steps * self.flat.net.features if self.flat.net.cut.sigma > 0 else 0

    @property
    def masked(self) -> int:
        """Return the values at the cut, of all steps, where some are dropped, or 0."""
        return self.steps * self.flat.net.features if self.flat.net.cut.dropout > 0 else 0

    def update(
        self,
        images: Float[Tensor, "G b C H W"],
        labels: Int[Tensor, "G b"],
        generator: torch.Generator,
        noise: Float[Tensor, "G b F"] | None = None,
        mask: Float[Tensor, "G b F"] | None = None,
    ) -> Float[Tensor, "G P"]:
        """Return the deltas without Langevin noise; what is None of noise and mask is drawn.

        The sum over steps of -eta (gradient, clipped where clients clip it, + decay w + pull
        (w - received)), as in the local update.
        """
        through, cut = Through(self.flat.net), self.flat.net.cut
        shapes = dict(zip(dict(through.named_parameters()), self.flat.shapes, strict=True))

        def unflatten(vector: Float[Tensor, "*G P"]) -> dict[str, Tensor]:
            parts = torch.split(vector, [prod(shape) for shape in shapes.values()], -1)
            named = zip(parts, shapes.items(), strict=True)
            return {name: part.view(*vector.shape[:-1], *shape) for part, (name, shape) in named}

        weights = unflatten(self.received)
        shape = (*labels.shape, self.steps * self.flat.net.features)
        added = cut.draw_noise(shape, generator) if noise is None else cut.sigma * noise
        if mask is None:
            drops = cut.draw_mask(shape, generator)
            mask = torch.ones(shape) if drops is None else drops.float()
        xi = torch.zeros(shape) if added is None else added

        def loss(w: dict[str, Tensor], x: Tensor, y: Tensor, m: Tensor, added: Tensor) -> Tensor:
            return cross_entropy(functional_call(through, w, (x, m, added)), y)

        delta: Tensor | None = None
        draws = zip(mask.chunk(self.steps, -1), xi.chunk(self.steps, -1), strict=True)
        for step_mask, step_noise in draws:
            moved, axis = weights, None
            if delta is not None:
                moved = {name: weights[name] + part for name, part in unflatten(delta).items()}
                axis = 0
            slopes = vmap(grad(loss), (axis, 0, 0, 0, 0))(
                moved, images, labels, step_mask, step_noise
            )
            slope = torch.cat([slopes[name].flatten(1) for name in shapes], 1)
            if self.plan.clip is not None:
                norm = torch.linalg.vector_norm(slope, dim=1, keepdim=True)
                slope = slope * (self.plan.clip / norm).clamp_max(1.0)
            pulls = self.plan.decay * self.received
            if delta is None:
                delta = -self.plan.rate * (slope + pulls)
            else:
                restoring = (self.plan.decay + self.plan.pull) * delta
                delta = delta - self.plan.rate * (slope + pulls + restoring)
        assert delta is not None  # there is a step at least
        return delta

    def labels(self, observed: Float[Tensor, "G P"], batch: int) -> Int[Tensor, "G b"]:
        """Return the labels behind each delta, ascending, from the mean slope of the last bias.

        It is the mean probability less each class's share, times the clip's factor. For one image
        it is the only negative value (Zhao et al., 2020, equation 3), whatever the factor. For
        more, where clients clip steps or updates, factors are tried from that at which the positive
        values match what the model is expected to answer up to 1; the one whose labels explain most
        is taken.
        """
        last = -len(self.expected)
        whole = self.updates.clip == "none"
        slope = -observed[:, last:] / (self.plan.rate * self.steps)
        if whole:  # of a shortened update the decay is as short, and not to be told apart
            slope = slope - self.plan.decay * self.received[last:]
        if batch == 1:
            return slope.argmin(1, keepdim=True)
        if whole and self.plan.clip is None:
            return self.count_labels(slope, batch)[0]
        above = slope > 0
        matched = (slope * above).sum(1) / (self.expected * above).sum(1).clamp_min(MIN_FACTOR)
        least = matched.clamp(MIN_FACTOR, 1.0)[:, None]
        tried = [
            self.count_labels(slope / least**power, batch)
            for power in torch.linspace(0, 1, CLIP_FACTORS)
        ]
        best = torch.stack([gap for _, gap in tried]).argmin(0)
        return torch.stack([labels for labels, _ in tried])[best, torch.arange(len(best))]

    def count_labels(
        self, slope: Float[Tensor, "G K"], batch: int
    ) -> tuple[Int[Tensor, "G b"], Float[Tensor, " G"]]:
        """Return the labels that an unclipped slope shows, and the squared gap they leave.

        The class that is most above what the model is expected to answer is taken, its share
        reduced, and so on.
        """
        excess = batch * (self.expected - slope)
        labels = []
        for _ in range(batch):
            labels.append(excess.argmax(1))
            excess = excess - nn.functional.one_hot(labels[-1], excess.shape[1])
        return torch.stack(labels, 1).sort(1).values, excess.square().sum(1)

    def first_layer(
        self, observed: Float[Tensor, " P"]
    ) -> tuple[Float[Tensor, "U N"], Float[Tensor, " U"]]:
        """Return the first layer's slopes times the step size, summed over steps."""
        units, pixels = self.flat.shapes[0]
        moved = observed + self.steps * self.plan.rate * self.plan.decay * self.received
        weight, bias = torch.split(moved[: units * pixels + units], [units * pixels, units])
        return weight.view(units, pixels), bias
