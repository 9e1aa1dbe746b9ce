"""Split inference over HTTP: private answers, charged to a ledger before they are told.

What is offered here answers queries and needs no web framework: a Flower node uses it, too. The
application (`clients.service.app`), the middleware (`middleware`) and the metrics (`monitoring`)
are imported from their files, so that only servers over HTTP need the extra `service`.
"""

from clients.service.answering import PrivateAnswer, PrivateAnswerer, Query, ServedModel
from clients.service.model_offer import build_served, load_served
from clients.service.private_layer import LogitQuery, PrivateLayer
from clients.service.problems import ProblemError

__all__ = [
    "LogitQuery",
    "PrivateAnswer",
    "PrivateAnswerer",
    "PrivateLayer",
    "ProblemError",
    "Query",
    "ServedModel",
    "build_served",
    "load_served",
]
