"""Split inference over HTTP: private answers, charged to a ledger before they are told.

What is offered here answers queries and needs no web framework: a Flower node uses it, too. The
application (`clients.service.app`) and the metrics (`monitoring`) are imported from their files, so
that only servers over HTTP need the extra `service`.
"""

from clients.service.model_offer import build_served as build_served
from clients.service.model_offer import load_served as load_served
from clients.service.private_answers import PrivateAnswer as PrivateAnswer
from clients.service.private_answers import PrivateAnswerer as PrivateAnswerer
from clients.service.private_answers import Query as Query
from clients.service.private_answers import ServedModel as ServedModel
from clients.service.private_layer import PrivateLayer as PrivateLayer
from clients.service.problems import ProblemError as ProblemError
from fedcel.lazy import list_names as _list_names

__all__ = _list_names(globals())
