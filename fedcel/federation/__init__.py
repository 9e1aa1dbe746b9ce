"""One round of federated training: what a client computes, what the server makes of it."""

from fedcel.federation.aggregation import weighted_sum
from fedcel.federation.client_metrics import (
    MetricSummary,
    declare_nll,
    declare_scores,
    summarise_metrics,
)
from fedcel.federation.client_update import (
    ClientParts,
    RoundRequest,
    compute_client_gradient,
    prepare_client,
    protect_update,
    update_clients,
    weigh_terms,
)
from fedcel.federation.code_digest import digest_code
from fedcel.federation.local_steps import (
    ClientRound,
    ClientUpdate,
    client_step,
    name_obstacle,
    train_clients,
)
from fedcel.federation.robust_aggregation import combine_deltas
from fedcel.federation.server_round import (
    CLIENT_DRIFT,
    HEAVIEST,
    KEPT_SHARE,
    ClientTrainer,
    Rejection,
    RoundReport,
    ServerParts,
    add_mean_gradient,
    advance_model,
    begin_round,
    check_kept_share,
    finish_round,
    follow_goal,
    measure_kept_share,
    play_round,
)
from fedcel.federation.server_state import ServerState, init_server_state

__all__ = [
    "CLIENT_DRIFT",
    "HEAVIEST",
    "KEPT_SHARE",
    "ClientParts",
    "ClientRound",
    "ClientTrainer",
    "ClientUpdate",
    "MetricSummary",
    "Rejection",
    "RoundReport",
    "RoundRequest",
    "ServerParts",
    "ServerState",
    "add_mean_gradient",
    "advance_model",
    "begin_round",
    "check_kept_share",
    "client_step",
    "combine_deltas",
    "compute_client_gradient",
    "declare_nll",
    "declare_scores",
    "digest_code",
    "finish_round",
    "follow_goal",
    "init_server_state",
    "measure_kept_share",
    "name_obstacle",
    "play_round",
    "prepare_client",
    "protect_update",
    "summarise_metrics",
    "train_clients",
    "update_clients",
    "weigh_terms",
    "weighted_sum",
]
