"""All settings of a run, and the rules between its groups."""

import math
from collections.abc import Iterator
from functools import partial
from operator import attrgetter
from typing import Literal, NamedTuple
from warnings import warn

from pydantic import BaseModel, ConfigDict, Field

from fedcel.attacks import AttackSettings
from fedcel.data import DataSettings
from fedcel.errors import SettingsError
from fedcel.losses.cel import CEL, NoCEL
from fedcel.losses.defences import NoDefence, Rival
from fedcel.nets import Mlp, NetSettings, OwnNet
from fedcel.posterior import (
    MIN_ESS,
    MIN_SAMPLED_ROUNDS,
    ChainSettings,
    ConsistentPrior,
    LocalSettings,
    Prior,
)
from fedcel.privacy import LabelOnlyAnswers, PrivacySettings, UpdateSettings
from fedcel.settings.strategy import OWN_STRATEGY, StrategySettings
from fedcel.settings_table import to_kebab

MIN_FOLLOWED_ROUNDS = 3
"""Rounds at full strength below which no threshold can follow an accuracy."""


class Settings(BaseModel):
    """All settings of one run; groups are TOML tables, keys are kebab-case."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_kebab, populate_by_name=True
    )

    seed: int = Field(0, ge=0, description="Seed of every random stream of the run.")
    rounds: int = Field(120, ge=1, description="Federated rounds, burn-in and chain together.")
    clients: int = Field(8, ge=1, description="Number of clients.")
    clients_per_round: int = Field(
        0, ge=0, description="Clients that are selected at random in each round; 0: all."
    )
    engine: Literal["ray", "local", "auto"] = Field(
        "auto",
        description="ray: Flower on Ray; local: this process; auto: ray on a cluster, else local.",
    )
    temperature: float = Field(
        1.0,
        ge=0,
        allow_inf_nan=False,
        description="Temperature of the chain after burn-in; 1: posterior, 0: plain SGD.",
    )
    bits_every: int = Field(
        0,
        ge=0,
        description="Rounds between measurements of the leak on validation images; 0: none.",
    )
    data: DataSettings = DataSettings()
    net: NetSettings = Mlp()
    defence: Rival = NoDefence()
    cel: CEL = NoCEL()
    local: LocalSettings = LocalSettings()
    prior: Prior = ConsistentPrior()
    strategy: StrategySettings = StrategySettings()
    update: UpdateSettings = UpdateSettings()
    chain: ChainSettings = ChainSettings()
    privacy: PrivacySettings = LabelOnlyAnswers()
    attack: AttackSettings = AttackSettings()

    def __repr_args__(self) -> Iterator[tuple[str, object]]:
        """Yield what differs from the defaults, by dotted key: all keys would fill a screen."""
        changed = self.model_dump(by_alias=True, serialize_as_any=True, exclude_defaults=True)
        for name, value in changed.items():
            table = value if isinstance(value, dict) else {"": value}
            yield from ((f"{name}.{key}".rstrip("."), part) for key, part in table.items())

    def __str__(self) -> str:
        """Show the same to `print`."""
        return repr(self)

    @property
    def samples_whole_net(self) -> bool:
        """Whether the chain runs over encoder and head together."""
        return self.chain.scope == "full" and self.temperature > 0


def burn_in_rounds(settings: Settings) -> int:
    """Return the number of the last round of burn-in.

    Args:
        settings: The run's settings.

    Returns:
        The number, 0 to `rounds`; the rounds after it are sampled.
    """
    return settings.chain.burn_in_rounds(settings.rounds)


def check_settings(settings: Settings) -> None:
    """Refuse contradictory settings with SettingsError; warn about unwise ones."""
    if settings.cel.kind != "none":
        check_schedule(settings, "cel.kind", settings.cel.kind)
        settings.cel.check_noise(settings.defence.find_sigma(settings.net))
    if settings.defence.has_loss:
        check_schedule(settings, "defence.name", settings.defence.name)
    conflicts = (_find_requirement_conflicts, _find_net_conflicts, _find_round_conflicts)
    for find_conflicts in conflicts:
        for message in find_conflicts(settings):
            raise SettingsError(message)
    if settings.cel.kind != "none" and settings.defence.find_sigma(settings.net) == 0:
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


def check_schedule(settings: Settings, key: str, name: str) -> None:
    """Refuse a schedule in which a loss or a defence never reaches its full weight.

    Args:
        settings: The run's settings.
        key: The setting that names the loss.
        name: What it is set to.

    Raises:
        SettingsError: Burn-in ends before the loss is fully on, or before it is on at all.
    """
    cel = settings.cel
    burn_in = burn_in_rounds(settings)
    is_ramped = cel.schedule in ("ramp", "target")
    full_strength = round(cel.ramp * settings.rounds, 9) if is_ramped else 0
    if max(cel.warm_up, full_strength) > burn_in:
        raise SettingsError(
            f"{key} is {name!r}, cel.warm-up {cel.warm_up} rounds and cel.ramp {cel.ramp:g} of "
            f"{settings.rounds}, burn-in ends after {burn_in}: the loss must have its full "
            "weight by then; lower them, or raise chain.burn-in or rounds"
        )
    if cel.warm_up >= burn_in:
        raise SettingsError(
            f"{key} is {name!r}, cel.warm-up {cel.warm_up}, burn-in ends after round {burn_in}: "
            "the loss would never act; lower cel.warm-up or raise rounds"
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
        yield ask("local.control", ("none",), "the server then sends no control variate")
        yield ask("update.clip", ("none",), "only deltas are clipped")
        arguments = (
            "a Flower strategy takes it in strategy.arguments, such as 'server_momentum=0.9'"
        )
        yield ask("strategy.momentum", (0,), arguments)
        yield ask("strategy.gain", (1,), arguments)
        yield ask("strategy.max-norm", ("none",), arguments)
        yield ask("strategy.aggregation", ("mean",), arguments)
        yield ask("cel.target", ("none",), "the server then sends no threshold and no weight")
    if strategy.aggregation != "mean":
        ask = partial(
            Requirement,
            f"strategy.aggregation {strategy.aggregation!r}",
            reason="it averages numbers that one hostile client could move at will",
            remedy=", or strategy.aggregation to 'mean'",
        )
        yield ask("local.control", ("none",))
        yield ask("cel.target", ("none", "accuracy"))  # the accuracy is the server's own figure
    if temperature > 0:
        ask = partial(Requirement, f"temperature {temperature:g}", remedy=", or temperature to 0")
        yield ask(
            "strategy.aggregation", ("mean",), "the Langevin noise is only right for the mean"
        )
        noisy = "with clipped, noisy updates the chain would not sample the posterior"
        yield ask("update.clip", ("none",), noisy)
    else:
        reason, remedy = "there is no chain to check for convergence", "above 0"
        yield Requirement(
            "temperature 0", "chain.stop", (False,), reason, f", or temperature {remedy}"
        )
    if update.noise:
        ask = partial(
            Requirement,
            f"update.noise {update.noise:g}",
            reason="each client would send more than its noisy update",
            remedy=", or update.noise to 0",
        )
        yield ask("local.control", ("none",))
        # A weight that follows the accuracy needs no number of theirs, a threshold their spread.
        targets = ("none", "accuracy") if settings.cel.schedule == "target" else ("none",)
        yield ask("cel.target", targets)


def _find_requirement_conflicts(settings: Settings) -> Iterator[str]:
    """Find values that a requirement does not allow."""
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


def _find_net_conflicts(settings: Settings) -> Iterator[str]:
    """Find noise or positions that do not fit the defence or the loss."""
    net, name = settings.net, settings.defence.name
    shape, sigma = settings.defence.find_noise_shape(net), settings.defence.find_sigma(net)
    cel = settings.cel
    if cel.kind != "none" and cel.pool != "flatten" and not net.has_positions:
        yield (
            f"cel.pool is {cel.pool!r}, net.name {net.name!r}, whose features have no positions; "
            "set net.name to 'vgg11' or a net of your own whose encoder has `positions`, or "
            "cel.pool to 'flatten'"
        )
    if settings.defence.needs_noise and sigma == 0:
        yield (
            f"net.noise is 0 and defence.name {name!r}, whose loss needs the noise: set "
            "net.noise above 0, such as 0.3"
        )
    if name == "learned-noise" and shape == "one":
        yield (
            "net.noise-shape is 'one' and defence.name 'learned-noise', which learns the noise: "
            "set net.noise-shape to 'feature' or 'image'"
        )
    if shape != "one" and sigma == 0:
        yield (
            f"net.noise is 0 and net.noise-shape {shape!r}: a learned sd is a multiple of "
            "net.noise; set it above 0, such as 0.3, or net.noise-shape to 'one'"
        )
    if shape != "one" and name == "dropout":
        yield (
            f"net.noise-shape is {shape!r} and defence.name 'dropout', whose noise has one sd; "
            "set net.noise-shape to 'one'"
        )


def _find_round_conflicts(settings: Settings) -> Iterator[str]:
    """Find rounds and clients that are too few, and options that change the chain's law."""
    cel, chain, strategy, rounds = settings.cel, settings.chain, settings.strategy, settings.rounds
    burn_in, clients = burn_in_rounds(settings), settings.clients_per_round or settings.clients
    sampled = rounds - burn_in
    if clients > settings.clients:
        yield (f"clients-per-round is {clients}, must be at most clients ({settings.clients})")
    if strategy.aggregation != "mean" and clients < 3:
        yield (
            f"strategy.aggregation is {strategy.aggregation!r} and {clients} clients train in a "
            "round, must be 3 or more; raise clients or clients-per-round"
        )
    is_own = strategy.name == OWN_STRATEGY
    if settings.engine == "local" and is_own and strategy.max_norm != "none":
        yield (
            f"strategy.max-norm is {strategy.max_norm:g} and engine 'local', whose "
            f"{OWN_STRATEGY!r} does not check norms; set engine to 'ray'"
        )
    followed = burn_in - math.ceil(round(cel.ramp * rounds, 9))
    moves_threshold = cel.schedule != "target" and cel.target == "accuracy"
    if moves_threshold and followed < MIN_FOLLOWED_ROUNDS:
        yield (
            f"cel.target is 'accuracy', {followed} rounds lie between cel.ramp's end and burn-in, "
            f"must be {MIN_FOLLOWED_ROUNDS} or more for a threshold to follow it; lower cel.ramp "
            "or raise rounds"
        )
    if settings.local.balance and settings.samples_whole_net:
        yield (
            "local.balance and chain.scope 'full' above temperature 0: balanced batches reweight "
            "the classes, so the chain would sample another posterior; set local.balance to false"
        )
    if cel.momentum not in ("none", 0) and settings.samples_whole_net:
        yield (
            f"cel.momentum is {cel.momentum} and chain.scope 'full' above temperature 0: steps "
            "along averaged gradients would sample another distribution; set "
            "cel.momentum to 0, or chain.scope to 'head'"
        )
    if chain.stop and sampled <= MIN_ESS:
        yield (
            f"chain.stop with {sampled} rounds after burn-in: it needs {MIN_ESS:g} effective "
            "samples; raise rounds or lower chain.burn-in"
        )
    if burn_in == 0 and chain.scope == "head" and isinstance(settings.net, OwnNet):
        yield (
            "chain.burn-in 0 and chain.scope 'head': the encoder would never be trained, "
            "because it is frozen after burn-in; raise chain.burn-in, or set chain.scope to 'full'"
        )
    if settings.temperature > 0 and chain.thin == 0 and 0 < sampled < MIN_SAMPLED_ROUNDS:
        yield (
            f"chain.thin 0 with {sampled} rounds after burn-in: thinning by the autocorrelation "
            f"time needs {MIN_SAMPLED_ROUNDS} rounds; set chain.thin to 1 or "
            "more"
        )
