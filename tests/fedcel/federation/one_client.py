"""A client's round alone, as the tests ask for it."""

from collections.abc import Sequence

from torch import Tensor

from fedcel.data import Images
from fedcel.federation import (
    ClientRound,
    ClientUpdate,
    RoundRequest,
    train_clients,
    update_clients,
)
from fedcel.losses import Streams, WeightedTerm
from fedcel.losses.cel import State
from fedcel.nets import FlatNet
from fedcel.posterior import RoundPlan
from fedcel.run_parts import build_client_parts
from fedcel.settings import LocalSettings, Settings


def train_one(
    flat: FlatNet,
    received: Tensor,
    images: Images,
    *,
    plan: RoundPlan,
    local: LocalSettings,
    streams: Streams,
    terms: Sequence[WeightedTerm] = (),
    state: State | None = None,
) -> ClientUpdate:
    """Train one client with a plan of the test's own."""
    client = ClientRound(images, plan, streams, state)
    (update,) = train_clients(flat, received, [client], local=local, terms=terms)
    return update


def update_one(
    settings: Settings,
    client: int,
    weight: float,
    request: RoundRequest,
    state: State | None = None,
) -> ClientUpdate:
    """Train one client as settings and server say."""
    (update,) = update_clients(
        build_client_parts(settings),
        request._replace(weights={client: weight}),
        read_state=lambda client: state,
    )
    return update
