"""The Flower ClientApp: train, evaluate, query; records in, records out."""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from secrets import randbits
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import NDArrays, Scalar

from clients.flower import training_guard
from clients.flower.posterior_client import LOGGER, ContextMemory, PosteriorClient
from fedcel.data import NodeDataSettings
from fedcel.errors import FailedError, SettingsError, describe_unforeseen, shorten_text
from fedcel.federation import digest_code, record_names
from fedcel.run_parts import build_workspace_net, select_client_images
from fedcel.runs import ClientStateFolder
from fedcel.settings import UNSET, Settings, parse_run_config

if TYPE_CHECKING:
    from clients.flower.evaluation_client import Account, EvaluationClient

_NODE_KEYS = (
    *("partition-id", "num-partitions", "data-path", "state-path", "ledger-path"),
    *training_guard.KEYS,
)
"""Keys of --node-config. Simulation sets the first two."""
CLIPPING_NORM = "clipping_norm"
"""Key of a round's config by which Flower's client-side clipping sends its norm."""


def limit_failure(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Cut the text of a failure; a mod of Flower's around everything that a ClientApp does.

    Flower sends an error's text as it is: megabytes travel, and one that cannot be encoded ends
    the process in the place of an answer, as does an exit that a client's code asks for. The
    traceback stays, for the node's own log.

    Raises:
        FailedError: In the place of an error whose text is long or cannot be sent, or of an exit.
    """
    try:
        return call_next(message, context)
    except (Exception, SystemExit) as error:
        text = shorten_text(str(error))
        if isinstance(error, Exception) and text == str(error):
            raise
        reason = shorten_text(describe_unforeseen(error))
        raise FailedError(reason).with_traceback(error.__traceback__) from None


def make_client_app(settings: Settings | None = None) -> ClientApp:
    """Make the ClientApp of a node. Its `data-path` takes the place of the run's data.

    The losses' state is in the folder `state-path` of the node and survives a restart; without one
    it is in Flower's context.

    Args:
        settings: The run's settings; None: each message's run config has them.

    Returns:
        The app for `flwr run`, a SuperNode or a simulation of Flower's.
    """
    app = ClientApp(mods=[limit_failure])

    def node_settings(message: Message, context: Context) -> Settings:
        torch.set_num_threads(1)  # several clients share the cores; threads would fight over them
        return resolve_node_settings(settings or read_settings(message, context), message, context)

    @app.train(mods=[clip_if_asked])
    def train(message: Message, context: Context) -> Message:
        run_settings = node_settings(message, context)
        partition = read_partition(context)
        config = read_config(message)
        memory = open_state_folder(context, config) or ContextMemory(context)
        if context.node_config.keys() & set(training_guard.KEYS):
            training_guard.check_model(
                run_settings,
                read_model(message),
                context,
                client=partition,
                number=int(config[record_names.ROUND]),
            )
        client = PosteriorClient(run_settings, partition, memory)
        upload, examples, metrics = client.fit(read_model(message), config)
        if training_guard.LIMIT_KEY in context.node_config:
            training_guard.add_model(context)
        sends_weights = run_settings.strategy.upload == "weights"
        upload_record = record_names.ARRAYS if sends_weights else record_names.DELTA
        numbers = {
            **metrics,
            record_names.EXAMPLES: examples,
            record_names.ROUND: config[record_names.ROUND],
            record_names.INCARNATION: draw_incarnation(context),
        }
        return pack_reply(message, {upload_record: upload}, numbers)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        run_settings = node_settings(message, context)
        if run_settings.update.noise:
            raise SettingsError(
                f"update.noise is {run_settings.update.noise:g}: this node tells nothing else of "
                "its images; score the model on the server's validation images"
            )
        client = make_evaluation_client(run_settings, message, context)
        nll, examples, metrics = client.evaluate(read_model(message), read_config(message))
        numbers = {**metrics, "nll": nll, record_names.EXAMPLES: examples}
        return pack_reply(message, {}, numbers)

    @app.query(record_names.COUNT_QUERY)
    def count(message: Message, context: Context) -> Message:
        run_settings = node_settings(message, context)
        partition = read_partition(context)
        config = read_config(message)
        check_state_path(context)
        folder = open_state_folder(context, config)
        if folder and record_names.ROUND in config:
            folder.delete_after(int(config[record_names.ROUND]))
        numbers: dict[str, Scalar] = {
            record_names.EXAMPLES: len(select_client_images(run_settings, partition).y),
            record_names.PARTITION: partition,
            record_names.HAS_NODE_DATA: int(isinstance(run_settings.data, NodeDataSettings)),
            record_names.CODE: digest_code(),
        }
        return pack_reply(message, {}, numbers)

    @app.query(record_names.LOGITS_QUERY)
    def logits(message: Message, context: Context) -> Message:
        run_settings = node_settings(message, context)
        client = make_evaluation_client(run_settings, message, context)
        smashed = message.content.array_records[record_names.SMASHED].to_numpy_ndarrays()[0]
        answers = client.query(smashed, find_account(message, context))
        return pack_reply(message, {record_names.LOGITS: [answers]})

    return app


def read_settings(message: Message, context: Context) -> Settings:
    """Read the operator's settings in the run config; SettingsError where they are wrong.

    How many clients there are comes with the message, where the run config does not say.
    """
    clients = read_config(message).get(record_names.CLIENTS)
    return _parse_once(tuple(context.run_config.items()), None if clients is None else int(clients))


@lru_cache(maxsize=4)
def _parse_once(config: tuple[tuple[str, object], ...], clients: int | None) -> Settings:
    """Parse a run config that comes with every message of a run."""
    return parse_run_config(dict(config), clients)


def clip_if_asked(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Clip the update where the message says to what norm: Flower's client-side clipping.

    The wrapper on the server sends the norm, whatever setting or function made it. One mod does
    for fixed and adaptive clipping: it clips alike, and tells what only the adaptive one reads.
    """
    if CLIPPING_NORM in read_config(message):
        return adaptiveclipping_mod(message, context, call_next)
    return call_next(message, context)


def resolve_node_settings(settings: Settings, message: Message, context: Context) -> Settings:
    """Put this node's own images in the place of the run's data, if it has such.

    What the images have to fit comes with the message.

    Raises:
        SettingsError: --node-config has a key that nobody reads (with `data-path` misspelt, the
            node would look for the server's data), or the message does not say what to fit.
    """
    for key in sorted(context.node_config.keys() - set(_NODE_KEYS)):
        (nearest,) = get_close_matches(key, _NODE_KEYS, 1, cutoff=0)
        raise SettingsError(f"unknown key {key!r} in --node-config; did you mean {nearest!r}?")
    path = context.node_config.get("data-path")
    if path is None:
        return settings
    config = message.content.config_records.get(record_names.CONFIG, ConfigRecord())
    if not {record_names.SHAPE, record_names.CLASSES} <= config.keys():
        raise SettingsError(
            f"the message has no {record_names.SHAPE!r} and {record_names.CLASSES!r}, which this "
            f"node's own images must fit; send both in {record_names.CONFIG!r}"
        )
    data = NodeDataSettings.at_node(
        settings.data,
        str(path),
        holder=read_partition(context),
        shape=config[record_names.SHAPE],
        classes=config[record_names.CLASSES],
        names=config.get(record_names.CLASS_NAMES, []),
    )
    return settings.model_copy(update={"data": data})


def make_evaluation_client(
    settings: Settings, message: Message, context: Context
) -> "EvaluationClient":
    """Return the evaluation client of this node, on its own images and the samples sent."""
    from clients.flower.evaluation_client import (
        EvaluationClient,  # seconds of imports that training never needs
    )

    images = select_client_images(settings, read_partition(context))
    return EvaluationClient(settings, build_workspace_net(settings), images, read_samples(message))


def open_state_folder(context: Context, config: Mapping[str, Scalar]) -> ClientStateFolder | None:
    """Return where this node keeps the state of this run: a folder for each `out` and partition.

    Flower gives a resumed run another id, `out` stays. Two nodes that share a `state-path` by
    mistake would else go on with each other's statistics. None for a node without `state-path`.
    """
    path = context.node_config.get("state-path")
    if not path:
        return None
    out = str(context.run_config.get("out", UNSET))
    if out == UNSET:  # the server chose the folder
        out = str(config.get(record_names.OUT, UNSET))
    owner = f"{out}\n{read_partition(context)}"
    run = sha256(owner.encode()).hexdigest()[:16]
    return ClientStateFolder(Path(str(path)) / f"run-{run}", read_partition(context))


def check_state_path(context: Context) -> None:
    """Refuse a `state-path` that takes no state before a node trains for nothing: SettingsError."""
    path = context.node_config.get("state-path")
    if not path:
        return
    try:
        Path(str(path)).mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=str(path)) as file:
            file.write(b"state")
    except OSError as error:
        raise SettingsError(
            f"state-path is {str(path)!r}, which takes no files ({error}); give this node a folder "
            "with room that it may write to"
        ) from error


