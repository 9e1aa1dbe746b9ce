"""A round of a single client, for tests that train one."""

from typing import Any

from torch import Tensor

from fedcel.data import Images
from fedcel.federation import ClientRound, ClientUpdate, train_clients
from fedcel.losses import Streams
from fedcel.losses.cel import State
from fedcel.nets import FlatNet
from fedcel.posterior import RoundPlan


def train_one(
    flat: FlatNet,
    received: Tensor,
    images: Images,
    *,
    plan: RoundPlan,
    streams: Streams,
    state: State | None = None,
    control_variate: Tensor | None = None,
    **options: Any,
) -> ClientUpdate:
    """Return the update of one client; `options` are those of `train_clients`."""
    client = ClientRound(images, plan, streams, state, control_variate)
    (update,) = train_clients(flat, received, [client], **options)
    return update
