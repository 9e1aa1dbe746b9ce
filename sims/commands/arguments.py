"""What the command line takes: commands, their arguments, their help."""

import argparse
import math
from pathlib import Path

from sims.commands import service


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = argparse.ArgumentParser(
        prog="fedcel",
        description="Train split networks federatedly, then measure what they leak.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _of_training(commands)
    _of_runs(commands)
    _of_benches(commands)
    sent = commands.add_parser("export", help="write a run's encoder as ONNX, for devices")
    sent.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run")
    sent.add_argument("--out", type=Path, required=True, help="file to write")
    service.register(commands)
    listed = commands.add_parser("settings", help="list every setting")
    listed.add_argument("--json", action="store_true", help="as JSON")
    return top


def _of_training(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add what trains."""
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
    sure = commands.add_parser("uncertainty", help="compare posteriors, points and ensembles")
    _scenario(sure)
    sure.add_argument("--out", type=Path, required=True, help="folder of the runs")
    sure.add_argument("--jobs", type=positive, default=1, help="federations trained at once")
    sure.add_argument("--against", metavar="NAME", help="differences to this variant, too")
    sure.add_argument("--outside", default="none", help="data.source of strangers' images")
    sure.add_argument("--outside-path", default="none", help="data.path of strangers' images")


def _of_runs(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add what looks at a finished run."""
    hit = commands.add_parser("attack", help="attack a finished run, or the service of one")
    hit.add_argument("run", type=Path, metavar="RUN", help="folder of a run")
    hit.add_argument("--url", help="of its live service; FEDCEL_KEY in the environment is the key")
    hit.add_argument("--authority", type=Path, help="PEM file that signed its certificate")
    _set(hit)
    drawn = commands.add_parser("report", help="draw the report of a run or bench again")
    drawn.add_argument("folder", type=Path, metavar="RUN_OR_BENCH")


def _of_benches(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add what compares a bench's variants."""
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
