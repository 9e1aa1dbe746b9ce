"""The command `bench`: train and attack the variants of a scenario."""

from functools import partial

import typer

from fedcel.extras import require_extra
from sims.commands.interruption import explain_interruption, explain_repeat
from sims.commands.options import (
    Assignments,
    EngineChoice,
    Jobs,
    OutFolder,
    Scenario,
    choose_folder,
)
from sims.overrides import parse_overrides

EXAMPLES = (
    "fedcel bench digits --out runs/demo",
    "fedcel bench defences --engine local --jobs 2",
)


def bench_command(
    context: typer.Context,
    scenario: Scenario,
    assignments: Assignments = None,
    out: OutFolder = None,
    engine: EngineChoice = None,
    jobs: Jobs = 1,
) -> None:
    """Train and attack every variant, strength and seed of a scenario; repeat to resume.

    If neither the scenario nor an option names an engine, it is auto.
    """
    require_extra("simulation")
    folder, arguments = choose_folder(context, scenario, out)
    from sims import report
    from sims.bench import scenario as scenarios
    from sims.bench.run_bench import run_bench

    plan, overrides = scenarios.override_seeds(
        scenarios.read_scenario(scenario), parse_overrides(assignments, engine)
    )
    cells = scenarios.list_cells(plan, overrides)
    hint = partial(explain_repeat, "finished cells and complete rounds", arguments)
    with explain_interruption(hint):
        page = run_bench(plan, cells, folder, jobs)
    print(report.format_summary(folder))
    print(f"report: {page}")
