"""The command `simulate`: train one federation."""

import shlex
from functools import partial
from typing import Annotated

import typer

from fedcel.errors import SettingsError
from fedcel.extras import require_extra
from sims.commands.interruption import explain_interruption, explain_resume
from sims.commands.options import (
    Assignments,
    EngineChoice,
    OutFolder,
    Scenario,
    choose_folder,
    option,
)
from sims.overrides import parse_overrides

EXAMPLES = (
    "fedcel simulate digits --engine local",
    "fedcel simulate digits --engine local --track tensorboard",
    "fedcel simulate digits --variant cluster --set cel.weight=1",
    "fedcel simulate runs/old/settings.toml --out runs/again",
)


def simulate_command(
    context: typer.Context,
    scenario: Scenario,
    assignments: Assignments = None,
    out: OutFolder = None,
    engine: EngineChoice = None,
    variant: Annotated[
        str | None,
        option(
            help="A variant of the scenario, at its first strength; default: only its common "
            "settings."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    trackers: Annotated[
        list[str] | None,
        option(
            "--track",
            metavar="NAME",
            help="Log the run to tensorboard, mlflow, wandb, or your own 'package.module:object'; "
            "repeat for more.",
        ),
    ] = None,
) -> None:
    """Train one federation into a run folder, measure what it leaks, draw its report."""
    require_extra("simulation")
    if resume and out is None:
        raise SettingsError("--resume needs --out: the folder of the run to go on with")
    folder, arguments = choose_folder(context, scenario, out)
    from sims import report
    from sims.bench import scenario as scenarios
    from sims.engines.simulate import simulate
    from sims.tracking import load_trackers, track_run

    factories = load_trackers(trackers or ())
    plan = scenarios.read_scenario(scenario)
    variants = {candidate.name: candidate for candidate in plan.variants}
    if variant and variant not in variants:
        raise SettingsError(f"no variant {variant!r}; there are {', '.join(variants)}")
    chosen = variants[variant] if variant else scenarios.make_plain_variant("run")
    single = plan._replace(variants=[chosen], seeds=plan.seeds[:1])
    overrides = parse_overrides(assignments, engine)
    settings = scenarios.list_cells(single, overrides)[0].settings
    hint = partial(explain_resume, folder, arguments, is_resumed=resume)
    with explain_interruption(hint):
        with track_run(factories, folder, settings) as listen:
            simulate(settings, folder, resume=resume, listen=listen)
        page = report.write_report(folder)
    print(report.format_summary(folder))
    print(f"run: {folder}\nreport: {page}")
    print(f"pictures of what attackers rebuild: {shlex.join(['fedcel', 'attack', str(folder)])}")
