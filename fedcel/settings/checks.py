"""What settings have to fulfil together, one function a group."""

import math
from warnings import warn

from fedcel.errors import SettingsError
from fedcel.settings.loss_checks import check_loss, check_schedule
from fedcel.settings.privacy_checks import check_privacy, check_uploads
from fedcel.settings.run_settings import Settings, burn_in_rounds
from fedcel.settings.training import LEAST_DRAWS

OWN_STRATEGY = "posterior"


def check_settings(settings: Settings) -> None:
    """Refuse settings that are each allowed but do not fit together; warn of the merely unwise."""
    s = settings
    if s.clients_per_round > s.clients:
        raise SettingsError(
            f"clients-per-round is {s.clients_per_round}, must be at most clients ({s.clients})"
        )
    check_defence(s)
    if s.cel.kind != "none":
        check_schedule(s, "cel.kind", s.cel.kind)
        check_loss(s)
    if s.defence.name.removeprefix("noise+") in ("nopeek", "adversarial"):
        check_schedule(s, "defence.name", s.defence.name)
    check_strategy(s)
    check_robust(s)
    check_sampler(s)
    check_privacy(s)
    check_uploads(s)
    if s.net.bound == "none":
        warn("net.bound is 'none': an encoder may outgrow any noise; only for study", stacklevel=3)


def check_defence(s: Settings) -> None:
    """Refuse a strength that means nothing for the defence it is given to."""
    name, strength = s.defence.name, s.defence.used_strength
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


def check_sampler(s: Settings) -> None:
    """Refuse a chain that would not sample what it says."""
    if s.temperature > 0 and not s.strategy.damped:
        raise SettingsError(
            f"strategy.damped is false and temperature is {s.temperature:g}: momentum "
            f"{s.strategy.momentum:g} undamped makes the chain 1/(1 - momentum) times as hot; "
            "set strategy.damped to true, or temperature to 0"
        )
    if s.temperature > 0 and s.strategy.proximal > 0:
        raise SettingsError(
            f"strategy.proximal is {s.strategy.proximal:g} and temperature {s.temperature:g}: a "
            "pull that no prior accounts for cools the chain; set prior.mode instead"
        )
    if s.temperature == 0 and s.prior.mode == "patent-code":
        raise SettingsError(
            "prior.mode is 'patent-code' and temperature 0: its width is that of the noise; "
            "set temperature above 0, or another mode"
        )
    if s.local.control == "stale" and s.clients_per_round not in (0, s.clients):
        raise SettingsError(
            f"local.control is 'stale' and clients-per-round {s.clients_per_round} of {s.clients}: "
            "last round's gradients are other clients'; set local.control to 'fresh', which leaves "
            "a part of the drift where clients are drawn, or let all take part"
        )
    check_chain(s)
    steered = s.local.control, s.local.precondition
    if s.strategy.upload == "weights" and (steered != ("none", "none") or s.local.shared_noise):
        raise SettingsError(
            f"strategy.upload is 'weights', local.control {s.local.control!r}, local.precondition "
            f"{s.local.precondition!r}, local.shared-noise {s.local.shared_noise:g}: a server that "
            "averages weights sends nothing of these; set them to 'none' and 0"
        )
    if s.chain.stop and s.temperature == 0:
        raise SettingsError(
            "chain.stop is true and temperature 0: there is no chain whose convergence could be "
            "judged; set chain.stop to false, or temperature above 0"
        )


