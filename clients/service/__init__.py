"""Split inference over HTTP: private answers, charged to a ledger before they are drawn.

What is offered here answers queries and needs no web framework: a Flower node uses it, too. The
application (`clients.service.app`), the keys (`access`) and the metrics (`monitoring`) are
imported from their files, so that only who serves over HTTP needs the extra `service`.
"""

from clients.service.answering import PrivateAnswer, PrivateAnswerer, Query, to_micro_epsilon
from clients.service.model import ServedModel, build_served, load_served

__all__ = [
    "PrivateAnswer",
    "PrivateAnswerer",
    "Query",
    "ServedModel",
    "build_served",
    "load_served",
    "to_micro_epsilon",
]
