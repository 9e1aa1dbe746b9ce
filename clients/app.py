"""The Flower ClientApp: train, evaluate, query; records in, records out."""

from pathlib import Path

import torch
from flwr.app import (
    Array,
    ArrayRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.common import NDArrays, Scalar

from clients import holder
from clients.evaluation import EvaluationClient
from clients.posterior import PosteriorClient
from fedcel import client_state, wire
from fedcel.cel.base import State
from fedcel.settings import Settings, parse

APP_ONLY = ("out",)  # keys of the run config that only the ServerApp reads


def settings_of(context: Context) -> Settings:
    """Return the operator's settings from the run config."""
    return parse({k: v for k, v in context.run_config.items() if k not in APP_ONLY})


def client_app(settings: Settings | None = None, state_root: Path | None = None) -> ClientApp:
    """Return the app; without `settings` it reads the run config of each message's context.

    With `state_root`, each partition's state lives in a folder below it and survives a restart;
    a node's own `state-path` does the same.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        s = settings or settings_of(context)
        bound = holder.bound_update(s, partition(context), *memory(context, state_root))
        parameters = model(message)
        received = [*parameters, *centres(message)]
        uploaded, examples, metrics = PosteriorClient(bound).fit(received, asked(message))
        key = wire.ARRAYS if s.strategy.upload == "weights" else wire.DELTA
        sent = arrays(uploaded, len(parameters), key)
        numbers = numeric({**metrics, wire.EXAMPLES: examples})
        return answered(message, {**sent, wire.METRICS: numbers})

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        client = evaluator(settings or settings_of(context), message, context)
        nll, examples, metrics = client.evaluate(model(message), asked(message))
        numbers = numeric({**metrics, "nll": nll, wire.EXAMPLES: examples})
        return answered(message, {wire.METRICS: numbers})

    @app.query(wire.COUNT_QUERY)
    def count(message: Message, context: Context) -> Message:
        held = len(holder.images(settings or settings_of(context), partition(context)).y)
        numbers = MetricRecord({wire.EXAMPLES: held, wire.PARTITION: partition(context)})
        return answered(message, {wire.METRICS: numbers})

    @app.query(wire.LOGITS_QUERY)
    def query(message: Message, context: Context) -> Message:
        client = evaluator(settings or settings_of(context), message, context)
        smashed = message.content.array_records[wire.SMASHED].to_numpy_ndarrays()[0]
        return answered(message, {wire.LOGITS: ArrayRecord([client.query(smashed)])})

    return app


def answered(message: Message, records: dict[str, ArrayRecord | MetricRecord]) -> Message:
    """Return the reply to a message."""
    return Message(content=RecordDict({**records}), reply_to=message)


def arrays(uploaded: NDArrays, layers: int, key: str) -> dict[str, ArrayRecord]:
    """Return the first `layers` arrays as the record `key`, the others as the statistics."""
    update, rest = uploaded[:layers], uploaded[layers:]
    sent = {key: ArrayRecord(update)}
    return sent | {wire.STATISTICS: ArrayRecord(rest)} if rest else sent


def evaluator(settings: Settings, message: Message, context: Context) -> EvaluationClient:
    """Return the evaluation client of this node, on its own images and the samples sent."""
    own = holder.images(settings, partition(context))
    return EvaluationClient(settings, holder.workspace(settings), own, samples(message))


def asked(message: Message) -> dict[str, Scalar]:
    """Return what the server asks of this round."""
    config = message.content.config_records[wire.CONFIG]
    return {k: v for k, v in config.items() if isinstance(v, bool | bytes | float | int | str)}


def numeric(metrics: dict[str, Scalar]) -> MetricRecord:
    """Return a NumPyClient's metrics as a record; those that are no numbers do not travel."""
    return MetricRecord({k: v for k, v in metrics.items() if isinstance(v, int | float)})


def partition(context: Context) -> int:
    """Return which holder this node is."""
    return int(context.node_config["partition-id"])


def model(message: Message) -> NDArrays:
    """Return the global model of a message."""
    return message.content.array_records[wire.ARRAYS].to_numpy_ndarrays()


def centres(message: Message) -> NDArrays:
    """Return the centres averaged over clients and their weights, or none."""
    record = message.content.array_records.get(wire.CENTRES)
    # Copied: Flower's arrays are read-only views of the message.
    return [] if record is None else [array.copy() for array in record.to_numpy_ndarrays()]


def samples(message: Message) -> list[torch.Tensor]:
    """Return the posterior samples of a message, or none."""
    record = message.content.array_records.get(wire.SAMPLES)
    return [] if record is None else [torch.from_numpy(row) for row in record.to_numpy_ndarrays()]


def memory(context: Context, root: Path | None) -> tuple[holder.Recall, holder.Remember]:
    """Return how to read and keep a client's state: its folder where it has one, else memory."""
    own = context.node_config.get("state-path")
    folder = Path(str(own)) if own else root and root / f"partition-{partition(context):06d}"
    if folder:
        return (
            lambda number: client_state.read(folder, number),
            lambda number, state: client_state.save(folder, number, state),
        )

    def recall(number: int) -> State | None:
        record = context.state.get(wire.CEL)
        if not isinstance(record, ArrayRecord):
            return None
        return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}

    def remember(number: int, state: State) -> None:
        arrays = {name: Array(tensor.detach().numpy()) for name, tensor in state.items()}
        context.state[wire.CEL] = ArrayRecord(arrays)

    return recall, remember


app = client_app()
