"""The command `attack`: attack a finished run, or its live service."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedcel.errors import FailedError, SettingsError
from fedcel.extras import require_extra
from sims.commands.interruption import explain_interruption, explain_lacking
from sims.commands.options import Assignments, RunFolder, option
from sims.overrides import override_group, parse_overrides

if TYPE_CHECKING:
    from fedcel.attacks import AttackRow

EXAMPLES = (
    "fedcel attack RUN --set attack.names=decoder --set attack.budget=4",
    "FEDCEL_KEY=... fedcel attack RUN --url URL --set attack.names=logit-inversion",
)


def attack_command(
    context: typer.Context,
    run: RunFolder,
    assignments: Assignments = None,
    url: Annotated[
        str | None,
        option(
            help="Attack the run's live service at this address; the environment variable "
            "FEDCEL_KEY holds the key."
        ),
    ] = None,
    authority: Annotated[
        Path | None, option(help="PEM file of the authority of the service's certificate.")
    ] = None,
) -> None:
    """Attack a finished run, or the service of one, and add to its report."""
    require_extra("simulation")
    from fedcel.runs import run_folder
    from sims import report
    from sims.attacking import attack_run

    settings = override_group(run_folder.read_settings(run), parse_overrides(assignments), "attack")
    if authority and not url:
        raise SettingsError(
            f"--authority is {authority}, the certificate of a service; give its --url, too"
        )
    if url:
        from sims.attacking import live_service

        place = live_service.ServiceAddress(url, os.environ.get("FEDCEL_KEY", ""), authority)
        live_service.attack_service(run, place, settings.attack)
        print(report.format_live_table(run))
    else:
        with explain_interruption(partial(explain_lacking, run, settings.attack, context.obj)):
            rows = attack_run(run, settings.attack)
        print(report.format_attack_rows(rows))
        print(report.format_summary(run))
    print(f"report: {report.write_report(run)}")
    if not url:
        refuse_failures(rows)


def refuse_failures(rows: Sequence["AttackRow"]) -> None:
    """Raise FailedError where an attack failed: that it found nothing is no sign of privacy."""
    from sims.results.attack_results import list_failures

    if failed := list_failures(rows):
        raise FailedError(
            f"{', '.join(failed)} failed, the reasons are above; that nothing was found by it says "
            "nothing about the run"
        )
