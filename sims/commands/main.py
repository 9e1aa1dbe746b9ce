"""The command line: from a simulation to its report, table and service."""

import argparse
import json
import os
import shlex
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from fedcel.errors import FailedError, FedcelError, SettingsError
from fedcel.settings.parsing import describe
from sims.commands import service
from sims.commands.arguments import parser
from sims.commands.overrides import changed, overrides

INTERRUPTED = 130  # a shell's status of a command that SIGINT ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser().parse_args(given)
    if options.command in ("simulate", "bench") and options.out is None:
        options.out = default_folder(Path(options.scenario).stem)
        given += ["--out", str(options.out)]
    sys.path.insert(0, os.getcwd())  # a user's own parts may lie beside the scenario
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
    try:
        COMMANDS[options.command](options)
    except FedcelError as error:
        print(f"fedcel: {error}", file=sys.stderr)
        return 1 if isinstance(error, FailedError) else 2
    except KeyboardInterrupt:
        print(f"fedcel: interrupted{going_on(options, given)}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # a folder that cannot be written, a full disk
        print(f"fedcel: {error}", file=sys.stderr)
        return 2
    return 0


def default_folder(name: str) -> Path:
    """Return a new folder's path for a run that was given none."""
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def going_on(options: argparse.Namespace, given: list[str]) -> str:
    """Return what is saved of an interrupted command, and the command that goes on with it."""
    if options.command == "bench":
        again = shlex.join(["fedcel", *given])
        return f"; finished cells and complete rounds are saved, the same command again: {again}"
    kept = {"tune": "finished trials", "escalate": "attacked cells"}.get(options.command)
    if kept:
        return f"; {kept} are kept, the same command again: {shlex.join(['fedcel', *given])}"
    if options.command != "simulate" or not (options.out / "settings.toml").exists():
        return ""
    if (options.out / "result.json").exists():
        return f"; the run is finished: {shlex.join(['fedcel', 'report', str(options.out)])}"
    resume = [] if options.resume else ["--resume"]
    return f"; complete rounds are saved, go on: {shlex.join(['fedcel', *given, *resume])}"


def _simulate(options: argparse.Namespace) -> None:
    from sims import report
    from sims.bench import scenario
    from sims.engines.simulate import simulate

    plan = scenario.read(options.scenario)
    named = {variant.name: variant for variant in plan.variants}
    if options.variant and options.variant not in named:
        raise SettingsError(f"no variant {options.variant!r}; there are {', '.join(named)}")
    chosen = named[options.variant] if options.variant else scenario.plain("run")
    first = plan._replace(variants=[chosen], seeds=plan.seeds[:1])
    cell = scenario.cells(first, overrides(options))[0]
    simulate(cell.settings, options.out, resume=options.resume)
    page = report.write(options.out)
    print(report.table(options.out))
    print(f"run: {options.out}\nreport: {page}")


def _bench(options: argparse.Namespace) -> None:
    from sims import report
    from sims.bench import scenario
    from sims.bench.run import bench

    plan, rest = scenario.reseeded(scenario.read(options.scenario), overrides(options))
    page = bench(plan, scenario.cells(plan, rest), options.out, options.jobs)
    print(report.table(options.out))
    print(f"report: {page}")


def _tune(options: argparse.Namespace) -> None:
    from fedcel.files import writable
    from sims.bench import scenario
    from sims.tuning.trials import store_of
    from sims.tuning.tune import tune, write

    plan = scenario.read(options.scenario)
    out = options.out or Path(f"{plan.path.stem}-tuned.toml")
    writable(out, store_of(out))
    write(tune(plan, options.trials, overrides(options), store_of(out), options.jobs), out)
    print(f"scenario: {out}")


def _attack(options: argparse.Namespace) -> None:
    from fedcel.runs import run_folder
    from sims import report
    from sims.attacking.attack_run import attack

    settings = changed(run_folder.read_settings(options.run), overrides(options), "attack")
    if options.authority and not options.url:
        raise SettingsError(f"--authority {options.authority} is of a service; give its --url, too")
    if options.url:
        from sims.attacking import live_service

        place = live_service.Place(options.url, os.environ.get("FEDCEL_KEY", ""), options.authority)
        live_service.attack(options.run, place, settings.attack)
        print(report.answers(options.run))
    else:
        print(report.found(attack(options.run, settings.attack)))
        print(report.table(options.run))
    print(f"report: {report.write(options.run)}")


def _report(options: argparse.Namespace) -> None:
    from sims import report

    print(f"report: {report.write(options.folder)}")


def _table(options: argparse.Namespace) -> None:
    from fedcel.files import writable
    from sims.report.matched_table import table

    writable(*filter(None, [options.out]))
    _printed(table(options.folder, options.loss, options.against), options.out)


def _escalate(options: argparse.Namespace) -> None:
    from fedcel.files import writable
    from sims import report
    from sims.bench.escalate import escalate

    writable(*filter(None, [options.out]))
    given = overrides(options)
    how = options.loss, options.budgets, options.jobs, options.every
    text = escalate(options.folder, given, *how)
    _printed(text, options.out)
    print(f"report: {report.write(options.folder)}")


def _printed(text: str, out: Path | None) -> None:
    from fedcel.files import write_whole

    if out is None:
        print(text, end="")
        return
    write_whole(out, text)
    print(f"table: {out}")


def _uncertainty(options: argparse.Namespace) -> None:
    from sims.bench.uncertainty import calibrate

    others = options.outside, options.outside_path, options.against
    given = overrides(options)
    print(calibrate(options.scenario, options.out, options.jobs, given, *others), end="")


def _export(options: argparse.Namespace) -> None:
    from sims.commands.export import export

    print(export(options.run, options.out))


def _settings(options: argparse.Namespace) -> None:
    rows = [
        {"key": key, "default": default, "type": kind, "description": text}
        for key, default, text, kind in describe()
    ]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    width = max(len(str(row["key"])) for row in rows)
    for row in rows:
        print(f"{row['key']:<{width}}  {row['default']!s:<10}  {row['description']}")
        print(f"{'':<{width}}  {row['type']}")


COMMANDS = {
    "simulate": _simulate,
    "bench": _bench,
    "tune": _tune,
    "attack": _attack,
    "report": _report,
    "table": _table,
    "escalate": _escalate,
    "uncertainty": _uncertainty,
    "export": _export,
    "serve": service.run_serve,
    "ledger": service.run_ledger,
    "settings": _settings,
}
