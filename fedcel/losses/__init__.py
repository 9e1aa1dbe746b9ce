"""Terms added to the task's loss: conditional entropy losses, and rival defences."""

from fedcel.lazy import list_names as _list_names
from fedcel.losses.client_loss import ClientLossTerm as ClientLossTerm
from fedcel.losses.client_loss import TermLoss as TermLoss
from fedcel.losses.contract import CEL_TESTS as CEL_TESTS
from fedcel.losses.contract import DEFENCE_TESTS as DEFENCE_TESTS
from fedcel.losses.contract import SERVER_METRICS as SERVER_METRICS
from fedcel.losses.contract import LossCase as LossCase
from fedcel.losses.imported import ImportedCEL as ImportedCEL
from fedcel.losses.protocol import SHARE as SHARE
from fedcel.losses.protocol import Batch as Batch
from fedcel.losses.protocol import ClientLoss as ClientLoss
from fedcel.losses.protocol import MetricRange as MetricRange
from fedcel.losses.protocol import MetricScale as MetricScale
from fedcel.losses.terms import GradientRule as GradientRule
from fedcel.losses.terms import LossTerm as LossTerm
from fedcel.losses.terms import States as States
from fedcel.losses.terms import Streams as Streams
from fedcel.losses.terms import WeightedTerm as WeightedTerm
from fedcel.losses.terms import join_states as join_states
from fedcel.losses.terms import part_states as part_states
from fedcel.losses.terms import refresh_terms as refresh_terms
from fedcel.losses.terms import refuse_undefined_terms as refuse_undefined_terms
from fedcel.losses.terms import select_state as select_state

__all__ = _list_names(globals())
