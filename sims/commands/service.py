"""The commands `serve` and `ledger`: options in, one line out."""

import argparse
from pathlib import Path
from typing import Any

from fedcel.errors import SettingsError
from sims.commands.overrides import overrides


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add both commands to the parser."""
    _service(commands.add_parser("serve", help="answer split inference over HTTP, privately"))
    book = commands.add_parser("ledger", help="budgets and keys of a service")
    _actions(book.add_subparsers(dest="action", required=True, metavar="ACTION"))


def _service(one: argparse.ArgumentParser) -> None:
    one.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run")
    one.add_argument(
        "--ledger", type=Path, help="file of budgets, made if missing; default: RUN/budget.db"
    )
    one.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a setting of the group privacy, for this service alone",
    )
    one.add_argument("--host", default="127.0.0.1", help="address to listen on; default: 127.0.0.1")
    one.add_argument("--port", type=int, default=8443, help="0 takes a free one; default: 8443")
    one.add_argument("--certificate", type=Path, help="PEM file, with its chain")
    one.add_argument("--private-key", type=Path, help="PEM file of the certificate's key")
    one.add_argument("--insecure", action="store_true", help="plain HTTP beyond this machine")
    one.add_argument("--queue", type=count, default=256, help="questions that wait; default: 256")
    one.add_argument(
        "--rate-limit", type=rate, default=50.0, help="questions a second of a client; default: 50"
    )


def _actions(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    _ledger(actions.add_parser("list", help="what each client has left, and the keys"))
    more = _ledger(actions.add_parser("top-up", help="grant a client more epsilon"))
    more.add_argument("--client", required=True, help="name of the client")
    more.add_argument("--epsilon", type=float, required=True, help="what to add")
    most = _ledger(actions.add_parser("limit", help="set what all may spend on a model version"))
    most.add_argument("--model", required=True, metavar="VERSION", help="as `serve` prints it")
    most.add_argument("--epsilon", type=float, required=True, help="in all; 0: nothing more")
    out = _ledger(actions.add_parser("export", help="write the log as JSON lines"))
    out.add_argument("--out", type=Path, required=True, help="file to write")
    _ledger(actions.add_parser("verify", help="recompute every balance and link of the log"))
    keys = _ledger(
        actions.add_parser("keys", help="make a client's key, shown once; or revoke one")
    )
    which = keys.add_mutually_exclusive_group(required=True)
    which.add_argument("--client", help="make a key for this client, new or known")
    which.add_argument("--revoke", metavar="ID", help="forget the key with this id")
    keys.add_argument("--days", type=float, help="until the key expires; default: never")
    keys.add_argument("--epsilon", type=float, help="granted to a new client; default: 100")


def _ledger(command: argparse.ArgumentParser) -> argparse.ArgumentParser:
    command.add_argument("ledger", type=Path, metavar="LEDGER", help="file of budgets")
    return command


def count(text: str) -> int:
    """Return an int of at least 1; argparse reports the others."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} must be at least 1")
    return value


def rate(text: str) -> float:
    """Return a number above 0; argparse reports the others."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be above 0")
    return value


def run_serve(options: argparse.Namespace) -> None:
    """Serve until told to end."""
    from clients.service.state import Limits
    from sims.commands.serve import Place, serve

    limits = Limits(queue=options.queue, rate=options.rate_limit)
    secrets = options.certificate, options.private_key
    place = Place(options.host, options.port, *secrets, options.insecure)
    ledger = options.ledger or options.run / "budget.db"
    serve(options.run, ledger, place, limits, overrides(options))


def check_revoke(options: argparse.Namespace) -> None:
    """Refuse what a key that is forgotten has no use for: SettingsError."""
    if getattr(options, "revoke", None) is None:
        return
    for name in ("days", "epsilon"):
        value = getattr(options, name)
        if value is not None:
            raise SettingsError(
                f"--{name} is {value:g}, but --revoke makes no key that it could be for; leave it "
                "out, or make a key with --client"
            )


def run_ledger(options: argparse.Namespace) -> None:
    """Do one thing with a ledger and say what was done."""
    from sims.commands import ledger

    o, path = options, options.ledger
    actions: dict[str, Any] = {
        "list": lambda: ledger.listed(path),
        "top-up": lambda: ledger.top_up(path, o.client, o.epsilon),
        "limit": lambda: ledger.limited(path, o.model, o.epsilon),
        "export": lambda: ledger.exported(path, o.out),
        "verify": lambda: ledger.verified(path),
        "keys": lambda: (
            ledger.new_key(path, o.client, o.days, o.epsilon)
            if o.revoke is None
            else ledger.revoked(path, o.revoke)
        ),
    }
    check_revoke(options)
    print(actions[o.action]())
