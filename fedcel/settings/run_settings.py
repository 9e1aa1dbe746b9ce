"""All settings of a run, and the rules between its groups."""

import math
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Literal
from warnings import warn

from pydantic import BaseModel, ConfigDict, Field

from fedcel.attacks import AttackSettings
from fedcel.data import DataSettings
from fedcel.errors import SettingsError
from fedcel.losses.cel import CEL, NoCEL
from fedcel.losses.defences import NoDefence, Rival
from fedcel.nets import Mlp, NetSettings, OwnNet
from fedcel.options import Kind, to_kebab
from fedcel.posterior import (
    MIN_ESS,
    MIN_SAMPLED_ROUNDS,
    ChainSettings,
    ConsistentPrior,
    LocalSettings,
    Prior,
)
from fedcel.privacy import LabelOnlyAnswers, PrivacySettings, UpdateSettings
from fedcel.settings.strategy import OWN_STRATEGY, StrategySettings, check_strategy

MIN_FOLLOWED_ROUNDS = 3
"""Rounds at full strength below which no threshold can follow an accuracy."""


class Settings(BaseModel):
    """All settings of one run; groups are TOML tables, keys are kebab-case."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_kebab, populate_by_name=True
    )

    seed: int = Field(0, ge=0, description="Seed of every random stream of the run.")
    rounds: int = Field(120, ge=1, description="Federated rounds, burn-in and chain together.")
    clients: int = Field(8, ge=1, description="Data holders.")
    clients_per_round: int = Field(
        0, ge=0, description="Clients drawn at random each round; 0 takes all of them."
    )
    engine: Literal["ray", "local", "auto"] = Field(
        "ray",
        description="ray: Flower on Ray; local: this process; auto: local, or ray for max-norm.",
    )
    temperature: float = Field(
        1.0, ge=0, description="Temperature of the chain after burn-in; 1 is the posterior, 0 SGD."
    )
    bits_every: int = Field(
        0,
        ge=0,
        description="Rounds between two measurements of the leak, on validation images; 0: none.",
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
        defaults = {name: field.default for name, field in type(self).model_fields.items()}
        for name, value in self:
            if not isinstance(value, BaseModel):
                if value != defaults[name]:
                    yield to_kebab(name), value
                continue
            usual = _list_defaults(value, defaults[name])
            for key, part in value.model_dump(by_alias=True, serialize_as_any=True).items():
                if key not in usual or part != usual[key]:
                    yield f"{to_kebab(name)}.{key}", part

    def __str__(self) -> str:
        """Show the same to `print`."""
        return repr(self)


def _list_defaults(table: BaseModel, default: BaseModel) -> dict[str, object]:
    """List the defaults of a table's keys, those of its kinds and of its parts."""
    fields = type(table).model_fields
    usual = {str(field.alias): field.default for field in fields.values()}
    if isinstance(table, Kind) and isinstance(default, Kind):
        usual[table.selector] = default.kind_name
    for name, part in table:
        if isinstance(part, Kind):
            usual |= _list_defaults(part, fields[name].default)
    return usual


def check_head(settings: Settings) -> None:
    """Refuse a Gaussian over labels that are no bins of a number."""
    net, source = settings.net, settings.data.source
    if not isinstance(net, OwnNet) or net.head == "classes":
        return
    if not source.has_numbers:
        raise SettingsError(
            f"net.head is {net.head!r} and data.source {source.kind_name!r}, whose labels are "
            "classes without an order, must be bins of a number: data.source 'diabetes', 'npz' or "
            "an import string; set one of these, or net.head to 'classes'"
        )
    if settings.data.labels == "parity":
        raise SettingsError(
            f"net.head is {net.head!r} and data.labels 'parity', which mixes small and large "
            "numbers: set data.labels to 'own', or net.head to 'classes'"
        )


def check_noise_shape(settings: Settings) -> None:
    """Refuse to learn noise that there is none of, or whose law nobody knows."""
    name, net = settings.defence.name, settings.net
    shape, sigma = settings.defence.find_noise_shape(net), settings.defence.find_sigma(net)
    if settings.defence.needs_noise and sigma == 0:
        raise SettingsError(
            f"net.noise is 0 and defence.name {name!r}, whose loss is of the law of the noise: set "
            "net.noise above 0, such as 0.3"
        )
    if name == "learned-noise" and shape == "one":
        raise SettingsError(
            "net.noise-shape is 'one' and defence.name 'learned-noise', which learns it: set "
            "net.noise-shape to 'feature' or 'image'"
        )
    if shape != "one" and sigma == 0:
        raise SettingsError(
            f"net.noise is 0 and net.noise-shape {shape!r}: a learned sd is a multiple of "
            "net.noise; set it above 0, such as 0.3, or net.noise-shape to 'one'"
        )
    if shape != "one" and name == "dropout":
        raise SettingsError(
            f"net.noise-shape is {shape!r} and defence.name 'dropout', whose messages have one sd; "
            "set net.noise-shape to 'one'"
        )


