"""Benches: a scenario's variants, strengths and seeds, trained, attacked and compared.

What trains and attacks is imported from its module, `sims.bench.run_bench`, `.escalate` or
`.uncertainty`: it needs more than a scenario does.
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
