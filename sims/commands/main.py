"""The command line: its commands in groups, its errors in a line, its exit codes."""

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from typing import Annotated

import click
import typer
from typer.core import TyperCommand

from fedcel.errors import FedcelError, escape_controls
from fedcel.extras import missing_extra_error
from sims.commands import (
    attack,
    audit,
    bench,
    cuts,
    export,
    play,
    privacy,
    report,
    serve,
    settings,
    simulate,
    table,
    tune,
    watch,
)
from sims.commands.interruption import CommandInterrupted, describe_disk_error, describe_exit
from sims.commands.ledger import ledger_commands
from sims.commands.options import format_examples, format_scenarios
from sims.commands.terminal import print_in_any_encoding
from sims.search_path import append_working_folder

INTERRUPTED = 130  # a shell's status of a command that SIGINT ended

app = typer.Typer(
    name="fedcel",
    no_args_is_help=True,
    suggest_commands=False,  # click does
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


GROUPS: dict[str, dict[str, tuple[Callable[..., None], Sequence[str]]]] = {
    "Train": {
        "simulate": (simulate.simulate_command, simulate.EXAMPLES),
        "bench": (bench.bench_command, bench.EXAMPLES),
        "tune": (tune.tune_command, tune.EXAMPLES),
    },
    "Attack, compare, export": {
        "cuts": (cuts.cuts_command, cuts.EXAMPLES),
        "attack": (attack.attack_command, attack.EXAMPLES),
        "audit": (audit.audit_command, audit.EXAMPLES),
        "report": (report.report_command, report.EXAMPLES),
        "table": (table.table_command, table.EXAMPLES),
        "export": (export.export_command, export.EXAMPLES),
        "watch": (watch.watch_command, watch.EXAMPLES),
    },
    "Serve": {
        "privacy": (privacy.privacy_command, privacy.EXAMPLES),
        "play": (play.play_command, play.EXAMPLES),
        "serve": (serve.serve_command, serve.EXAMPLES),
    },
    "Reference": {"settings": (settings.settings_command, settings.EXAMPLES)},
}
"""Each command, and what its help shows to copy."""


class TrainingCommand(TyperCommand):
    """Command whose help ends with the packaged scenarios, read only where it is shown."""

    _examples: str | None = None

    @property
    def epilog(self) -> str:
        """End of its help."""
        scenarios = format_scenarios("tune" if self.name == "tune" else None)
        return f"{self._examples}\n\n \n\n{scenarios}"

    @epilog.setter
    def epilog(self, examples: str | None) -> None:
        self._examples = examples


def add_commands() -> None:
    """Register every command in its group; its help ends with examples, and with scenarios."""
    for group, commands in GROUPS.items():
        for name, (command, examples) in commands.items():
            app.command(
                name,
                cls=TrainingCommand if group == "Train" else None,
                rich_help_panel=group,
                epilog=format_examples(*examples),
                context_settings={"auto_envvar_prefix": serve.VARIABLES}
                if name == "serve"
                else None,
            )(command)
    app.add_typer(ledger_commands, name="ledger", rich_help_panel="Serve")


add_commands()


def main(
    arguments: Sequence[str] | None = None, app: typer.Typer = app, name: str = "fedcel"
) -> int:
    """Run one command.

    Args:
        arguments: Words after the program's name; None: those of this process.
        app: The command line.
        name: The program's name.

    Returns:
        0 done, 1 the run failed, 2 the input is wrong, 130 interrupted; of `cuts` 1 no cut meets
        the limits, 3 it failed.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    print_in_any_encoding()
    append_working_folder()  # a user's own parts may lie beside the scenario
    print_once = cache(print_error)  # settings are read more than once
    warnings.showwarning = lambda message, *_, **__: print_once(f"warning: {message}")
    try:
        status = int(app(words, prog_name=name, obj=words, standalone_mode=False) or 0)
        sys.stdout.flush()  # a reader that has gone, a full disk: told here, not at the very end
        return status
    except click.exceptions.NoArgsIsHelpError:  # the help is printed
        return 2
    except click.UsageError as error:
        see = f"; see `{error.ctx.command_path} --help`" if error.ctx else ""
        return report_error(error.format_message().rstrip(".") + see, 2)
    except FedcelError as error:
        return report_error(str(error), error.status)
    except ModuleNotFoundError as error:
        missing = missing_extra_error(error.name or "")
        if missing is None:
            raise
        return report_error(str(missing), 2)
    except CommandInterrupted as interruption:
        return report_error(f"interrupted{interruption}", INTERRUPTED)
    except (KeyboardInterrupt, click.Abort):
        return report_error("interrupted", INTERRUPTED)
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich ends a process for `| head`
            return 1
        return report_error(describe_exit(error), 1)
    except BrokenPipeError:
        discard_output()
        return 1
    except OSError as error:  # a folder that cannot be written, a full disk
        try:
            sys.stdout.flush()
        except OSError:
            discard_output()
        return report_error(describe_disk_error(error), 2)


def discard_output() -> None:
    """Write what is still to be printed to nowhere: the interpreter would fail at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report_error(message: str, status: int) -> int:
    """Print one message to stderr and return the exit status."""
    print_error(f"fedcel: {message}")
    return status


def print_error(text: str) -> None:
    """Print a text to stderr; names and errors in it may be anybody's."""
    print(escape_controls(text), file=sys.stderr)
