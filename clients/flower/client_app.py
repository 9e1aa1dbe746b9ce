"""The Flower ClientApp: train, evaluate, query; records in, records out."""

from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.common import NDArrays, Scalar

from clients.flower import client_round
from clients.flower.posterior_client import PosteriorClient
from fedcel.data import Own
from fedcel.errors import SettingsError
from fedcel.federation import record_names
from fedcel.losses.cel.protocol import State
from fedcel.nets.flat_parameters import to_vector
from fedcel.runs import client_state
from fedcel.settings.parsing import Settings, parse

if TYPE_CHECKING:
    from clients.flower.evaluation_client import Account, EvaluationClient

APP_ONLY = ("out", "resume")  # keys of the run config that only the ServerApp reads
NODE_KEYS = ("partition-id", "num-partitions", "data-path", "state-path", "ledger-path")
"""Keys of --node-config. Simulation sets the first two."""


def settings_of(context: Context) -> Settings:
    """Return the operator's settings from the run config."""
    return parse({k: v for k, v in context.run_config.items() if k not in APP_ONLY})


def client_app(settings: Settings | None = None, state_root: Path | None = None) -> ClientApp:
    """Return the app; without `settings` it reads the run config of each message's context.

    With `state_root`, each partition's state lives in a folder below it and survives a restart;
    a node's own `state-path` does the same. A node's `data-path` takes the place of the run's data.
    """
    app = ClientApp()

    def here(message: Message, context: Context) -> Settings:
        return at_node(settings or settings_of(context), message, context)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        s = here(message, context)
        bound = client_round.bound_update(s, partition(context), *memory(context, state_root))
        parameters = model(message)
        names, others = record_names.joined(extras(message))
        asks = asked(message) | {record_names.BROUGHT: names}
        uploaded, examples, metrics = PosteriorClient(bound).fit([*parameters, *others], asks)
        key = record_names.ARRAYS if s.strategy.upload == "weights" else record_names.DELTA
        layers = len(parameters)
        more = record_names.parted(str(metrics[record_names.BROUGHT]), uploaded[layers:])
        sent = {name: ArrayRecord(a) for name, a in {key: uploaded[:layers], **more}.items()}
        whose = {record_names.EXAMPLES: examples, record_names.ROUND: asks[record_names.ROUND]}
        return answered(message, {**sent, record_names.METRICS: numeric(metrics | whose)})

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        client = evaluator(telling(here(message, context)), message, context)
        nll, examples, metrics = client.evaluate(model(message), asked(message))
        numbers = numeric({**metrics, "nll": nll, record_names.EXAMPLES: examples})
        return answered(message, {record_names.METRICS: numbers})

    @app.query(record_names.COUNT_QUERY)
    def count(message: Message, context: Context) -> Message:
        s, place, asks = here(message, context), state_folder(context), asked(message)
        if place and record_names.ROUND in asks:
            forget_after(place, int(asks[record_names.ROUND]))
        numbers = MetricRecord(
            {
                record_names.EXAMPLES: len(client_round.images(s, partition(context)).y),
                record_names.PARTITION: partition(context),
                record_names.OWN: int(isinstance(s.data, Own)),
            }
        )
        return answered(message, {record_names.METRICS: numbers})

    @app.query(record_names.GRADIENT_QUERY)
    def gradient(message: Message, context: Context) -> Message:
        s, received = telling(here(message, context)), to_vector(model(message))
        number, flat = int(asked(message)[record_names.ROUND]), client_round.workspace(s)
        own = client_round.gradient(s, flat, partition(context), received, number)
        return answered(message, {record_names.GRADIENT: ArrayRecord([own.numpy()])})

    @app.query(record_names.LOGITS_QUERY)
    def query(message: Message, context: Context) -> Message:
        client = evaluator(here(message, context), message, context)
        smashed = message.content.array_records[record_names.SMASHED].to_numpy_ndarrays()[0]
        told = client.query(smashed, account(message, context))
        return answered(message, {record_names.LOGITS: ArrayRecord([told])})

    return app


def telling(settings: Settings) -> Settings:
    """Return the settings; SettingsError where what is asked for has no noise."""
    if settings.update.noise:
        raise SettingsError(
            f"update.noise is {settings.update.noise:g}: this node tells nothing else of its "
            "images; score the model on the server's validation images"
        )
    return settings


