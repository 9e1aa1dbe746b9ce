"""Protocols of losses of one client, such as a user's own; inputs and outputs of all losses."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.errors import SettingsError, StackingError
from fedcel.named_tensors import State as State
from fedcel.short_repr import show_shapes

FeatureBatches = Callable[[], Iterator[tuple[Tensor, Tensor]]]
"""Reads all the client's features (n, D) and labels (n,), encoded batch by batch on the way.

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
"""Reads all features of several clients from the start, encoded piece by piece on the way.

Of each client the examples come in its own order.
"""


def pool_positions(z: Float[Tensor, "*k B D"], positions: int) -> Float[Tensor, "*k B C"]:
    """Return the mean of each channel over its positions, of features channel after channel."""
    return z if positions == 1 else z.reshape(*z.shape[:-1], -1, positions).mean(-1)


class MetricRange(NamedTuple):
    """Range of the values that a metric can have.

    Attributes:
        lowest: Least value.
        highest: Largest value, infinite where mathematics sets no bound.
        usual: A size that is no surprise; where there is no bound, a multiple of it is one.
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


@runtime_checkable
class ConditionalEntropy(Protocol):
    """A loss that keeps the features of each class close together.

    All arguments are passed by position, so that a loss of your own may name them as it likes.
    """

    def refresh(
        self, state: State | None, batches: FeatureBatches, generator: torch.Generator
    ) -> State:
        """Compute the statistics that the loss needs, before a round and each local epoch.

        Args:
            state: The state of the last step, to start from; None at a client's first round.
            batches: Reads all the client's features and labels.
            generator: The only source of random numbers.

        Returns:
            The state for the next batches.
        """
        ...

    def loss(
        self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"], measure: bool = True
    ) -> Term:
        """Compute the loss of one batch.

        Args:
            state: The current state, which is not changed.
            z: Features (B, D), with a gradient.
            y: Labels (B,), from 0.
            measure: Whether to compute metrics, which takes as long as the loss.

        Returns:
            The loss, and its metrics or an empty dictionary.
        """
        ...

    def step(self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"]) -> State:
        """Move what the loss learns itself, such as an attention, after the backward pass.

        Args:
            state: The state whose tensors gathered their gradient.
            z: Features of the batch (B, D), without a gradient.
            y: Labels (B,).

        Returns:
            The state for the next batch.
        """
        ...


class Stateless:
    """Base of losses that keep nothing between batches: `refresh` and `step` have no effect."""

    def refresh(
        self, state: State | None, batches: FeatureBatches, generator: torch.Generator
    ) -> State:
        """Return an empty state; see `ConditionalEntropy.refresh`."""
        return {}

    def step(self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"]) -> State:
        """Return the state as it is; see `ConditionalEntropy.step`."""
        return state


@runtime_checkable
class Defence(Protocol):
    """A loss that makes images hard to recover from what is sent.

    All arguments are passed by position, so that a defence of your own may name them as it likes.
    """

    def refresh(self, state: State | None, generator: torch.Generator) -> State:
        """Make the state that a round starts with; see `ConditionalEntropy.refresh`."""
        ...

    def loss(
        self,
        state: State,
        x: Float[Tensor, "B C H W"],
        z: Float[Tensor, "B D"],
        smashed: Float[Tensor, "B D"],
        measure: bool = True,
    ) -> Term:
        """Compute the loss of one batch.

        Args:
            state: The current state, which is not changed.
            x: Images (B, C, H, W) in [0, 1].
            z: Their features (B, D), with a gradient.
            smashed: z after the noise of the cut (B, D), with a gradient.
            measure: Whether to compute metrics.

        Returns:
            The loss, and its metrics or an empty dictionary.
        """
        ...

    def step(self, state: State) -> State:
        """Move what the defence learns itself; see `ConditionalEntropy.step`."""
        ...


def stack_states(states: Sequence[State]) -> State:
    """Join the states of several clients, a client a row; what learns is a leaf.

    Raises StackingError unless they are of the same names and shapes.
    """
    shapes = [{name: tensor.shape for name, tensor in state.items()} for state in states]
    if any(shape != shapes[0] for shape in shapes):
        raise StackingError("the clients' states are of different shapes")
    return {
        name: torch.stack([state[name].detach() for state in states]).requires_grad_(
            tensor.requires_grad
        )
        for name, tensor in states[0].items()
    }


def check_state_names(state: State, names: Iterable[str], part: str) -> None:
    """Raise SettingsError unless a client's state has all these tensors: else it is another's."""
    if missing := sorted(set(names) - state.keys()):
        raise SettingsError(
            f"a client's state holds {sorted(state)}, must hold {missing} for {part}: the loss or "
            "defence changed; start from an empty state"
        )


def select_row(state: State, row: int) -> State:
    """Return one client's state of several, with memory of its own; what learns is a leaf."""
    return {
        name: tensor.detach()[row].clone().requires_grad_(tensor.requires_grad)
        for name, tensor in state.items()
    }


def split_features(
    z: Float[Tensor, "N D"], y: Int[Tensor, " N"], size: int = 1024
) -> FeatureBatches:
    """Turn features that are in memory into what `ConditionalEntropy.refresh` reads.

    Args:
        z: Features (N, D).
        y: Labels (N,).
        size: Examples in each batch, 1 or more.

    Returns:
        A function that yields the batches in order, from the first at each call.
    """
    return lambda: zip(torch.split(z, size), torch.split(y, size), strict=True)
