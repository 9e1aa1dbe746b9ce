"""The training client: Flower's arrays in, the client's update, Flower's arrays out."""

import logging
from collections.abc import Mapping

import torch
from flwr.app import Array, ArrayRecord, Context
from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar

from fedcel.federation import (
    ClientMemory,
    ClientUpdate,
    RoundRequest,
    RoundTrainer,
    StoredState,
    keep_state,
    load_state,
    record_names,
)
from fedcel.nets import to_arrays, to_vector
from fedcel.posterior import RoundOrder
from fedcel.run_parts import build_client_parts
from fedcel.runs import ClientStateFolder
from fedcel.settings import Settings
from fedcel.tensors import State

LOGGER = logging.getLogger("flwr")
FitResult = tuple[NDArrays, int, dict[str, Scalar]]


class ContextMemory:
    """States in Flower's context: in the node's memory, for one run, gone with a restart."""

    def __init__(self, context: Context) -> None:
        self._records = context.state

    def find_newest(self, number: int) -> int:
        """Return the newest round before `number` whose state is there, 0 where there is none."""
        return max((written for written in self._list_rounds() if written < number), default=0)

    def read_state(self, number: int) -> State | None:
        """Return the state after round `number`, None where it is not there."""
        record = self._records.get(f"{record_names.STATE}-{number}")
        if not isinstance(record, ArrayRecord):
            return None
        return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}

    def write_state(self, number: int, state: State, before: int) -> None:
        """Keep the state after round `number`, and of earlier ones that after round `before`."""
        arrays = {name: Array(tensor.detach().numpy()) for name, tensor in state.items()}
        self._records[f"{record_names.STATE}-{number}"] = ArrayRecord(arrays)
        for written in self._list_rounds():
            if written not in (number, before):
                del self._records[f"{record_names.STATE}-{written}"]

    def move_state(self, number: int, folder: ClientStateFolder) -> None:
        """Move the state after round `number`, if there is one, to a folder; forget all others."""
        if (state := self.read_state(number)) is not None:
            folder.write_state(number, state, self.find_newest(number))
        for written in self._list_rounds():
            del self._records[f"{record_names.STATE}-{written}"]

    def _list_rounds(self) -> list[int]:
        prefix = f"{record_names.STATE}-"
        return [int(name.removeprefix(prefix)) for name in self._records if name.startswith(prefix)]


class PosteriorClient(NumPyClient):
    """Trains one client by local SGLD, with the priors and losses that the settings choose.

    `fit` takes the global model and returns the delta, as any NumPyClient does.
    """

    def __init__(
        self,
        settings: Settings,
        client: int,
        memory: ClientMemory | None = None,
    ) -> None:
        """Bind the client to its partition of the run's data.

        Args:
            settings: The run's settings.
            client: Its partition, from 0.
            memory: Keeps its state between rounds; None: losses without statistics need none.
        """
        self.settings, self.client, self.memory = settings, client, memory
        self.parts = build_client_parts(settings)

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> FitResult:
        """Train for a round.

        Args:
            parameters: The global model, one array a layer.
            config: `server-round`; of our strategy also `share` (w_k) and `total-examples` (N).

        Returns:
            The delta (or the weights, as `strategy.upload` says), the number of examples, metrics.
        """
        examples = len(self.parts.images(self.client).y)
        number = int(config[record_names.ROUND])
        start = self._load_state(number, config)
        order = RoundOrder(
            number,
            int(config.get(record_names.TOTAL, examples)),  # stock strategies send no numbers
            threshold=_read_float(config, record_names.THRESHOLD),
            gamma=_read_float(config, record_names.GAMMA),
            proximal=_read_float(config, record_names.PROXIMAL) or 0.0,
        )
        plan = self.parts.schedule.plan(order, examples)
        weights = {self.client: float(config.get(record_names.WEIGHT, 1.0))}
        request = RoundRequest(plan, to_vector(parameters), weights)
        trainer = RoundTrainer(self.parts, request, read_state=lambda client: start.state)
        (update,) = trainer.train()
        upload = update.model if self.settings.strategy.upload == "weights" else update.delta
        shapes = [array.shape for array in parameters]
        metrics: dict[str, Scalar] = {**select_metrics(update, config)}
        metrics[record_names.PARTITION] = self.client
        if self.memory:
            is_noisy = self.settings.update.noise > 0
            metrics[record_names.STATE_START] = start.round
            stored = keep_state(self.memory, number, update.state, start, is_noisy=is_noisy)
            metrics[record_names.STATE_ROUND] = stored.round
        return to_arrays(upload, shapes), examples, metrics

    def _load_state(self, number: int, config: Mapping[str, Scalar]) -> StoredState:
        """Load the state of the round that the server names; a warning says that it is lost."""
        if self.memory is None:
            return StoredState(0, None)
        expected = config.get(record_names.STATE_ROUND)
        expected = None if expected is None else int(expected)
        start = load_state(self.memory, number, expected)
        if expected is not None and start.round != expected:
            LOGGER.warning(
                "The losses' state after round %d is not here: this node begins afresh. Give it "
                "the state-path that partition %d had",
                expected,
                self.client,
            )
        return start


def _read_float(config: Mapping[str, Scalar], key: str) -> float | None:
    return float(config[key]) if key in config else None


def select_metrics(update: ClientUpdate, config: Mapping[str, Scalar]) -> dict[str, float]:
    """Leave out metrics of single classes where the strategy is a stock one.

    Flower's strategies refuse replies whose metrics differ in name, and clients' classes differ.
    """
    if record_names.WEIGHT in config:
        return update.metrics
    return {k: v for k, v in update.metrics.items() if not k.rpartition("-")[2].isdigit()}
