"""One round of federated training: what a client computes, what the server makes of it."""

from fedcel.federation.aggregation import slide_average, weighted_sum
from fedcel.federation.client_update import ClientUpdate, RoundInputs, update_client
from fedcel.federation.local_update import LocalUpdate, StepCorrections
from fedcel.federation.robust_aggregation import combine_deltas
from fedcel.federation.server_round import (
    RoundReport,
    RoundRequest,
    ServerState,
    begin_round,
    finish_round,
    init_server_state,
)

__all__ = [
    "ClientUpdate",
    "LocalUpdate",
    "RoundInputs",
    "RoundReport",
    "RoundRequest",
    "ServerState",
    "StepCorrections",
    "begin_round",
    "combine_deltas",
    "finish_round",
    "init_server_state",
    "slide_average",
    "update_client",
    "weighted_sum",
]
