"""Benches: a scenario's variants, strengths and seeds, trained, attacked and compared.

`sims.bench.run_bench`, which trains and attacks, is imported by itself: it needs more.
"""

from fedcel.lazy import list_names as _list_names
from sims.bench.scenario import Cell as Cell
from sims.bench.scenario import Scenario as Scenario
from sims.bench.scenario import Variant as Variant
from sims.bench.scenario import list_cells as list_cells
from sims.bench.scenario import list_packaged as list_packaged
from sims.bench.scenario import make_plain_variant as make_plain_variant
from sims.bench.scenario import override_seeds as override_seeds
from sims.bench.scenario import read_scenario as read_scenario

__all__ = _list_names(globals())