def burn_in_rounds(settings: Settings) -> int:
    """Return the number of the last round of burn-in.

    Args:
        settings: The run's settings.

    Returns:
        The number, 0 to `rounds`; the rounds after it are sampled.
    """
    return settings.chain.burn_in_rounds(settings.rounds)


def check_settings(settings: Settings) -> None:
    """Refuse settings that are each allowed but do not fit together; warn of the merely unwise.

    Raises:
        SettingsError: The first rule that is broken.
    """
    if settings.clients_per_round > settings.clients:
        raise SettingsError(
            f"clients-per-round is {settings.clients_per_round}, must be at most clients "
            f"({settings.clients})"
        )
    check_head(settings)
    check_noise_shape(settings)
    if settings.cel.kind != "none":
        check_schedule(settings, "cel.kind", settings.cel.kind)
        settings.cel.check_noise(settings.defence.find_sigma(settings.net))
        check_goal(settings)
        check_pool(settings)
    if settings.defence.has_loss:
        check_schedule(settings, "defence.name", settings.defence.name)
    check_strategy(settings.strategy)
    check_engine(settings)
    check_averaged_weights(settings)
    check_robust_aggregation(settings)
    check_temperature(settings)
    check_chain(settings)
    check_update_noise(settings)
    warn_of_unwise(settings)


def check_schedule(settings: Settings, key: str, name: str) -> None:
    """Refuse a schedule on which a loss, or a defence by one, would never act in full.

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
            f"{settings.rounds}, burn-in ends after {burn_in}: the loss must be fully on by then; "
            "lower them, or raise chain.burn-in or rounds"
        )
    if cel.warm_up >= burn_in:
        raise SettingsError(
            f"{key} is {name!r}, cel.warm-up {cel.warm_up}, burn-in ends after round {burn_in}: "
            "the loss would never act; lower cel.warm-up or raise rounds"
        )


def check_goal(settings: Settings) -> None:
    """Refuse an accuracy that no threshold has the time to follow."""
    full_strength = math.ceil(round(settings.cel.ramp * settings.rounds, 9))
    followed = burn_in_rounds(settings) - full_strength
    moves_threshold = settings.cel.target == "accuracy" and settings.cel.schedule != "target"
    if moves_threshold and followed < MIN_FOLLOWED_ROUNDS:
        raise SettingsError(
            f"cel.target is 'accuracy', {followed} rounds lie between cel.ramp's end and burn-in, "
            f"must be {MIN_FOLLOWED_ROUNDS} or more for a threshold to follow it; lower cel.ramp "
            "or raise rounds"
        )


def check_pool(settings: Settings) -> None:
    """Refuse to average over positions that the features of a net do not have."""
    if settings.cel.pool != "flatten" and not settings.net.has_positions:
        raise SettingsError(
            f"cel.pool is {settings.cel.pool!r}, net.name {settings.net.name!r}, whose features "
            "have no positions; set net.name to 'vgg11' or a net of your own whose encoder has "
            "`positions`, or cel.pool to 'flatten'"
        )


Requirement = tuple[str, tuple[object, ...], str]
"""A key, the values that are allowed, and why no other is."""


def require_values(
    settings: Settings, subject: str, requirements: Iterable[Requirement], remedy: str = ""
) -> None:
    """Refuse the first value that a requirement does not allow: SettingsError."""
    for key, allowed, reason in requirements:
        value = attrgetter(key.replace("-", "_"))(settings)
        if value not in allowed:
            choices = " or ".join(map(format_value, allowed))
            raise SettingsError(
                f"{key} is {format_value(value)} and {subject}: {reason}; set {key} to "
                f"{choices}{remedy}"
            )


def format_value(value: object) -> str:
    """Return a value as a message shows it, as TOML spells it."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, str) else f"{value:g}"


def check_engine(settings: Settings) -> None:
    """Refuse an engine that does not run the strategy as set."""
    strategy = settings.strategy
    engine = settings.engine
    is_own = strategy.name == OWN_STRATEGY
    if engine == "local" and is_own and strategy.max_norm != "none":
        raise SettingsError(
            f"strategy.max-norm is {strategy.max_norm:g} and engine {engine!r}, whose "
            f"{OWN_STRATEGY!r} trusts its own clients; set engine to 'ray'"
        )


def check_averaged_weights(settings: Settings) -> None:
    """Refuse what a server that averages weights, as Flower's own do, neither sends nor takes."""
    if settings.strategy.upload != "weights":
        return
    total = "such a server does not tell a client how many examples there are in all"
    sends = "such a server sends nothing of it"
    arguments = "a strategy of Flower's has strategy.arguments of its own, as 'server_momentum=0.9'"
    requirements: list[Requirement] = [
        ("temperature", (0,), "such a server tells no client its share"),
        ("chain.scope", ("full",), "averaged weights keep no frozen encoder equal to the bit"),
        ("prior.mode", ("consistent", "none"), total),
        ("prior.scale", ("none",), total),
        ("local.control", ("none",), sends),
        ("update.clip", ("none",), "only a 'delta' is clipped"),
        ("strategy.momentum", (0,), arguments),
        ("strategy.gain", (1,), arguments),
        ("strategy.max-norm", ("none",), arguments),
        ("strategy.aggregation", ("mean",), arguments),
    ]
    if settings.cel.kind != "none":
        reason = "such a server sends no threshold and no weight"
        requirements.append(("cel.target", ("none",), reason))
    require_values(settings, "strategy.upload 'weights'", requirements)


