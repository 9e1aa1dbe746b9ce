"""What settings have to fulfil together, one function a group."""

import math
from warnings import warn

from fedcel.errors import SettingsError
from fedcel.settings_checks_privacy import check_privacy, check_uploads
from fedcel.settings_groups.root import Settings, burn_in_rounds, cut_sigma
from fedcel.settings_groups.training import LEAST_DRAWS

OWN_STRATEGY = "posterior"
FOLLOWED = 3
"""Rounds at full strength below which no threshold can follow an accuracy."""


def check(settings: Settings) -> None:
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
    if s.defence.name not in ("none", "noise", "bottleneck", "dropout"):
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


def check_schedule(s: Settings, key: str, name: str) -> None:
    """Refuse a schedule on which a loss, or a defence by one, would never act in full."""
    burn_in, own = burn_in_rounds(s), f"{key} is {name!r}, "
    if max(s.cel.warm_up, round(s.cel.ramp * s.rounds, 9)) > burn_in:
        raise SettingsError(
            f"{own}cel.warm-up {s.cel.warm_up} rounds and cel.ramp {s.cel.ramp:g} of {s.rounds}, "
            f"burn-in ends after {burn_in}: the loss must be fully on by then; lower them, or "
            "raise chain.burn-in or rounds"
        )
    if s.cel.warm_up >= burn_in:
        raise SettingsError(
            f"{own}cel.warm-up {s.cel.warm_up}, burn-in ends after round {burn_in}: the loss would "
            "never act; lower cel.warm-up or raise rounds"
        )


def check_loss(s: Settings) -> None:
    """Refuse options of a loss that do not go together, and one that divides by a noise of 0."""
    check_threshold(s)
    check_centres(s)
    check_options(s)
    if cut_sigma(s) > 0:
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


def check_options(s: Settings) -> None:
    """Refuse options of a loss that contradict each other or would do nothing."""
    cel, mixes = s.cel, s.cel.kind in ("cluster", "hybrid") and s.cel.form == "mixture"
    if cel.kind in ("gated", "hybrid") and cel.attention == "detach" and cel.entropy > 0:
        raise SettingsError(
            f"cel.entropy is {cel.entropy:g}, cel.attention 'detach', which never moves; set "
            "cel.entropy to 0 or cel.attention to 'ascend'"
        )
    if mixes and cel.blend > 0:
        raise SettingsError(
            f"cel.blend is {cel.blend:g}, cel.form 'mixture', which has no spread to blend; set "
            "cel.blend to 0 or cel.form to 'per-cluster'"
        )
    if (mixes or cel.kind == "mutual-information") and not cut_sigma(s) > 0:
        raise SettingsError(
            f"net.noise is 0, cel.kind {cel.kind!r} and cel.form {cel.form!r} are measured "
            "against it; set net.noise to 0.3, or another kind or form"
        )
    if cel.kind == "hybrid" and cel.clusters == 1:
        raise SettingsError(
            "cel.clusters is 1, cel.kind 'hybrid': one centre is the class mean wherever it "
            "starts; set cel.clusters to 0 (by the class's size) or more than 1, or cel.kind to "
            "'cluster'"
        )
    if cel.refresh == "round" and cel.refresh_every != 1:
        raise SettingsError(
            f"cel.refresh-every is {cel.refresh_every} epochs, cel.refresh 'round'; set "
            "cel.refresh to 'epoch' or cel.refresh-every to 1"
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
    left = burn_in_rounds(s) - math.ceil(round(s.cel.ramp * s.rounds, 9))
    if s.cel.target == "accuracy" and left < FOLLOWED:
        raise SettingsError(
            f"cel.target is 'accuracy', {left} rounds lie between cel.ramp's end and burn-in, "
            f"must be {FOLLOWED} or more for a threshold to follow it; lower cel.ramp or raise "
            "rounds"
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