def check_chain(s: Settings) -> None:
    """Refuse options of the chain that would do nothing, or make another target of it."""
    part = s.clients_per_round not in (0, s.clients)
    whole = s.chain.scope == "full" and s.temperature > 0
    sampled = s.rounds - burn_in_rounds(s)
    cyclical = s.local.schedule == "cyclical"
    wrong = {
        "local.shared-noise above 0 and clients drawn at random: their weights do not add up to 1, "
        "and the noise would not fit them; set local.shared-noise to 0": s.local.shared_noise > 0
        and part,
        "local.balance and chain.scope 'full' above temperature 0: balanced batches weight the "
        "classes, and the chain would sample another posterior; set local.balance to false": whole
        and s.local.balance,
        "local.precondition 'rms' and chain.burn-in 0: it learns in burn-in alone; raise "
        "chain.burn-in": s.local.precondition != "none" and s.chain.burn_in == 0,
        f"local.schedule 'cyclical' with {s.rounds} rounds, {s.local.cycles} cycles and burn-in "
        f"{s.chain.burn_in:g}: less than one whole cycle is left to sample; lower chain.burn-in "
        "to 1 - 1/cycles or less": cyclical and sampled * s.local.cycles < s.rounds,
        f"chain.stop with {sampled} rounds after burn-in: it needs 100 effective samples; raise "
        "rounds or lower chain.burn-in": s.chain.stop and sampled <= 100,
        "temperature is infinite; set a number": math.isinf(s.temperature),
        "chain.burn-in 0 and chain.scope 'head': the encoder would stand still, untrained, from "
        "round 1 on; raise chain.burn-in, or set chain.scope to 'full'": sampled == s.rounds
        and s.chain.scope == "head"
        and ":" not in s.net.name,
        f"chain.thin 0 with {sampled} rounds after burn-in: the autocorrelation time, which would "
        f"thin the chain, takes {LEAST_DRAWS} to know; set chain.thin to 1 or more": s.temperature
        > 0
        and s.chain.thin == 0
        and 0 < sampled < LEAST_DRAWS,
    }
    for said, is_wrong in wrong.items():
        if is_wrong:
            raise SettingsError(said)
    if whole and s.local.augment != "none":
        warn(
            "local.augment and chain.scope 'full' above temperature 0: the chain samples the "
            "posterior given changed images",
            stacklevel=5,
        )


def check_strategy(s: Settings) -> None:
    """Refuse a strategy that cannot run as set."""
    own = s.strategy.name == OWN_STRATEGY
    if not own and ":" not in s.strategy.name:
        raise SettingsError(
            f"strategy.name is {s.strategy.name!r}, must be 'posterior' or 'package.module:object'"
        )
    if s.engine != "ray" and own and s.strategy.max_norm != "none":
        raise SettingsError(
            f"strategy.max-norm is {s.strategy.max_norm:g} and engine {s.engine!r}, whose "
            "'posterior' trusts its own clients; set engine to 'ray'"
        )
    if s.engine == "processes" and not own:
        raise SettingsError(
            f"engine is 'processes' and strategy.name {s.strategy.name!r}: only 'posterior' runs "
            "in several processes; set engine to 'loop' or 'ray'"
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


def check_robust(s: Settings) -> None:
    """Refuse a robust rule that heats a chain, has a way around it, or too few clients."""
    rule, m = s.strategy, s.clients_per_round or s.clients
    if rule.aggregation == "mean":
        return
    said = f"strategy.aggregation is {rule.aggregation!r}"
    if s.temperature > 0:
        raise SettingsError(
            f"{said} and temperature {s.temperature:g}: the noise is right for the mean alone, any "
            "other rule makes another temperature of it; set temperature to 0, or "
            "strategy.aggregation to 'mean'"
        )
    for key, value, plain in (
        ("strategy.upload", rule.upload, "delta"),
        ("local.control", s.local.control, "none"),
        ("cel.centres", s.cel.centres, "own"),
        ("cel.target", s.cel.target.replace("accuracy", "none"), "none"),  # the server's own figure
    ):
        if value != plain:
            raise SettingsError(
                f"{said} and {key} {value!r}: what that sends is averaged, one hostile client "
                f"moves it at will; set {key} to {plain!r}, or strategy.aggregation to 'mean'"
            )
    least = {"trimmed": math.ceil(round(1 / rule.trim, 9))}
    least |= dict.fromkeys(("krum", "multi-krum"), 2 * rule.byzantine + 3)
    if m < (needed := max(3, least.get(rule.aggregation, 3))):
        raise SettingsError(
            f"{said}, strategy.trim {rule.trim:g}, strategy.byzantine {rule.byzantine} and {m} "
            f"clients train in a round, must be {needed} or more for one to be outvoted; raise "
            "clients or clients-per-round, lower strategy.byzantine or raise strategy.trim"
        )
