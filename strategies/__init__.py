"""The server's side of Flower: the strategy over deltas and the ServerApp."""

from strategies.app import server_app
from strategies.posterior import PosteriorStrategy

__all__ = ["PosteriorStrategy", "server_app"]
