"""The command line: from a simulation to its report, table and service."""

import argparse
import json
import math
import os
import shlex
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from fedcel.errors import FailedError, FedcelError, SettingsError
from fedcel.settings import describe
from sims import service_cli
from sims.overrides import changed, overrides

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
    if options.command == "tune":
        return (
            f"; finished trials are kept, the same command again: {shlex.join(['fedcel', *given])}"
        )
    if options.command != "simulate" or not (options.out / "settings.toml").exists():
        return ""
    if (options.out / "result.json").exists():
        return f"; the run is finished: {shlex.join(['fedcel', 'report', str(options.out)])}"
    resume = [] if options.resume else ["--resume"]
    return f"; complete rounds are saved, go on: {shlex.join(['fedcel', *given, *resume])}"


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = argparse.ArgumentParser(
        prog="fedcel",
        description="Train split networks federatedly, then measure what they leak.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    one = commands.add_parser("simulate", help="train one federation into a run folder")
    _scenario(one)
    _run(one)
    one.add_argument("--variant", help="a variant of the scenario; default: its [settings] alone")
    one.add_argument("--resume", action="store_true", help="go on with the run in --out")
    many = commands.add_parser("bench", help="train and attack every variant of a scenario")
    _scenario(many)
    _run(many)
    many.add_argument("--jobs", type=positive, default=1, help="processes, for the loop engine")
    best = commands.add_parser("tune", help="choose every variant's settings on validation images")
    _scenario(best)
    best.add_argument("--out", type=Path, help="file to write; default: <name>-tuned.toml")
    best.add_argument("--trials", type=positive, default=12, help="federations trained per variant")
    best.add_argument("--jobs", type=positive, default=1, help="variants searched at once")
    hit = commands.add_parser("attack", help="attack a finished run, or the service of one")
    hit.add_argument("run", type=Path, metavar="RUN", help="folder of a run")
    hit.add_argument("--url", help="of its live service; FEDCEL_KEY in the environment is the key")
    hit.add_argument("--authority", type=Path, help="PEM file that signed its certificate")
    _set(hit)
    drawn = commands.add_parser("report", help="draw the report of a run or bench again")
    drawn.add_argument("folder", type=Path, metavar="RUN_OR_BENCH")
    compared = commands.add_parser("table", help="compare a bench's variants at matched accuracy")
    compared.add_argument("folder", type=Path, metavar="BENCH", help="folder of a bench")
    compared.add_argument("--against", metavar="NAME", help="differences to this variant, too")
    compared.add_argument(
        "--loss", default="0,2,5", help="points of accuracy given up; default: 0,2,5"
    )
    compared.add_argument("--out", type=Path, help="Markdown file to write; default: print it")
    more = commands.add_parser("escalate", help="attack a bench's variants at matched accuracy")
    more.add_argument("folder", type=Path, metavar="BENCH", help="folder of a bench")
    more.add_argument("--loss", type=float, default=2, help="points of accuracy given up; 2")
    more.add_argument(
        "--budgets", type=budgets, default=(), help="of the worst attack, one seed, as 4,10"
    )
    more.add_argument("--every", action="store_true", help="all strengths, for the table's curves")
    more.add_argument("--jobs", type=positive, default=1, help="runs attacked at once")
    more.add_argument("--out", type=Path, help="Markdown file to write; default: print it")
    _set(more)
    sure = commands.add_parser("uncertainty", help="compare posteriors, points and ensembles")
    _scenario(sure)
    sure.add_argument("--out", type=Path, required=True, help="folder of the runs")
    sure.add_argument("--jobs", type=positive, default=1, help="federations trained at once")
    sure.add_argument("--against", metavar="NAME", help="differences to this variant, too")
    sure.add_argument("--outside", default="none", help="data.source of strangers' images")
    sure.add_argument("--outside-path", default="none", help="data.path of strangers' images")
    sent = commands.add_parser("export", help="write a run's encoder as ONNX, for devices")
    sent.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run")
    sent.add_argument("--out", type=Path, required=True, help="file to write")
    service_cli.register(commands)
    listed = commands.add_parser("settings", help="list every setting")
    listed.add_argument("--json", action="store_true", help="as JSON")
    return top


def _scenario(command: argparse.ArgumentParser) -> None:
    command.add_argument("scenario", metavar="SCENARIO", help="packaged name, or a TOML file")
    _set(command)


def _run(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", type=Path, help="folder to write; default: runs/<name>-<time>")
    command.add_argument(
        "--engine", choices=["ray", "loop", "processes"], help="overrides the setting"
    )


def _set(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting"
    )


def positive(text: str) -> int:
    """Return an int of at least 1; ValueError and ArgumentTypeError are argparse's to report."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} must be at least 1")
    return value


def budgets(text: str) -> tuple[float, ...]:
    """Return the numbers above 0 of '4,10'; ValueError and ArgumentTypeError are argparse's."""
    found = tuple(float(part) for part in text.split(","))
    if not all(0 < one < math.inf for one in found):
        raise argparse.ArgumentTypeError(f"{text!r} must be numbers above 0, as 4,10")
    return found


def _simulate(options: argparse.Namespace) -> None:
    from sims import report, scenario
    from sims.simulate import simulate

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
    from sims import report, scenario
    from sims.bench import bench

    plan, rest = scenario.reseeded(scenario.read(options.scenario), overrides(options))
    page = bench(plan, scenario.cells(plan, rest), options.out, options.jobs)
    print(report.table(options.out))
    print(f"report: {page}")


def _tune(options: argparse.Namespace) -> None:
    from sims import scenario
    from sims.trials import store_of
    from sims.tune import tune, writable, write

    plan = scenario.read(options.scenario)
    out = options.out or Path(f"{plan.path.stem}-tuned.toml")
    writable(out)
    write(tune(plan, options.trials, overrides(options), store_of(out), options.jobs), out)
    print(f"scenario: {out}")


def _attack(options: argparse.Namespace) -> None:
    from fedcel import runs
    from sims import report
    from sims.attack import attack

    settings = changed(runs.read_settings(options.run), overrides(options), "attack")
    if options.authority and not options.url:
        raise SettingsError(f"--authority {options.authority} is of a service; give its --url, too")
    if options.url:
        from sims import live

        place = live.Place(options.url, os.environ.get("FEDCEL_KEY", ""), options.authority)
        live.attack(options.run, place, settings.attack)
        print(report.answers(options.run))
    else:
        attack(options.run, settings.attack)
        print(report.table(options.run))
    print(f"report: {report.write(options.run)}")


def _report(options: argparse.Namespace) -> None:
    from sims import report

    print(f"report: {report.write(options.folder)}")


def _table(options: argparse.Namespace) -> None:
    from sims.table import table

    _printed(table(options.folder, options.loss, options.against), options.out)


def _escalate(options: argparse.Namespace) -> None:
    from sims import report
    from sims.escalate import escalate

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
    from sims.calibration import calibrate

    others = options.outside, options.outside_path, options.against
    given = overrides(options)
    print(calibrate(options.scenario, options.out, options.jobs, given, *others), end="")


def _export(options: argparse.Namespace) -> None:
    from sims.export import export

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
    "serve": service_cli.run_serve,
    "ledger": service_cli.run_ledger,
    "settings": _settings,
}
