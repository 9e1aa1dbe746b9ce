"""Rules between the groups of a run's settings; a rule within a group stands in its class."""

from collections.abc import Iterator
from functools import partial
from operator import attrgetter
from typing import NamedTuple
from warnings import warn

from fedcel.errors import SettingsError
from fedcel.nets import OwnNet
from fedcel.settings.run_settings import Settings, burn_in_rounds


def check_settings(settings: Settings) -> None:
    """Refuse contradictory settings with SettingsError; warn about unwise ones."""
    cel, defence, net = settings.cel, settings.defence, settings.net
    rounds, burn_in, sigma = settings.rounds, burn_in_rounds(settings), defence.find_sigma(net)
    if cel.kind != "none":
        cel.check_rounds(rounds, burn_in, loss=f"cel.kind is {cel.kind!r}")
        cel.check_noise(sigma)
    if defence.has_loss:
        cel.check_rounds(rounds, burn_in, loss=f"defence.name is {defence.name!r}")
    for conflict in _find_requirement_conflicts(settings):
        raise SettingsError(conflict)
    if cel.kind != "none":
        cel.check_net(net)
    defence.check_net(net)
    for conflict in _find_round_conflicts(settings):
        raise SettingsError(conflict)
    settings.chain.check_rounds(rounds, settings.temperature)
    if cel.kind != "none" and sigma == 0:
        warn(
            "net.noise is 0: without noise every image leaks completely, however small the "
            "spread is",
            stacklevel=3,  # of who parses the settings
        )
    if settings.local.augment != "none" and settings.samples_whole_net:
        warn(
            "local.augment and chain.scope 'full' above temperature 0: the chain samples the "
            "posterior given augmented images",
            stacklevel=3,
        )


class Requirement(NamedTuple):
    """Values of a key that another setting asks for."""

    asking: str
    key: str
    allowed: tuple[object, ...]
    reason: str
    remedy: str = ""


def _list_requirements(settings: Settings) -> Iterator[Requirement]:
    """List what one setting of the rounds asks of others."""
    strategy, update, temperature = settings.strategy, settings.update, settings.temperature
    if strategy.upload == "weights":  # averaged by a server as Flower's own are
        ask = partial(Requirement, "strategy.upload 'weights'")
        yield ask("temperature", (0,), "the server then does not send a client its weight")
        scope = "averaging weights changes a frozen encoder by rounding"
        yield ask("chain.scope", ("full",), scope)
        total = "the server then does not send the total number of examples"
        yield ask("prior.mode", ("consistent", "none"), total)
        yield ask("prior.scale", ("none",), total)
        yield ask("update.clip", ("none",), "only deltas are clipped")
        arguments = (
            "a Flower strategy takes it in strategy.arguments, such as 'server_momentum=0.9'"
        )
        yield ask("strategy.momentum", (0,), arguments)
        yield ask("strategy.gain", (1,), arguments)
        yield ask("strategy.aggregation", ("mean",), arguments)
        yield ask("cel.target", ("none",), "the server then sends no threshold and no weight")
    if strategy.aggregation != "mean":
        ask = partial(
            Requirement,
            f"strategy.aggregation {strategy.aggregation!r}",
            reason="it averages numbers that one hostile client could move at will",
            remedy=", or strategy.aggregation to 'mean'",
        )
        yield ask("cel.target", ("none", "accuracy"))  # the accuracy is the server's own figure
    if temperature > 0:
        ask = partial(Requirement, f"temperature {temperature:g}", remedy=", or temperature to 0")
        yield ask(
            "strategy.aggregation", ("mean",), "the Langevin noise is only right for the mean"
        )
        noisy = "with clipped, noisy updates the chain would not sample the posterior"
        yield ask("update.clip", ("none",), noisy)
    else:
        reason, remedy = "there is no chain to check for convergence", ", or temperature above 0"
        yield Requirement("temperature 0", "chain.stop", (False,), reason, remedy)
    if update.noise:
        ask = partial(
            Requirement,
            f"update.noise {update.noise:g}",
            reason="each client would send more than its noisy update",
            remedy=", or update.noise to 0",
        )
        # A weight that follows the accuracy needs no number of theirs, a threshold their spread.
        targets = ("none", "accuracy") if settings.cel.schedule == "target" else ("none",)
        yield ask("cel.target", targets)


def _find_requirement_conflicts(settings: Settings) -> Iterator[str]:
    for asking, key, allowed, reason, remedy in _list_requirements(settings):
        value = attrgetter(key.replace("-", "_"))(settings)
        if value not in allowed:
            choices = " or ".join(map(_format_value, allowed))
            yield (
                f"{key} is {_format_value(value)} and {asking}: {reason}; set {key} to "
                f"{choices}{remedy}"
            )


def _format_value(value: object) -> str:
    """Return a value as TOML spells it."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, str) else f"{value:g}"


def _find_round_conflicts(settings: Settings) -> Iterator[str]:
    """Find rounds and clients that are too few, and options that change the chain's law."""
    strategy, clients = settings.strategy, settings.clients_per_round or settings.clients
    if clients > settings.clients:
        yield f"clients-per-round is {clients}, must be at most clients ({settings.clients})"
    if strategy.aggregation != "mean" and clients < 3:
        yield (
            f"strategy.aggregation is {strategy.aggregation!r} and {clients} clients train in a "
            "round, must be 3 or more; raise clients or clients-per-round"
        )
    if settings.local.balance and settings.samples_whole_net:
        yield (
            "local.balance and chain.scope 'full' above temperature 0: balanced batches reweight "
            "the classes, so the chain would sample another posterior; set local.balance to false"
        )
    if settings.cel.momentum not in ("none", 0) and settings.samples_whole_net:
        yield (
            f"cel.momentum is {settings.cel.momentum} and chain.scope 'full' above temperature 0: "
            "steps along averaged gradients would sample another distribution; set "
            "cel.momentum to 0, or chain.scope to 'head'"
        )
    is_frozen_at_once = burn_in_rounds(settings) == 0 and settings.chain.scope == "head"
    if is_frozen_at_once and isinstance(settings.net, OwnNet):
        yield (
            "chain.burn-in 0 and chain.scope 'head': the encoder would never be trained, "
            "because it is frozen after burn-in; raise chain.burn-in, or set chain.scope to 'full'"
        )
