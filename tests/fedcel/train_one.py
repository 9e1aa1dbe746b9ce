"""A client's round alone, as the tests ask for it."""

from typing import Any

from torch import Tensor

from fedcel.data import Images
from fedcel.federation import (
    ClientRound,
    ClientUpdate,
    RoundRequest,
    RoundTrainer,
    train_clients,
)
from fedcel.losses import Streams
from fedcel.losses.cel import State
from fedcel.nets import FlatNet
from fedcel.posterior import RoundPlan
from fedcel.run_parts import build_client_parts
from fedcel.settings import Settings


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
    """Train a client that holds everything; `options` are those of `train_clients`."""
    client = ClientRound(images, streams, plan.noise(1.0), state, control_variate)
    (update,) = train_clients(flat, received, [client], plan=plan, **options)
    return update


def update_one(
    settings: Settings,
    client: int,
    weight: float,
    request: RoundRequest,
    state: State | None = None,
) -> ClientUpdate:
    request = request._replace(weights={client: weight})
    trainer = RoundTrainer(build_client_parts(settings), request, read_state=lambda client: state)
    (update,) = trainer.train()
    return update
