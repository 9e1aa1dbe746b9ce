"""The command `tune`: choose rates and strengths."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedcel.extras import require_extra
from sims.commands.interruption import explain_interruption, explain_repeat
from sims.commands.options import Assignments, Jobs, Scenario, option
from sims.overrides import parse_overrides

EXAMPLES = ("fedcel tune digits --trials 20", "fedcel tune defences --trials 3 --jobs 2")


def tune_command(
    context: typer.Context,
    scenario: Scenario,
    assignments: Assignments = None,
    out: Annotated[Path | None, option(help="File to write; default: SCENARIO-tuned.toml.")] = None,
    trials: Annotated[int, typer.Option(min=1, help="Number of trials for each variant.")] = 12,
    jobs: Jobs = 1,
) -> None:
    """Tune every variant's rates and strengths on validation images, with equal budgets."""
    require_extra("tune")
    from fedcel.files import check_writable
    from sims.bench import scenario as scenarios
    from sims.tuning import tune as tuning
    from sims.tuning.search import journal_path

    plan = scenarios.read_scenario(scenario)
    path = out or Path(f"{plan.path.stem}-tuned.toml")
    check_writable(path, journal_path(path))
    overrides = parse_overrides(assignments)
    with explain_interruption(partial(explain_repeat, "finished trials", context.obj)):
        tuned = tuning.tune_scenario(plan, trials, overrides, journal_path(path), jobs=jobs)
        tuning.write_scenario(tuned, path)
    print(f"scenario: {path}")
