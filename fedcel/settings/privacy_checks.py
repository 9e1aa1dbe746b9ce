"""What settings of private answers and private updates have to fulfil."""

from fedcel.errors import SettingsError
from fedcel.settings.answers import NOISES, PrivacySettings, sensitivity
from fedcel.settings.run_settings import Settings

SMALLEST, LARGEST = 1e-20, 1e20  # of an update's clip and noise


def check_privacy(s: Settings) -> None:
    """Refuse a budget for not even one answer, and a sensitivity that nothing enforces."""
    p = s.privacy
    if p.mechanism != "none" and p.budget < p.epsilon:
        raise SettingsError(
            f"privacy.budget is {p.budget:g}, must be at least privacy.epsilon ({p.epsilon:g}), or "
            "not one question is answered; raise it"
        )
    if p.mechanism in NOISES:
        check_sensitivity(p, 2)
    elif p.sensitivity != "none":
        raise SettingsError(
            f"privacy.sensitivity is {p.sensitivity:g}, only {', '.join(NOISES)} add noise in "
            f"proportion to it, privacy.mechanism is {p.mechanism!r}; set it to 'none'"
        )


def check_sensitivity(p: PrivacySettings, classes: int) -> float:
    """Return the sensitivity to add noise for, L2 for 'gaussian', else L1.

    SettingsError where one is stated below what the clip enforces for this number of classes.
    """
    norm = 2 if p.mechanism == "gaussian" else 1
    enforced = sensitivity(p.clip_kind, p.clip, classes, norm)
    if p.sensitivity == "none":
        return enforced
    if p.sensitivity < enforced:
        raise SettingsError(
            f"privacy.sensitivity is {p.sensitivity:g}, must be at least {enforced:g}: the clip "
            f"{p.clip_kind!r} at privacy.clip {p.clip:g} lets two answers of {classes} classes be "
            f"that far apart (L{norm}), and less noise would not protect them; lower privacy.clip, "
            "or set privacy.sensitivity to 'none'"
        )
    return p.sensitivity


def check_uploads(s: Settings) -> None:
    """Refuse noise of no size, and whatever a holder would send past the clip or the noise."""
    if s.update.clip != "none":
        check_update_clip(s, s.update.clip)
    if not s.update.noise:
        return
    if s.update.clip == "none":
        raise SettingsError(
            f"update.noise is {s.update.noise:g} and update.clip 'none': the noise is in units of "
            "the clip; set update.clip to the norm of a usual update, as 1"
        )
    for key, value, needed in (
        ("local.control", s.local.control, "none"),
        ("cel.centres", s.cel.centres, "own"),
        ("cel.target", s.cel.target, "none"),
    ):
        if value != needed:
            raise SettingsError(
                f"{key} is {value!r} and update.noise {s.update.noise:g}: each holder would send "
                f"more than its noisy update; set {key} to {needed!r} or update.noise to 0"
            )


def check_update_clip(s: Settings, clip: float) -> None:
    """Refuse a clip where something else than a mean of short deltas is wanted."""
    if s.strategy.upload == "weights":
        raise SettingsError(
            f"update.clip is {clip:g} and strategy.upload 'weights': only a 'delta' is clipped; "
            "set update.clip to 'none', or strategy.name to one that takes deltas"
        )
    if s.temperature > 0:
        raise SettingsError(
            f"update.clip is {clip:g} and temperature {s.temperature:g}: clipped and noisy updates "
            "have another heat, and the chain would be no posterior; set temperature to 0"
        )
    sizes = (clip, clip * s.update.noise) if s.update.noise else (clip,)
    for value in sizes:
        if not SMALLEST < value < LARGEST:
            raise SettingsError(
                f"update.clip is {clip:g} and update.noise {s.update.noise:g}: clip and sigma must "
                f"lie between {SMALLEST:g} and {LARGEST:g}, where single precision can hold them"
            )
