"""The command line: its commands in groups, its errors in a line, its exit codes."""

import os
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import click
import typer
from rich.markup import escape

from fedcel.errors import FailedError, FedcelError
from fedcel.extras import missing_extra_error
from sims.commands import finished_runs, list_settings, serving, training
from sims.commands.interruption import CommandInterrupted
from sims.commands.options import format_examples, list_scenario_titles

INTERRUPTED = 130  # a shell's status of a command that SIGINT ended

app = typer.Typer(
    name="fedcel",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(is_asked: bool) -> None:
    """Print the version and end."""
    if is_asked:
        print(f"fedcel {version('fedcel')}")
        raise typer.Exit


@app.callback()
def fedcel(
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=show_version, is_eager=True),
    ] = False,
) -> None:
    """Train split networks federatedly, then measure what they leak."""


def list_scenarios() -> str:
    """Return the packaged scenarios as the end of a command's help."""
    titles = "\n\n".join(
        f"[cyan]{name}[/cyan]: {escape(title)}" for name, title in list_scenario_titles().items()
    )
    return f"[bold]Packaged scenarios[/bold]\n\n{titles}"


def add_commands() -> None:
    """Register every command under its group, with examples below its help."""
    train, look, serve = "Train", "Attack, compare, export", "Serve"
    scenarios = list_scenarios()
    app.command(
        rich_help_panel=train,
        epilog=format_examples(
            "fedcel simulate digits --engine loop",
            "fedcel simulate digits --variant cluster --set cel.weight=1",
            "fedcel simulate runs/old/settings.toml --out runs/again",
        )
        + f"\n\n \n\n{scenarios}",
    )(training.simulate)
    app.command(
        rich_help_panel=train,
        epilog=format_examples(
            "fedcel bench digits --out runs/demo", "fedcel bench defences --engine loop --jobs 2"
        )
        + f"\n\n \n\n{scenarios}",
    )(training.bench)
    app.command(rich_help_panel=train, epilog=format_examples("fedcel tune digits --trials 20"))(
        training.tune
    )
    app.command(
        rich_help_panel=train,
        epilog=format_examples("fedcel uncertainty uncertainty --out runs/doubt"),
    )(training.uncertainty)
    app.command(
        rich_help_panel=look,
        epilog=format_examples(
            "fedcel attack RUN --set attack.names=decoder --set attack.budget=4",
            "FEDCEL_KEY=... fedcel attack RUN --url https://answers.example:8443",
        ),
    )(finished_runs.attack)
    app.command(rich_help_panel=look, epilog=format_examples("fedcel report RUN"))(
        finished_runs.report
    )
    app.command(rich_help_panel=look, epilog=format_examples("fedcel table BENCH --loss 0,2"))(
        finished_runs.table
    )
    app.command(
        rich_help_panel=look, epilog=format_examples("fedcel escalate BENCH --budgets 4,10")
    )(finished_runs.escalate)
    app.command(
        rich_help_panel=look, epilog=format_examples("fedcel export RUN --out encoder.onnx")
    )(finished_runs.export)
    app.command(
        rich_help_panel=serve,
        epilog=format_examples(
            "fedcel serve RUN",
            "fedcel serve RUN --host 0.0.0.0 --certificate chain.pem --private-key key.pem",
        ),
    )(serving.serve)
    app.add_typer(serving.ledger, name="ledger", rich_help_panel=serve)
    app.command(
        rich_help_panel="Reference",
        epilog=format_examples("fedcel settings", "fedcel settings cel", "fedcel settings --json"),
    )(list_settings.settings)


add_commands()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 done, 1 the run failed, 2 the input is wrong, 130 interrupted.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    sys.path.insert(0, os.getcwd())  # a user's own parts may lie beside the scenario
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
    try:
        return int(app(given, prog_name="fedcel", obj=given, standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError:  # the help is printed
        return 2
    except click.UsageError as error:
        tail = f"; see `{error.ctx.command_path} --help`" if error.ctx else ""
        return report_error(error.format_message().rstrip(".") + tail, 2)
    except FedcelError as error:
        return report_error(str(error), 1 if isinstance(error, FailedError) else 2)
    except ModuleNotFoundError as error:
        missing = missing_extra_error(error.name or "")
        if missing is None:
            raise
        return report_error(str(missing), 2)
    except CommandInterrupted as interruption:
        return report_error(f"interrupted{interruption}", INTERRUPTED)
    except (KeyboardInterrupt, click.Abort):
        return report_error("interrupted", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # a folder that cannot be written, a full disk
        return report_error(str(error), 2)


def report_error(message: str, status: int) -> int:
    """Print one message to stderr and return the exit status."""
    print(f"fedcel: {message}", file=sys.stderr)
    return status
