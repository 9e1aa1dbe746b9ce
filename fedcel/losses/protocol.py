"""Inputs and outputs of all losses, and the protocol of a loss of one client."""

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.short_repr import show_shapes
from fedcel.tensors import State as State

FeatureBatches = Callable[[], Iterator[tuple[Tensor, Tensor]]]
"""Reads the client's features (n, D) and labels (n,), encoded batch by batch on the way.

Each call starts from the first batch; a loss without statistics never calls it.
"""


class CutShape(NamedTuple):
    """Sizes, noise and range of the features that pass a cut.

    Attributes:
        classes: C; labels are in 0..C-1.
        features: D, the values of an image that pass the cut.
        sigma: Standard deviation of the noise at the cut, in units of z.
        positions: Positions of each channel in z, which holds channel after channel.
        image: An image's shape, (C, H, W).
    """

    classes: int
    features: int
    sigma: float = 0.0
    positions: int = 1
    image: tuple[int, ...] = ()


@show_shapes
class StackedFeatures(NamedTuple):
    """Features of several clients, client after client.

    Attributes:
        z: Features (N, D).
        y: Labels (N,).
        client: Client index of each example (N,), from 0, ascending.
    """

    z: Float[Tensor, "N D"]
    y: Int[Tensor, " N"]
    client: Int[Tensor, " N"]


FeatureReader = Callable[[], Iterator[StackedFeatures]]
"""Reads features of several clients from the start, encoded piece by piece on the way.

Of each client the examples come in its own order.
"""


class MetricRange(NamedTuple):
    """Range of the values that a metric can have.

    Attributes:
        lowest: Least value.
        highest: Largest value, infinite where mathematics sets no bound.
        usual: Typical size. Where `highest` is infinite, more than a multiple of it is refused.
        is_per_class: Whether each class has one of its own, `NAME-3`.
    """

    lowest: float
    highest: float
    usual: float = inf
    is_per_class: bool = False


SHARE = MetricRange(0.0, 1.0)


class MetricScale(NamedTuple):
    """Sizes that bound the metrics of a loss.

    Attributes:
        spread: Range of a spread around class means, in units of the noise where that is learned.
        features: D, the values of an image that pass the cut.
        batch_size: Images in a batch.
    """

    spread: MetricRange
    features: int
    batch_size: int


MetricRanges = Mapping[str, MetricRange | Callable[[MetricScale], MetricRange]]
"""Range of each metric that a loss measures, or what makes it of the sizes."""


@show_shapes
class Term(NamedTuple):
    """One batch's loss, and what there is to log about it.

    Attributes:
        loss: A scalar with a gradient, or one a client (K,), in the unit that the loss names
            (mostly nats).
        metrics: Numbers of the same shape without a gradient, by the name under which they are
            logged.
    """

    loss: Float[Tensor, "..."]
    metrics: dict[str, Float[Tensor, "..."]]


@show_shapes
class Batch(NamedTuple):
    """A batch of each of K clients on its way through the split network.

    Of a single client, `ClientLoss` sees it without the first dimension.

    Attributes:
        x: Images (K, B, C, H, W), in [0, 1].
        z: Features (K, B, D).
        smashed: Smashed data (K, B, D): z after the noise of the cut.
        y: Labels (K, B).
        noise_scale: Standard deviation of each value's noise in units of the cut's sigma
            (K, B, D); None: all are 1.
    """

    x: Float[Tensor, "..."]
    z: Float[Tensor, "*k B D"]
    smashed: Float[Tensor, "*k B D"]
    y: Int[Tensor, "*k B"]
    noise_scale: Float[Tensor, "*k B D"] | None = None

    @classmethod
    def of_features(cls, z: Float[Tensor, "*k B D"], y: Int[Tensor, "*k B"]) -> "Batch":
        """Make a batch for a loss that reads features and labels only."""
        return cls(z, z, z, y)

    @property
    def known_scale(self) -> Float[Tensor, "*k B D"]:
        """Standard deviation of each value's noise in units of sigma, also where all are 1."""
        return torch.ones_like(self.z) if self.noise_scale is None else self.noise_scale


@runtime_checkable
class ClientLoss(Protocol):
    """A loss of one client's batches, such as a conditional entropy or a defence of your own.

    A subclass overrides `loss`, and the other two where it has statistics or learns. All arguments
    are passed by position, so that yours may be named otherwise.
    """

    def refresh(
        self, state: State | None, batches: FeatureBatches, generator: torch.Generator
    ) -> State:
        """Compute the statistics that the loss needs, at a round's start.

        Those of a conditional entropy are computed again every `cel.refresh` local epochs.

        Args:
            state: The state of the last step, to start from; None at a client's first round.
            batches: Reads features and labels of the client's images, of at most 256 of each class,
                drawn each round.
            generator: The only source of random numbers.

        Returns:
            The state for the next batches.
        """
        return {}

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        """Compute the loss of one batch.

        Args:
            state: The current state, which is not changed.
            batch: Images, features, smashed data and labels, without a dimension of clients. A
                conditional entropy sees features in units of their noise, as `cel.pool` says.
            measure: Whether to compute metrics, which can take as long as the loss.

        Returns:
            The loss, and its metrics or an empty dictionary.
        """
        ...

    def update(self, state: State) -> State:
        """Move what the loss learns itself, after the backward pass.

        Args:
            state: The state whose tensors gathered their gradient.

        Returns:
            The state for the next batch.
        """
        return state
