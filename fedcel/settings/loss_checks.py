"""What the settings of a loss have to fulfil together, and with the noise and the rounds."""

import math
from warnings import warn

from fedcel.errors import SettingsError
from fedcel.settings.run_settings import Settings, burn_in_rounds, cut_sigma

FOLLOWED = 3
"""Rounds at full strength below which no threshold can follow an accuracy."""


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
    if (mixes or cel.kind == "mutual-information") and not cut_sigma(s) > 0:
        raise SettingsError(
            f"net.noise is 0, cel.kind {cel.kind!r} and cel.form {cel.form!r} are measured "
            "against it; set net.noise to 0.3, or another kind or form"
        )
    if cel.kind == "hybrid" and cel.used_clusters == 1:
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
    if s.cel.kind != "cluster" or s.cel.clustering != "k-means":
        raise SettingsError(
            f"cel.centres is 'averaged', cel.kind {s.cel.kind!r}, cel.clustering "
            f"{s.cel.clustering!r}: only the K-means centres of the kind 'cluster' are averaged; "
            "set these, or cel.centres to 'own'"
        )
    if s.strategy.upload == "weights":
        raise SettingsError(
            "strategy.upload is 'weights' and cel.centres 'averaged': a server that averages "
            "weights merges no centres; set cel.centres to 'own'"
        )
