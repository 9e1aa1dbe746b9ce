"""Every setting: typed, frozen, documented, refused when unknown or impossible."""

import math
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Literal
from warnings import warn

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedcel.errors import SettingsError
from fedcel.settings_groups import (
    Attack,
    Cel,
    Chain,
    Data,
    Defence,
    Local,
    Net,
    Prior,
    Privacy,
    Strategy,
    kebab,
)

Scalar = str | int | float | bool
OWN_STRATEGY = "posterior"


class Settings(BaseModel):
    """All settings of one run; groups are TOML tables, keys are kebab-case."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=kebab, populate_by_name=True
    )

    seed: int = Field(0, ge=0, description="Seed of every random stream of the run.")
    rounds: int = Field(120, ge=1, description="Federated rounds, burn-in and chain together.")
    clients: int = Field(8, ge=1, description="Data holders.")
    clients_per_round: int = Field(
        0, ge=0, description="Clients drawn at random each round; 0 takes all of them."
    )
    engine: Literal["ray", "loop"] = Field(
        "ray", description="ray: Flower simulation, in parallel; loop: one process, in place."
    )
    temperature: float = Field(
        1.0, ge=0, description="Temperature of the chain after burn-in; 1 is the posterior, 0 SGD."
    )
    data: Data = Data()
    net: Net = Net()
    defence: Defence = Defence()
    cel: Cel = Cel()
    local: Local = Local()
    prior: Prior = Prior()
    strategy: Strategy = Strategy()
    chain: Chain = Chain()
    privacy: Privacy = Privacy()
    attack: Attack = Attack()


def flatten(tree: Mapping[str, object], prefix: str = "") -> dict[str, Scalar]:
    """Return {"cel.weight": 0.1, ...} of nested tables; SettingsError on a list."""
    flat: dict[str, Scalar] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{path}.")
        elif isinstance(value, str | int | float | bool):
            flat[path] = value
        else:
            raise SettingsError(
                f"{path} is {value!r}; settings are scalars, write lists as 'a,b,c'"
            )
    return flat


def known_keys() -> dict[str, tuple[object, str]]:
    """Return every flat key with its default and its one sentence."""
    return {path: (default, text) for path, default, text, _ in describe()}


def describe(
    model: type[BaseModel] = Settings, prefix: str = ""
) -> Iterator[tuple[str, object, str, str]]:
    """Yield (key, default, sentence, type and range) of every setting."""
    for field in model.model_fields.values():
        path = f"{prefix}{field.alias}"
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from describe(kind, f"{path}.")
        else:
            limits = " ".join(str(m) for m in field.metadata)
            name = kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
            yield path, field.default, str(field.description), f"{name} {limits}".strip()


def parse(raw: Mapping[str, object]) -> Settings:
    """Return checked settings of nested tables or flat dotted keys.

    Raises SettingsError, one line a problem: what, its value, what is allowed, the nearest name.
    """
    flat = flatten(raw)
    known = known_keys()
    for key in sorted(flat.keys() - known.keys()):
        near = get_close_matches(key, known, 1, cutoff=0)
        raise SettingsError(f"unknown setting {key!r}; did you mean {near[0]!r}?")
    tree: dict[str, object] = {}
    for key, value in flat.items():
        group, _, name = key.rpartition(".")
        table = tree.setdefault(group, {}) if group else tree
        assert isinstance(table, dict)
        table[name] = value
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        raise SettingsError("\n".join(_line(problem) for problem in error.errors())) from None
    check(settings)
    return settings


def _line(problem: Mapping[str, object]) -> str:
    where = problem["loc"]
    assert isinstance(where, tuple)
    keys = [part for part in where if isinstance(part, str) and part in _names()]
    return f"{'.'.join(keys)} is {problem['input']!r}: {problem['msg']}"


def _names() -> set[str]:
    return {part for key in known_keys() for part in key.split(".")}


def dump(settings: Settings) -> dict[str, object]:
    """Return nested kebab-case tables that `parse` reads back unchanged."""
    return settings.model_dump(by_alias=True)


def check(settings: Settings) -> None:
    """Refuse settings that are each allowed but do not fit together; warn of the merely unwise."""
    s = settings
    if s.clients_per_round > s.clients:
        raise SettingsError(
            f"clients-per-round is {s.clients_per_round}, must be at most clients ({s.clients})"
        )
    check_defence(s)
    if s.cel.kind != "none":
        check_loss(s)
    check_strategy(s)
    if s.net.bound == "none":
        warn("net.bound is 'none': an encoder may outgrow any noise; only for study", stacklevel=3)


def check_defence(s: Settings) -> None:
    """Refuse a strength that means nothing for the defence it is given to."""
    name, strength = s.defence.name, s.defence.strength
    if name == "none":
        if strength:
            raise SettingsError(f"defence.strength is {strength}, defence.name 'none': name one")
    elif name == "bottleneck" and (strength < 1 or strength != int(strength)):
        raise SettingsError(
            f"defence.strength is {strength}, must be the number of values sent, 1 or more"
        )
    elif name == "dropout" and not 0 < strength < 1:
        raise SettingsError(
            f"defence.strength is {strength}, must be the chance that a value is dropped, in (0, 1)"
        )
    elif not strength > 0:
        raise SettingsError(f"defence.strength is {strength}, must be above 0 for {name!r}")


def check_loss(s: Settings) -> None:
    """Refuse a loss that would never act, and one that divides by a noise of 0."""
    burn_in = math.ceil(round(s.chain.burn_in * s.rounds, 9))
    if max(s.cel.warm_up, round(s.cel.ramp * s.rounds, 9)) > burn_in:
        raise SettingsError(
            f"cel.warm-up is {s.cel.warm_up} rounds and cel.ramp {s.cel.ramp:g} of {s.rounds}, "
            f"burn-in ends after {burn_in}: the loss must be fully on by then; lower them, or "
            "raise chain.burn-in or rounds"
        )
    if s.cel.warm_up >= burn_in:
        raise SettingsError(
            f"cel.warm-up is {s.cel.warm_up}, burn-in ends after round {burn_in}: the loss would "
            "never act; lower cel.warm-up or raise rounds"
        )
    check_threshold(s)
    check_centres(s)
    if s.net.noise > 0:
        return
    if s.cel.penalty == "channel" or (s.cel.penalty == "log" and s.cel.threshold == "none"):
        raise SettingsError(
            f"net.noise is 0 and cel.penalty {s.cel.penalty!r} is measured against it; "
            "set net.noise to 0.3, cel.penalty to 'linear', or cel.threshold"
        )
    warn(
        "net.noise is 0: a small spread only slows an attacker down, every image still leaks whole",
        stacklevel=4,
    )


def check_threshold(s: Settings) -> None:
    """Refuse an adaptive threshold that nothing reads, cannot be met or does not arrive."""
    if s.cel.target == "none":
        return
    mixed = s.cel.kind in ("cluster", "hybrid") and s.cel.form == "mixture"
    unread = s.cel.kind == "mutual-information" or mixed
    if s.cel.penalty != "log" or unread:
        raise SettingsError(
            f"cel.target is {s.cel.target!r}, cel.penalty {s.cel.penalty!r}, cel.kind "
            f"{s.cel.kind!r}, cel.form {s.cel.form!r}: only the penalty 'log' has a threshold, "
            "'mutual-information' and 'mixture' use no penalty; set cel.penalty to 'log' and "
            "another kind or form, or cel.target to 'none'"
        )
    if s.cel.target == "accuracy" and s.cel.goal >= 1:
        raise SettingsError(
            f"cel.goal is {s.cel.goal:g}, must be a validation accuracy below 1; try 0.95"
        )
    if s.strategy.upload == "weights":
        raise SettingsError(
            f"strategy.upload is 'weights' and cel.target {s.cel.target!r}: a server that averages "
            "weights sends no threshold; set cel.target to 'none'"
        )


def check_centres(s: Settings) -> None:
    """Refuse averaged centres where there are none to average or nobody averages them."""
    if s.cel.centres == "own":
        return
    if s.cel.kind != "cluster" or s.cel.clustering != "k-means" or s.cel.bank:
        raise SettingsError(
            f"cel.centres is 'averaged', cel.kind {s.cel.kind!r}, cel.clustering "
            f"{s.cel.clustering!r}, cel.bank {s.cel.bank}: only the K-means centres of the kind "
            "'cluster' without a bank are averaged; set these, or cel.centres to 'own'"
        )
    if s.strategy.upload == "weights":
        raise SettingsError(
            "strategy.upload is 'weights' and cel.centres 'averaged': a server that averages "
            "weights merges no centres; set cel.centres to 'own'"
        )


def check_strategy(s: Settings) -> None:
    """Refuse a strategy that cannot run as set."""
    own = s.strategy.name == OWN_STRATEGY
    if not own and ":" not in s.strategy.name:
        raise SettingsError(
            f"strategy.name is {s.strategy.name!r}, must be 'posterior' or 'package.module:object'"
        )
    if s.engine == "loop" and (not own or s.strategy.max_norm != "none"):
        raise SettingsError(
            f"strategy.name is {s.strategy.name!r} and strategy.max-norm {s.strategy.max_norm!r}: "
            "engine 'loop' runs 'posterior' alone and trusts its own clients; set engine to 'ray'"
        )
    if s.strategy.upload == "weights" and own:
        raise SettingsError("strategy.upload is 'weights'; 'posterior' aggregates 'delta'")
    if s.strategy.upload == "weights" and s.temperature > 0:
        raise SettingsError(
            f"strategy.upload is 'weights' and temperature is {s.temperature}: a server that "
            "averages weights does not tell a client its share; set temperature to 0"
        )
    if s.strategy.upload == "weights" and s.chain.scope == "head":
        raise SettingsError(
            "strategy.upload is 'weights' and chain.scope 'head': averaged weights do not keep a "
            "frozen encoder equal to the bit; set chain.scope to 'full'"
        )
    if s.strategy.upload == "weights" and (s.prior.mode == "fixed" or s.prior.scale != "none"):
        raise SettingsError(
            "strategy.upload is 'weights': a server that averages weights does not tell a client "
            "how many examples there are in all, which prior.mode 'fixed' and prior.scale divide "
            "by; set prior.mode to 'consistent' or 'none' and prior.scale to 'none'"
        )
