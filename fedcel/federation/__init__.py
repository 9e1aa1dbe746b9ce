"""One round of federated training: what a client computes, what the server makes of it."""

from fedcel.federation.aggregation import HEAVIEST, weighted_sum
from fedcel.federation.batched_update import (
    count_clients_at_once,
    find_obstacle,
    update_clients,
)
from fedcel.federation.client_metrics import (
    MetricRange,
    MetricSummary,
    declare_metrics,
    declare_scores,
    summarise_metrics,
)
from fedcel.federation.client_update import (
    ClientUpdate,
    RoundInputs,
    build_client_losses,
    build_workspace_net,
    compute_client_gradient,
    init_net,
    protect_update,
    select_acting_losses,
    select_client_images,
    update_client,
)
from fedcel.federation.code_digest import digest_code
from fedcel.federation.local_update import LocalUpdate, local_update
from fedcel.federation.server_round import (
    CLIENT_DRIFT,
    KEPT_SHARE,
    ClientTrainer,
    Rejection,
    RoundReport,
    RoundRequest,
    add_mean_gradient,
    begin_round,
    check_kept_share,
    finish_round,
    measure_kept_share,
    play_round,
)
from fedcel.federation.server_state import (
    ServerState,
    advance_model,
    init_server_state,
    move_threshold,
    move_weight,
)

__all__ = [
    "CLIENT_DRIFT",
    "HEAVIEST",
    "KEPT_SHARE",
    "ClientTrainer",
    "ClientUpdate",
    "LocalUpdate",
    "MetricRange",
    "MetricSummary",
    "Rejection",
    "RoundInputs",
    "RoundReport",
    "RoundRequest",
    "ServerState",
    "add_mean_gradient",
    "advance_model",
    "begin_round",
    "build_client_losses",
    "build_workspace_net",
    "check_kept_share",
    "compute_client_gradient",
    "count_clients_at_once",
    "declare_metrics",
    "declare_scores",
    "digest_code",
    "find_obstacle",
    "finish_round",
    "init_net",
    "init_server_state",
    "local_update",
    "measure_kept_share",
    "move_threshold",
    "move_weight",
    "play_round",
    "protect_update",
    "select_acting_losses",
    "select_client_images",
    "summarise_metrics",
    "update_client",
    "update_clients",
    "weighted_sum",
]
