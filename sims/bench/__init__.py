"""Benches: a scenario's variants, strengths and seeds, trained, attacked and compared.

`sims.bench.run_bench`, which trains and attacks, is imported by itself: it needs more.
"""

from sims.bench.scenario import (
    Cell,
    Scenario,
    Variant,
    list_cells,
    list_packaged,
    make_plain_variant,
    override_seeds,
    read_scenario,
)

__all__ = [
    "Cell",
    "Scenario",
    "Variant",
    "list_cells",
    "list_packaged",
    "make_plain_variant",
    "override_seeds",
    "read_scenario",
]
