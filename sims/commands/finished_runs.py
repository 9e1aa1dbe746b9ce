"""Commands about what is trained: attack, report, table, escalate, export."""

import os
from pathlib import Path
from typing import Annotated

import typer

from fedcel.errors import SettingsError
from fedcel.extras import require_extra
from sims.commands.interruption import explain_interruption, repeat_hint
from sims.commands.options import (
    Against,
    Assignments,
    BenchFolder,
    Jobs,
    MarkdownFile,
    RunFolder,
    parse_positive_numbers,
)
from sims.overrides import override_group, parse_overrides


def attack_command(
    run: RunFolder,
    assignments: Assignments = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="Attack the run's live service at this address; the environment variable "
            "FEDCEL_KEY holds the key.",
            show_default=False,
        ),
    ] = None,
    authority: Annotated[
        Path | None,
        typer.Option(help="PEM file of who signed the service's certificate.", show_default=False),
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
        print(report.format_attack_rows(attack_run(run, settings.attack)))
        print(report.format_summary(run))
    print(f"report: {report.write_report(run)}")


def report_command(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_BENCH", help="Folder of a finished run or bench.", show_default=False
        ),
    ],
) -> None:
    """Draw the report of a run or a bench again."""
    require_extra("report")
    from sims.report import write_report

    print(f"report: {write_report(folder)}")


def table_command(
    folder: BenchFolder,
    against: Against = None,
    loss: Annotated[str, typer.Option(help="Points of accuracy given up.")] = "0,2,5",
    out: MarkdownFile = None,
) -> None:
    """Compare a bench's variants at matched accuracy."""
    require_extra("report")
    from fedcel.files import check_writable
    from sims.progress import show_steps
    from sims.report import matched_table

    check_writable(*filter(None, [out]))
    with show_steps("comparing the variants"):
        text = matched_table.make_matched_tables(folder, loss, against)
    write_or_print(text, out)


def escalate_command(
    context: typer.Context,
    folder: BenchFolder,
    assignments: Assignments = None,
    loss: Annotated[float, typer.Option(help="Points of accuracy given up.")] = 2,
    budgets: Annotated[
        str,
        typer.Option(
            help="Budgets at which the worst attack is run once more, such as 4,10.",
            show_default=False,
        ),
    ] = "",
    all_strengths: Annotated[
        bool, typer.Option("--every", help="Attack all strengths, for the table's curves.")
    ] = False,
    jobs: Jobs = 1,
    out: MarkdownFile = None,
) -> None:
    """Run stronger attacks on a bench's variants at matched accuracy."""
    require_extra("simulation")
    from fedcel.files import check_writable
    from sims.bench.escalate import escalate
    from sims.report import write_report

    check_writable(*filter(None, [out]))
    overrides, efforts = parse_overrides(assignments), parse_positive_numbers("--budgets", budgets)
    with explain_interruption(repeat_hint("attacked cells", context.obj)):
        text = escalate(folder, overrides, loss, efforts, jobs=jobs, all_strengths=all_strengths)
    write_or_print(text, out)
    print(f"report: {write_report(folder)}")


def export_command(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="File to write.", show_default=False)],
) -> None:
    """Write a run's encoder as ONNX, for devices without torch."""
    require_extra("export")
    from fedcel.files import check_writable
    from sims.commands.onnx_export import export_encoder
    from sims.progress import show_steps

    check_writable(out)
    with show_steps("converting the encoder"):
        text = export_encoder(run, out)
    print(text)


def write_or_print(text: str, out: Path | None) -> None:
    """Print a table, or write it to a file and say where."""
    from fedcel.files import write_whole

    if out is None:
        print(text, end="")
        return
    write_whole(out, text)
    print(f"table: {out}")
