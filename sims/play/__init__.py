"""The playground: what one message of an image gives away, undefended and defended."""

from sims.play.column import Column, prepare_column
from sims.play.noise_levels import FACTORS, MESSAGE_COUNTS
from sims.play.playground import Playground, open_playground
from sims.play.web import create_app

__all__ = [
    "FACTORS",
    "MESSAGE_COUNTS",
    "Column",
    "Playground",
    "create_app",
    "open_playground",
    "prepare_column",
]
