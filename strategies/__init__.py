"""The server's side of Flower: the strategy over deltas and the ServerApp."""

from strategies.posterior import PosteriorStrategy
from strategies.server_app import server_app

__all__ = ["PosteriorStrategy", "server_app"]
