"""The playground: what one message of an image gives away, undefended and defended."""

from fedcel.lazy import list_names as _list_names
from sims.play.column import Column as Column
from sims.play.column import prepare_column as prepare_column
from sims.play.noise_levels import FACTORS as FACTORS
from sims.play.noise_levels import MESSAGE_COUNTS as MESSAGE_COUNTS
from sims.play.playground import Playground as Playground
from sims.play.playground import open_playground as open_playground
from sims.play.web import create_app as create_app

__all__ = _list_names(globals())