def check_robust_aggregation(settings: Settings) -> None:
    """Refuse a robust rule that has a way around it, or too few clients."""
    rule = settings.strategy.aggregation
    if rule == "mean":
        return
    reason = "what that sends is averaged, one hostile client moves it at will"
    requirements: list[Requirement] = [
        ("local.control", ("none",), reason),
        ("cel.target", ("none", "accuracy"), reason),  # the accuracy is the server's own figure
    ]
    remedy = ", or strategy.aggregation to 'mean'"
    require_values(settings, f"strategy.aggregation {rule!r}", requirements, remedy)
    clients = settings.clients_per_round or settings.clients
    if clients < 3:
        raise SettingsError(
            f"strategy.aggregation is {rule!r} and {clients} clients train in a round, must be 3 "
            "or more for one to be outvoted; raise clients or clients-per-round"
        )


def check_temperature(settings: Settings) -> None:
    """Refuse what would heat or cool the chain, and at temperature 0 what has no effect."""
    if math.isinf(settings.temperature):
        raise SettingsError("temperature is infinite; set a number")
    if settings.temperature == 0:
        reason = "there is no chain whose convergence could be judged"
        requirement = ("chain.stop", (False,), reason)
        require_values(settings, "temperature 0", [requirement], ", or temperature above 0")
        return
    requirements = [
        ("strategy.aggregation", ("mean",), "the noise is right for the mean alone"),
        ("update.clip", ("none",), "with clipped, noisy updates the chain would be no posterior"),
    ]
    subject = f"temperature {settings.temperature:g}"
    require_values(settings, subject, requirements, ", or temperature to 0")


def check_chain(settings: Settings) -> None:
    """Refuse options of the chain without effect, or that change the distribution it samples."""
    local, chain = settings.local, settings.chain
    sampled = settings.rounds - burn_in_rounds(settings)
    faults = [
        (
            local.balance and is_whole_net_sampled(settings),
            "local.balance and chain.scope 'full' above temperature 0: balanced batches weight the "
            "classes, and the chain would sample another posterior; set local.balance to false",
        ),
        (
            settings.cel.momentum not in ("none", 0) and is_whole_net_sampled(settings),
            f"cel.momentum is {settings.cel.momentum} and chain.scope 'full' above temperature "
            "0: steps along a mean of earlier gradients would sample another distribution; set "
            "cel.momentum to 0, or chain.scope to 'head'",
        ),
        (
            chain.stop and sampled <= MIN_ESS,
            f"chain.stop with {sampled} rounds after burn-in: it needs {MIN_ESS:g} "
            "effective samples; raise rounds or lower chain.burn-in",
        ),
        (
            sampled == settings.rounds
            and chain.scope == "head"
            and isinstance(settings.net, OwnNet),
            "chain.burn-in 0 and chain.scope 'head': the encoder would stand still, untrained, "
            "from round 1 on; raise chain.burn-in, or set chain.scope to 'full'",
        ),
        (
            settings.temperature > 0 and chain.thin == 0 and 0 < sampled < MIN_SAMPLED_ROUNDS,
            f"chain.thin 0 with {sampled} rounds after burn-in: the autocorrelation time, which "
            f"would thin the chain, takes {MIN_SAMPLED_ROUNDS} to know; set chain.thin to 1 or "
            "more",
        ),
    ]
    for is_wrong, message in faults:
        if is_wrong:
            raise SettingsError(message)


def is_whole_net_sampled(settings: Settings) -> bool:
    """Return whether the chain runs over encoder and head together."""
    return settings.chain.scope == "full" and settings.temperature > 0


def check_update_noise(settings: Settings) -> None:
    """Refuse whatever a holder would send past the noise on its update."""
    if not settings.update.noise:
        return
    reason = "each holder would send more than its noisy update"
    # A weight that follows the accuracy needs no number of theirs, a threshold their spread.
    targets = ("none", "accuracy") if settings.cel.schedule == "target" else ("none",)
    requirements: list[Requirement] = [
        ("local.control", ("none",), reason),
        ("cel.target", targets, reason),
    ]
    subject = f"update.noise {settings.update.noise:g}"
    require_values(settings, subject, requirements, ", or update.noise to 0")


def warn_of_unwise(settings: Settings) -> None:
    """Warn of what trains but protects little, or samples something else than usual."""
    warnings = [
        (
            settings.cel.kind != "none" and settings.defence.find_sigma(settings.net) == 0,
            "net.noise is 0: a small spread only slows an attacker down, every image still leaks "
            "whole",
        ),
        (
            settings.local.augment != "none" and is_whole_net_sampled(settings),
            "local.augment and chain.scope 'full' above temperature 0: the chain samples the "
            "posterior given changed images",
        ),
    ]
    for is_unwise, message in warnings:
        if is_unwise:
            warn(message, stacklevel=4)  # of who parses the settings
