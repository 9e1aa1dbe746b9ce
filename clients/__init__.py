"""Faces of data holders and queriers: Flower clients, leak guard, the service and its clients.

Names are loaded when they are first used: a process that only trains has no use for the service's
libraries, whose import takes longer than many a round.
"""

from typing import TYPE_CHECKING

from fedcel.lazy import export_lazily as _export_lazily

if TYPE_CHECKING:
    from clients.device import ImageOwner as ImageOwner
    from clients.device import PrivatePrediction as PrivatePrediction
    from clients.device import SplitClient as SplitClient
    from clients.encoder_leak_guard import Leak as Leak
    from clients.encoder_leak_guard import LeakGuard as LeakGuard
    from clients.encoder_leak_guard import measure_leak as measure_leak
    from clients.flower.client_app import make_client_app as make_client_app
    from clients.flower.evaluation_client import EvaluationClient as EvaluationClient
    from clients.flower.posterior_client import PosteriorClient as PosteriorClient
    from clients.service import PrivateLayer as PrivateLayer
else:
    __all__, __getattr__, __dir__ = _export_lazily(__name__, __file__)