def find_account(message: Message, context: Context) -> "Account":
    """Return the account of whoever asks.

    Raises:
        SettingsError: The node keeps no ledger: the same message could be asked until its noise is
            averaged away.
    """
    from clients.flower.evaluation_client import Account
    from fedcel.privacy.ledger import parse_ledger_address

    path = context.node_config.get("ledger-path")
    if path is None:
        raise SettingsError(
            "this node has no ledger, so it answers nobody: start it with --node-config "
            "'ledger-path=\"FILE\"'"
        )
    return Account(parse_ledger_address(str(path)), f"flower-{message.metadata.src_node_id}")


def draw_incarnation(context: Context) -> int:
    """Return the number that this node draws once a run, and again where it is started again.

    By it the server tells two machines with one key apart. It is no seed: nothing else follows it.
    """
    key = record_names.INCARNATION
    if record := context.state.metric_records.get(key):
        return int(cast(int, record[key]))
    number = randbits(48)
    context.state[key] = MetricRecord({key: number})
    LOGGER.info("In this run this node is %s", record_names.name_incarnation(number))
    return number


def read_partition(context: Context) -> int:
    """Return which client this node is; SettingsError where it was not told."""
    if "partition-id" not in context.node_config:
        raise SettingsError("--node-config has no partition-id; add one, 0 for the first node")
    return int(context.node_config["partition-id"])


