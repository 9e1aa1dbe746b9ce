"""A client's round alone, as the tests ask for it."""

from typing import Any

from torch import Tensor

from fedcel.data import Images, load_splits
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
from fedcel.posterior import RoundOrder, RoundPlan
from fedcel.run_parts import build_client_parts, init_net
from fedcel.settings import Settings


def train_one(
    flat: FlatNet,
    received: Tensor,
    images: Images,
    *,
    plan: RoundPlan,
    streams: Streams,
    state: State | None = None,
    **changes: Any,
) -> ClientUpdate:
    """Train a client that holds everything by a plan with some `changes`."""
    client = ClientRound(images, streams, plan.noise(1.0), state)
    (update,) = train_clients(flat, received, [client], plan._replace(**changes))
    return update


def update_one(
    settings: Settings,
    client: int,
    weight: float,
    *,
    number: int,
    total: int,
    model: Tensor | None = None,
    state: State | None = None,
) -> ClientUpdate:
    """Train a client in round `number`, from the first model where none is given."""
    parts = build_client_parts(settings)
    if model is None:
        splits = load_splits(settings.data, settings.clients, settings.seed)
        model = init_net(settings, splits).vector
    request = RoundRequest(parts.schedule.plan(RoundOrder(number, total)), model, {client: weight})
    trainer = RoundTrainer(parts, request, read_state=lambda client: state)
    (update,) = trainer.train()
    return update
