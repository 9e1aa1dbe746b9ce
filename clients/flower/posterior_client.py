"""The training client: Flower's arrays in, the client's update, Flower's arrays out."""

from collections.abc import Mapping, Sequence

import torch
from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar

from clients.flower.client_memory import ClientMemory
from fedcel.federation import (
    ClientUpdate,
    RoundInputs,
    client_update,
    is_state_usable,
    record_names,
    update_client,
)
from fedcel.losses.cel import SharedCentres
from fedcel.nets import to_arrays, to_vector
from fedcel.settings import Settings

FitResult = tuple[NDArrays, int, dict[str, Scalar]]


class PosteriorClient(NumPyClient):
    """Trains one client by local SGLD under a mutual-information prior.

    `fit` takes the global model and returns the delta, as any NumPyClient does. What else a round
    brings and sends (averaged centres, gradients, step sizes) stands in `received` and `sent`, by
    the name of its record; a stock strategy has none of it.
    """

    def __init__(
        self,
        settings: Settings,
        client: int,
        memory: ClientMemory | None = None,
        received: Mapping[str, NDArrays] | None = None,
    ) -> None:
        """Bind the client to its partition of the run's data.

        Args:
            settings: Of the run.
            client: Its partition, from 0.
            memory: Keeps its state between rounds; None: losses without statistics need none.
            received: Arrays that came with the model, by record.
        """
        self.settings, self.client, self.memory = settings, client, memory
        self.received = received or {}
        self.sent: dict[str, NDArrays] = {}

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
            float(config.get(record_names.SHARE, 1.0)),
            read_inputs(number, to_vector(parameters), config, self.received, examples),
            self.memory.recall(number) if self.memory else None,
        )
        # A loss without statistics keeps nothing.
        if self.memory and update.state and is_state_usable(update.state):
            self.memory.remember(number, update.state)
        self.sent = {}
        if update.statistics:
            arrays = [tensor.numpy() for tensor in update.statistics]
            self.sent[record_names.STATISTICS] = arrays
        if update.gradient is not None:
            self.sent[record_names.GRADIENT] = [update.gradient.numpy()]
        upload = update.model if self.settings.strategy.upload == "weights" else update.delta
        shapes = [array.shape for array in parameters]
        metrics: dict[str, Scalar] = {**select_metrics(update, config)}
        metrics[record_names.PARTITION] = self.client
        return to_arrays(upload, shapes), examples, metrics


def read_inputs(
    number: int,
    model: torch.Tensor,
    config: Mapping[str, Scalar],
    received: Mapping[str, Sequence[object]],
    examples: int,
) -> RoundInputs:
    """Return what a message brings to a round; stock strategies send neither weight nor total."""
    tensors = {
        name: [torch.from_numpy(array) for array in arrays] for name, arrays in received.items()
    }
    centres = tensors.get(record_names.CENTRES)
    return RoundInputs(
        number=number,
        model=model,
        total_examples=int(config.get(record_names.TOTAL, examples)),
        proximal=_read_float(config, record_names.PROXIMAL),
        threshold=_read_float(config, record_names.THRESHOLD),
        centres=SharedCentres(*centres) if centres else None,
        gradient=tensors.get(record_names.GRADIENT, [None])[0],
        step_sizes=tensors.get(record_names.SCALE, [None])[0],
    )


def _read_float(config: Mapping[str, Scalar], key: str) -> float | None:
    return float(config[key]) if key in config else None


def select_metrics(update: ClientUpdate, config: Mapping[str, Scalar]) -> dict[str, float]:
    """Leave out metrics of single classes where the strategy is a stock one.

    Flower's strategies refuse replies whose metrics differ in name, and clients' classes differ.
    """
    if record_names.SHARE in config:
        return update.metrics
    return {k: v for k, v in update.metrics.items() if not k.rpartition("-")[2].isdigit()}
