"""Commands that train: simulate, bench, tune, uncertainty."""

import time
from pathlib import Path
from typing import Annotated

import typer

from fedcel.errors import SettingsError
from fedcel.extras import require_extra
from sims.commands.interruption import explain_interruption, repeat_hint, resume_hint
from sims.commands.options import (
    Against,
    Assignments,
    EngineChoice,
    Jobs,
    OutFolder,
    Scenario,
    check_folder,
)
from sims.overrides import parse_overrides


def simulate_command(
    context: typer.Context,
    scenario: Scenario,
    assignments: Assignments = None,
    out: OutFolder = None,
    engine: EngineChoice = None,
    variant: Annotated[
        str | None,
        typer.Option(
            help="A variant of the scenario; default: its own settings alone.", show_default=False
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
) -> None:
    """Train one federation into a run folder, measure what it leaks, draw its report."""
    require_extra("simulation")
    from sims import report
    from sims.bench import scenario as scenarios
    from sims.engines.simulate import simulate

    if resume and out is None:
        raise SettingsError("--resume needs --out: the folder of the run to go on with")
    folder, arguments = choose_folder(context, scenario, out)
    plan = scenarios.read_scenario(scenario)
    variants = {candidate.name: candidate for candidate in plan.variants}
    if variant and variant not in variants:
        raise SettingsError(f"no variant {variant!r}; there are {', '.join(variants)}")
    chosen = variants[variant] if variant else scenarios.make_plain_variant("run")
    single = plan._replace(variants=[chosen], seeds=plan.seeds[:1])
    cell = scenarios.list_cells(single, parse_overrides(assignments, engine))[0]
    with explain_interruption(resume_hint(folder, arguments, is_resumed=resume)):
        simulate(cell.settings, folder, resume=resume)
        page = report.write_report(folder)
    print(report.format_summary(folder))
    print(f"run: {folder}\nreport: {page}")


def bench_command(
    context: typer.Context,
    scenario: Scenario,
    assignments: Assignments = None,
    out: OutFolder = None,
    engine: EngineChoice = None,
    jobs: Jobs = 1,
) -> None:
    """Train and attack every variant, strength and seed of a scenario; goes on where it stopped."""
    require_extra("simulation")
    from sims import report
    from sims.bench import scenario as scenarios
    from sims.bench.run_bench import run_bench

    folder, arguments = choose_folder(context, scenario, out)
    plan, overrides = scenarios.override_seeds(
        scenarios.read_scenario(scenario), parse_overrides(assignments, engine)
    )
    cells = scenarios.list_cells(plan, overrides)
    with explain_interruption(repeat_hint("finished cells and complete rounds", arguments)):
        page = run_bench(plan, cells, folder, jobs)
    print(report.format_summary(folder))
    print(f"report: {page}")


def tune_command(
    context: typer.Context,
    scenario: Scenario,
    assignments: Assignments = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write; default: SCENARIO-tuned.toml.", show_default=False),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Federations trained for each variant.")] = 12,
    jobs: Jobs = 1,
) -> None:
    """Choose every variant's rates and strengths on validation images, with equal budgets."""
    require_extra("tune")
    from fedcel.files import check_writable
    from sims.bench import scenario as scenarios
    from sims.tuning import tune as tuning
    from sims.tuning.trial_journal import journal_path

    plan = scenarios.read_scenario(scenario)
    path = out or Path(f"{plan.path.stem}-tuned.toml")
    check_writable(path, journal_path(path))
    overrides = parse_overrides(assignments)
    with explain_interruption(repeat_hint("finished trials", context.obj)):
        tuned = tuning.tune_scenario(plan, trials, overrides, journal_path(path), jobs=jobs)
        tuning.write_scenario(tuned, path)
    print(f"scenario: {path}")


def uncertainty_command(
    scenario: Scenario,
    out: Annotated[Path, typer.Option(help="Folder of the runs.", show_default=False)],
    assignments: Assignments = None,
    jobs: Jobs = 1,
    against: Against = None,
    outside: Annotated[str, typer.Option(help="`data.source` of strangers' images.")] = "none",
    outside_path: Annotated[str, typer.Option(help="`data.path` of strangers' images.")] = "none",
) -> None:
    """Compare posteriors, points and ensembles: calibration, and doubt about strangers' images."""
    require_extra("simulation")
    from sims.bench.uncertainty import compare_calibration

    check_folder(out)
    text = compare_calibration(
        scenario,
        out,
        jobs=jobs,
        overrides=parse_overrides(assignments),
        outside=outside,
        outside_path=outside_path,
        against=against,
    )
    print(text, end="")


def choose_folder(
    context: typer.Context, scenario: str, out: Path | None
) -> tuple[Path, list[str]]:
    """Return the folder to write, and the command's arguments with that folder named."""
    if out is not None:
        check_folder(out)
        return out, context.obj
    folder = Path("runs") / f"{Path(scenario).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    return folder, [*context.obj, "--out", str(folder)]
