"""Train a classifier that reads a sensitive attribute off messages."""

from copy import deepcopy
from itertools import product
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from fedcel.attacks.attack_clock import AttackClock
from fedcel.attacks.decoder import (
    BATCH_SIZE,
    LEARNING_RATE,
    make_observer,
    split_held_out,
)
from fedcel.data import Images
from fedcel.leakage import Observation
from fedcel.nets import initialise_parameters

ATTRIBUTE = "attribute"
"""The name of the attacks on an attribute, which rebuild no image."""
WIDTHS, DROPOUTS = (64, 256), (0.0, 0.5)
"""Hidden units, and the share of them that is dropped, that are tried."""
EPOCHS = 60
HELD_OUT_DRAWS = 8  # messages of each image on which the classifier is chosen


class AttributeReader(nn.Module):
    """Classifier of the attribute of messages (n, F) whose labels are known.

    Some messages bring values to one scale; `labels` and `attributes` are numbers of classes.
    """

    def __init__(
        self,
        messages: Float[Tensor, "n F"],
        *,
        labels: int,
        attributes: int,
        width: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.centre = messages.mean(0)
        self.scale = messages.std(0).clamp_min(1e-6)
        self.labels, self.keep = labels, 1 - dropout
        self.first = nn.Linear(messages.shape[1] + labels, width)
        self.second = nn.Linear(width, width)
        self.last = nn.Linear(width, attributes)

    def forward(
        self,
        messages: Float[Tensor, "n F"],
        labels: Int[Tensor, " n"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "n A"]:
        """Return logits of the attributes; units are dropped where a generator is given."""
        standard = (messages - self.centre) / self.scale
        hidden = torch.cat([standard, one_hot(labels, self.labels).to(standard)], 1)
        for layer in (self.first, self.second):
            hidden = layer(hidden).relu()
            if generator is not None and self.keep < 1:
                mask = torch.rand(hidden.shape, generator=generator) < self.keep
                hidden = hidden * mask / self.keep
        return cast(Tensor, self.last(hidden))


def train_attribute_reader(
    observation: Observation,
    auxiliary: Images,
    attributes: Int[Tensor, " A"],
    *,
    budget: float,
    clock: AttackClock | None = None,
    generator: torch.Generator,
) -> AttributeReader:
    """Train classifiers from message and label to attribute; return the best of them.

    Fresh noise is drawn in each epoch. A fifth of the attacker's images is held out: of all widths,
    shares of dropped units and epochs the one with the lowest cross-entropy on them is kept.
    The clock may end it early. DataError on fewer than two images.
    """
    trained, held_out = split_held_out(torch.arange(len(auxiliary.x)), generator)
    observe_own = make_observer(observation, auxiliary.x[trained], generator)
    observe_held = make_observer(observation, auxiliary.x[held_out], generator)
    held_messages = torch.cat([observe_held(generator) for _ in range(HELD_OUT_DRAWS)])
    held_labels = auxiliary.y[held_out].repeat(HELD_OUT_DRAWS)
    held_attributes = attributes[held_out].repeat(HELD_OUT_DRAWS)
    labels, values = auxiliary.y[trained], attributes[trained]
    epochs = max(1, round(EPOCHS * budget))
    best: tuple[float, AttributeReader] | None = None
    clock = clock or AttackClock()
    choices = list(product(WIDTHS, DROPOUTS))
    for number, (width, dropout) in enumerate(choices):
        reader = AttributeReader(
            observe_own(generator),
            labels=int(auxiliary.y.max()) + 1,
            attributes=int(attributes.max()) + 1,
            width=width,
            dropout=dropout,
        )
        initialise_parameters(reader, generator)
        adam = torch.optim.Adam(reader.parameters(), LEARNING_RATE)
        for _ in clock.steps(epochs, share=1 / (len(choices) - number), least=1 - number):
            messages = observe_own(generator)
            for rows in torch.split(torch.randperm(len(trained), generator=generator), BATCH_SIZE):
                adam.zero_grad()
                logits = reader(messages[rows], labels[rows], generator)
                torch.autograd.backward(cross_entropy(logits, values[rows]))
                adam.step()
            with torch.no_grad():
                loss = float(cross_entropy(reader(held_messages, held_labels), held_attributes))
            if best is None or loss < best[0]:
                best = loss, deepcopy(reader)
    assert best is not None
    return best[1]


def score_attribute_reader(
    reader: AttributeReader,
    observation: Observation,
    targets: Images,
    attributes: Int[Tensor, " T"],
    *,
    generator: torch.Generator,
) -> float:
    """Return the share of targets named rightly, a mean over several messages of each."""
    hits = []
    with torch.no_grad():
        for _ in range(HELD_OUT_DRAWS):
            guesses = reader(observation.sample(targets.x, generator), targets.y).argmax(1)
            hits.append(torch.eq(guesses, attributes).double().mean())
    return float(torch.stack(hits).mean())
