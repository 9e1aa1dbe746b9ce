"""The server's side of Flower: the strategy over deltas and the ServerApp."""

from strategies.posterior_strategy import PosteriorStrategy
from strategies.server_app import make_server_app

__all__ = ["PosteriorStrategy", "make_server_app"]
