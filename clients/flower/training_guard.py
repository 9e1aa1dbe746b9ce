"""Guard of a node before it trains: the leak of a model's encoder, measured on own images."""

import logging

import torch
from flwr.app import Context, MetricRecord
from flwr.common import NDArrays

from clients.encoder_leak_guard import LeakGuard, measure_leak
from fedcel.errors import LeakError, SettingsError
from fedcel.federation import record_names
from fedcel.nets import to_vector
from fedcel.run_parts import build_workspace_net, select_client_images
from fedcel.settings import Settings
from fedcel.tensors import to_floats
from fedcel.torch_state import make_generator

LOGGER = logging.getLogger("flwr")
LIMIT_KEY, AFTER_KEY = "leak-limit", "leak-after"
"""Keys of --node-config: bits beyond the label, and models that a node answers before."""
KEYS = (LIMIT_KEY, AFTER_KEY)
MAX_IMAGES = 500
"""Own images that a model is measured on, the first so many."""
COUNT = "models"
"""In the record of a node's state: the models that it has answered by an update."""


def check_model(
    settings: Settings, model: NDArrays, context: Context, *, client: int, number: int
) -> None:
    """Measure what one message of a received model's encoder leaks of own images; log or refuse it.

    Nothing is measured where the node sets no `leak-limit`. The limit holds once the node has
    answered `leak-after` models by updates, which it counts itself: untrained encoders leak by
    nature.

    Raises:
        LeakError: The encoder may leak more than the limit, or the own images are too few to know.
            The text has no measured number: it goes to the server.
        SettingsError: The limit or the number of models is none.
    """
    limit, after = read_limit(context)
    if limit is None:
        return
    answered = count_models(context)
    flat = build_workspace_net(settings)
    flat.load(to_vector(model))
    images = select_client_images(settings, client)
    generator = make_generator(settings.seed, "leak-guard", number, client)
    x, y = to_floats(images.x[:MAX_IMAGES]), images.y[:MAX_IMAGES]
    if answered < after:
        leak = measure_leak(flat.net, x, y, generator)
        LOGGER.info("round %d: %s; the limit does not hold yet", number, describe_leak(leak.upper))
        return
    try:
        leak = LeakGuard(limit).check(flat.net, x, y, generator)
    except LeakError as error:
        LOGGER.warning("round %d: model refused: %s", number, error)
        raise LeakError(
            f"this node refuses the model of round {number}: by its own images it may leak more "
            f"than {limit:g} bits beyond the label; the node's log says what was measured"
        ) from None
    LOGGER.info("round %d: %s, the limit is %g", number, describe_leak(leak.upper), limit)


def describe_leak(bits: float) -> str:
    """Return what was measured in words."""
    return f"one message of the model leaks up to {bits:.2f} bits beyond the label"


def read_limit(context: Context) -> tuple[float | None, int]:
    """Read the node's limit, None where it sets none, and the models before it holds."""
    limit, after = context.node_config.get(LIMIT_KEY), context.node_config.get(AFTER_KEY, 0)
    if limit is None:
        if AFTER_KEY in context.node_config:
            raise SettingsError(f"--node-config has {AFTER_KEY} and no {LIMIT_KEY}; add it, as 1")
        return None, 0
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit < torch.inf:
        raise SettingsError(f"{LIMIT_KEY} is {limit!r}, must be bits above 0, such as 1.0")
    if isinstance(after, bool) or not isinstance(after, int) or after < 0:
        raise SettingsError(f"{AFTER_KEY} is {after!r}, must be a number of models, 0 or more")
    return float(limit), after


def count_models(context: Context) -> int:
    """Return the models of this run that the node has answered by an update."""
    record = context.state.get(record_names.GUARD)
    return int(record[COUNT]) if isinstance(record, MetricRecord) else 0  # type: ignore[arg-type]


def add_model(context: Context) -> None:
    """Count a model that the node has answered."""
    context.state[record_names.GUARD] = MetricRecord({COUNT: count_models(context) + 1})
