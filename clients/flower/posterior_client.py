"""The training client: Flower's arrays in, the client's update, Flower's arrays out."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch
from flwr.app import Array, ArrayRecord, Context
from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar

from fedcel.federation import (
    ClientUpdate,
    RoundInputs,
    client_update,
    record_names,
    update_client,
)
from fedcel.losses.cel import State
from fedcel.nets import to_arrays, to_vector
from fedcel.runs import is_state_usable
from fedcel.settings import Settings

FitResult = tuple[NDArrays, int, dict[str, Scalar]]


@runtime_checkable
class ClientMemory(Protocol):
    """Keeps one client's state from round to round: a `ClientStateFolder`, or Flower's context."""

    def read_state(self, number: int) -> State | None:
        """Return the state from before round `number`, None where there is none."""
        ...

    def write_state(self, number: int, state: State) -> None:
        """Keep the state after round `number`."""
        ...


class ContextMemory:
    """State in Flower's context: in the node's memory, for one run, gone with a restart."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def read_state(self, number: int) -> State | None:
        """Return the state that is there."""
        record = self._context.state.get(record_names.STATE)
        if not isinstance(record, ArrayRecord):
            return None
        return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}

    def write_state(self, number: int, state: State) -> None:
        """Replace the state; where the losses keep nothing there is none."""
        if state:
            arrays = {name: Array(tensor.detach().numpy()) for name, tensor in state.items()}
            self._context.state[record_names.STATE] = ArrayRecord(arrays)


class PosteriorClient(NumPyClient):
    """Trains one client by local SGLD, with the priors and losses that the settings choose.

    `fit` takes the global model and returns the delta, as any NumPyClient does.
    """

    def __init__(
        self,
        settings: Settings,
        client: int,
        memory: ClientMemory | None = None,
        gradient: torch.Tensor | None = None,
    ) -> None:
        """Bind the client to its partition of the run's data.

        Args:
            settings: The run's settings.
            client: Its partition, from 0.
            memory: Keeps its state between rounds; None: losses without statistics need none.
            gradient: The clients' mean gradient at the model (P,), where it came with it; a stock
                strategy sends none.
        """
        self.settings, self.client, self.memory = settings, client, memory
        self.gradient = gradient

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> FitResult:
        """Train for a round.

        Args:
            parameters: The global model, one array a layer.
            config: `server-round`; of our strategy also `share` (w_k) and `total-examples` (N).

        Returns:
            The delta (or the weights, as `strategy.upload` says), the number of examples, metrics.
        """
        examples = len(client_update.select_client_images(self.settings, self.client).y)
        number = int(config[record_names.ROUND])
        update = update_client(
            self.settings,
            self.client,
            float(config.get(record_names.WEIGHT, 1.0)),
            read_inputs(to_vector(parameters), config, self.gradient, examples=examples),
            state=self.memory.read_state(number) if self.memory else None,
        )
        if self.memory and is_state_usable(update.state):
            self.memory.write_state(number, update.state)
        upload = update.model if self.settings.strategy.upload == "weights" else update.delta
        shapes = [array.shape for array in parameters]
        metrics: dict[str, Scalar] = {**select_metrics(update, config)}
        metrics[record_names.PARTITION] = self.client
        return to_arrays(upload, shapes), examples, metrics


def read_inputs(
    model: torch.Tensor,
    config: Mapping[str, Scalar],
    gradient: torch.Tensor | None,
    *,
    examples: int,
) -> RoundInputs:
    """Read what a message brings to a round; stock strategies send neither weight nor total."""
    return RoundInputs(
        round_number=int(config[record_names.ROUND]),
        model=model,
        total_examples=int(config.get(record_names.TOTAL, examples)),
        proximal=_read_float(config, record_names.PROXIMAL),
        threshold=_read_float(config, record_names.THRESHOLD),
        gamma=_read_float(config, record_names.GAMMA),
        gradient=gradient,
    )


def _read_float(config: Mapping[str, Scalar], key: str) -> float | None:
    return float(config[key]) if key in config else None


def select_metrics(update: ClientUpdate, config: Mapping[str, Scalar]) -> dict[str, float]:
    """Leave out metrics of single classes where the strategy is a stock one.

    Flower's strategies refuse replies whose metrics differ in name, and clients' classes differ.
    """
    if record_names.WEIGHT in config:
        return update.metrics
    return {k: v for k, v in update.metrics.items() if not k.rpartition("-")[2].isdigit()}