def at_node(settings: Settings, message: Message, context: Context) -> Settings:
    """Return the settings, this node's own images in the place of the run's data if it has such.

    What the images have to fit comes with the message. SettingsError on a key of --node-config that
    nobody reads: with `data-path` misspelt, the node would look for the server's data.
    """
    for key in context.node_config.keys() - set(NODE_KEYS):
        near = get_close_matches(key, NODE_KEYS, 1, cutoff=0)
        raise SettingsError(f"unknown key {key!r} in --node-config; did you mean {near[0]!r}?")
    path = context.node_config.get("data-path")
    if path is None:
        return settings
    told = message.content.config_records.get(record_names.CONFIG, ConfigRecord())
    if not {record_names.SHAPE, record_names.CLASSES} <= told.keys():
        raise SettingsError(
            f"the message has no {record_names.SHAPE!r} and {record_names.CLASSES!r}, which this "
            f"node's own images must fit; send both in {record_names.CONFIG!r}"
        )
    own = {
        **settings.data.model_dump(),
        "path": str(path),
        "holder": partition(context),
        "shape": told[record_names.SHAPE],
        "classes": told[record_names.CLASSES],
        "names": told.get(record_names.NAMES, []),
    }
    return settings.model_copy(update={"data": Own.model_validate(own)})


def answered(message: Message, records: dict[str, ArrayRecord | MetricRecord]) -> Message:
    """Return the reply to a message."""
    return Message(content=RecordDict({**records}), reply_to=message)


def evaluator(settings: Settings, message: Message, context: Context) -> "EvaluationClient":
    """Return the evaluation client of this node, on its own images and the samples sent."""
    from clients.flower.evaluation_client import (
        EvaluationClient,  # seconds of imports that training never needs
    )

    own = client_round.images(settings, partition(context))
    return EvaluationClient(settings, client_round.workspace(settings), own, samples(message))


def account(message: Message, context: Context) -> "Account":
    """Return the account of whoever asks; SettingsError where the node keeps no ledger.

    Without one the same message could be asked until its noise is averaged away.
    """
    from clients.flower.evaluation_client import Account

    path = context.node_config.get("ledger-path")
    if path is None:
        raise SettingsError(
            "this node has no ledger, so it answers nobody: start it with --node-config "
            "'ledger-path=\"FILE\"'"
        )
    return Account(Path(str(path)), f"flower-{message.metadata.src_node_id}")


def asked(message: Message) -> dict[str, Scalar]:
    """Return what the server asks of this round."""
    config = message.content.config_records.get(record_names.CONFIG, ConfigRecord())
    return {k: v for k, v in config.items() if isinstance(v, bool | bytes | float | int | str)}


def numeric(metrics: dict[str, Scalar]) -> MetricRecord:
    """Return a NumPyClient's metrics as a record; those that are no numbers do not travel."""
    return MetricRecord({k: v for k, v in metrics.items() if isinstance(v, int | float)})


def partition(context: Context) -> int:
    """Return which holder this node is; SettingsError where it was not told."""
    if "partition-id" not in context.node_config:
        raise SettingsError("--node-config has no partition-id; add one, 0 for the first node")
    return int(context.node_config["partition-id"])


def model(message: Message) -> NDArrays:
    """Return the global model of a message; some stock strategies send it in double precision."""
    found = message.content.array_records[record_names.ARRAYS].to_numpy_ndarrays()
    return [array.astype(np.float32, copy=False) for array in found]


def extras(message: Message) -> dict[str, NDArrays]:
    """Return what a message brings besides the model, by record."""
    # Copied: Flower's arrays are read-only views of the message.
    return {
        name: [array.copy() for array in record.to_numpy_ndarrays()]
        for name, record in message.content.array_records.items()
        if name in record_names.ARRAYS_OF
    }


def samples(message: Message) -> list[torch.Tensor]:
    """Return the posterior samples of a message, or none."""
    record = message.content.array_records.get(record_names.SAMPLES)
    return [] if record is None else [torch.from_numpy(row) for row in record.to_numpy_ndarrays()]


def state_folder(context: Context) -> Path | None:
    """Return where this node keeps the state of this run: one folder for each run folder `out`.

    Flower gives a resumed run another id, `out` stays. None for a node without `state-path`.
    """
    path = context.node_config.get("state-path")
    run = sha256(str(context.run_config.get("out", "none")).encode()).hexdigest()[:16]
    return Path(str(path)) / f"run-{run}" if path else None


def forget_after(folder: Path, number: int) -> None:
    """Remove states of later rounds, which an earlier run into the same folder left."""
    for path in folder.glob("*.safetensors"):
        if int(path.stem) > number:
            path.unlink(missing_ok=True)


def memory(
    context: Context, root: Path | None
) -> tuple[client_round.Recall, client_round.Remember]:
    """Return how to read and keep a client's state: its folder where it has one, else memory."""
    own = state_folder(context)
    folder = own or (root and root / f"partition-{partition(context):06d}")
    if folder:

        def save(number: int, state: State) -> None:
            if own:
                forget_after(own, number)
            client_state.save(folder, number, state)

        return lambda number: client_state.read(folder, number), save

    def recall(number: int) -> State | None:
        record = context.state.get(record_names.CEL)
        if not isinstance(record, ArrayRecord):
            return None
        return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}

    def remember(number: int, state: State) -> None:
        arrays = {name: Array(tensor.detach().numpy()) for name, tensor in state.items()}
        context.state[record_names.CEL] = ArrayRecord(arrays)

    return recall, remember


app = client_app()