def read_config(message: Message) -> dict[str, Scalar]:
    """Return what the server asks of this round."""
    config = message.content.config_records.get(record_names.CONFIG, ConfigRecord())
    return {k: v for k, v in config.items() if isinstance(v, bool | bytes | float | int | str)}


def read_model(message: Message) -> NDArrays:
    """Return the global model of a message; some stock strategies send it in double precision."""
    arrays = message.content.array_records[record_names.ARRAYS].to_numpy_ndarrays()
    return [array.astype(np.float32, copy=False) for array in arrays]


def read_samples(message: Message) -> list[torch.Tensor]:
    """Return the posterior samples of a message, or none."""
    record = message.content.array_records.get(record_names.SAMPLES)
    return [] if record is None else [torch.from_numpy(row) for row in record.to_numpy_ndarrays()]


def pack_reply(
    message: Message, arrays: dict[str, NDArrays], metrics: dict[str, Scalar] | None = None
) -> Message:
    """Pack arrays and metrics into a reply; metrics that are no numbers do not travel."""
    content = RecordDict({name: ArrayRecord(values) for name, values in arrays.items()})
    if metrics is not None:
        content[record_names.METRICS] = MetricRecord(
            {k: v for k, v in metrics.items() if isinstance(v, int | float)}
        )
    return Message(content=content, reply_to=message)


app = make_client_app()
