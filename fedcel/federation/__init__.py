"""One round of federated training: what a client computes, what the server makes of it."""

from fedcel.federation.aggregation import combine_deltas as combine_deltas
from fedcel.federation.aggregation import select_clients as select_clients
from fedcel.federation.aggregation import weigh_clients as weigh_clients
from fedcel.federation.aggregation import weighted_sum as weighted_sum
from fedcel.federation.client_metrics import declare_nll as declare_nll
from fedcel.federation.code_digest import digest_code as digest_code
from fedcel.federation.local_steps import ClientRound as ClientRound
from fedcel.federation.local_steps import ClientUpdate as ClientUpdate
from fedcel.federation.local_steps import name_obstacle as name_obstacle
from fedcel.federation.local_steps import train_clients as train_clients
from fedcel.federation.round_trainer import ClientMemory as ClientMemory
from fedcel.federation.round_trainer import ClientParts as ClientParts
from fedcel.federation.round_trainer import RoundRequest as RoundRequest
from fedcel.federation.round_trainer import RoundTrainer as RoundTrainer
from fedcel.federation.round_trainer import StoredState as StoredState
from fedcel.federation.round_trainer import keep_state as keep_state
from fedcel.federation.round_trainer import load_state as load_state
from fedcel.federation.round_trainer import protect_update as protect_update
from fedcel.federation.server_round import CLIENT_DRIFT as CLIENT_DRIFT
from fedcel.federation.server_round import HEAVIEST as HEAVIEST
from fedcel.federation.server_round import KEPT_SHARE as KEPT_SHARE
from fedcel.federation.server_round import ClientTrainer as ClientTrainer
from fedcel.federation.server_round import Rejection as Rejection
from fedcel.federation.server_round import RoundReport as RoundReport
from fedcel.federation.server_round import ServerParts as ServerParts
from fedcel.federation.server_round import ServerState as ServerState
from fedcel.federation.server_round import advance_model as advance_model
from fedcel.federation.server_round import begin_round as begin_round
from fedcel.federation.server_round import check_kept_share as check_kept_share
from fedcel.federation.server_round import finish_round as finish_round
from fedcel.federation.server_round import follow_goal as follow_goal
from fedcel.federation.server_round import init_server_state as init_server_state
from fedcel.federation.server_round import play_round as play_round
from fedcel.lazy import list_names as _list_names

__all__ = _list_names(globals())
