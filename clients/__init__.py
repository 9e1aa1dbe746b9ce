"""What faces a data holder or a querier: NumPyClients and the Flower ClientApp."""

from clients.app import client_app
from clients.evaluation import EvaluationClient
from clients.posterior import PosteriorClient

__all__ = ["EvaluationClient", "PosteriorClient", "client_app"]
