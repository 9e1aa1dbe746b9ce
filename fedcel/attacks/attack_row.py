"""The record of one attack with one attack seed, as it stands in the files of a run."""

from collections.abc import Sequence
from typing import NamedTuple

from fedcel.json_records import Number, Record
from fedcel.leakage import UPDATE

REPEAT_MARK = "*"
"""In the name of an attack that sees several answers to one image, and of what it sees."""

CURVE_POINTS = 50
"""Epochs of a training whose errors are kept, the last one among them."""


def thin_curve(errors: Sequence[float]) -> list[tuple[int, float]]:
    """Choose at most `CURVE_POINTS` pairs of epoch, from 1, and error, up to the last epoch."""
    step = -(-len(errors) // CURVE_POINTS) or 1
    epochs = range(len(errors), 0, -step)
    return [(epoch, float(f"{errors[epoch - 1]:.4g}")) for epoch in reversed(epochs)]


def describe_stop(share: float | None, seconds: float | None) -> str:
    """Describe that an attack took a share of its steps only; empty where it took all of them."""
    return "" if share is None else f"stopped at {seconds or 0:g} s, {share:.0%} of its steps"


class AttackId(NamedTuple):
    """One attack as it was carried out; its runs differ in nothing but the attack seed."""

    attack: str
    observation: str = ""
    knowledge: str = ""
    budget: float | None = None
    targets: int | None = None
    candidates: int | None = None
    """Among how many images the right one was looked for."""
    seconds_limit: float = 0.0
    """The most seconds that it was given; 0: no limit."""
    upload: str = ""
    """Images, steps and received model behind an attacked update; empty of other observations."""

    @property
    def on_one_inference(self) -> bool:
        """Whether it sees a single inference: no upload, no repeated answers."""
        return self.observation != UPDATE and REPEAT_MARK not in self.attack + self.observation


class AttackConditions(Record):
    """Conditions of an attack."""

    attack: str
    observation: str = ""
    """The kind of observation, such as `smashed-data`."""
    knowledge: str = ""
    """Images that the attacker owns: `held-out`, `training-size`; the optimal one: `white-box`."""
    budget: Number = None
    """Multiple of the attack's default effort."""
    targets: int | None = None
    """Images that were reconstructed."""
    identification_candidates: int | None = None
    """Images among which the right one is picked."""
    seconds_limit: Number = None
    """The most seconds that the attack was given; None: no limit."""
    upload: str = ""
    """Images, steps and received model behind an attacked update; empty of other observations."""

    @property
    def id(self) -> AttackId:
        """Key of the attack, the same for every seed."""
        key = AttackId(*(getattr(self, name) for name in AttackConditions.model_fields))
        return key._replace(seconds_limit=self.seconds_limit or 0.0)


class AttackScores(AttackConditions):
    """Conditions of an attack, and scores of its reconstructions.

    Error and similarity are means over targets, with pixels in [0, 1]; identification is a share of
    the targets.
    """

    mse: Number = None
    psnr: Number = None
    ssim: Number = None
    identification_1: Number = None
    """Share of targets whose original is the nearest of the candidates."""
    identification_5: Number = None
    label_accuracy: Number = None
    """Share of reconstructions off which an independent classifier reads the right label."""
    mean_mse: Number = None
    """Error without any knowledge: of the mean of all images."""
    oracle_mse: Number = None
    """Error of an attacker who knows the label: of the mean of its class."""
    share_of_steps: Number = None
    """Share of its steps that the attack took before its time was up; None: all of them."""

    @property
    def stop_note(self) -> str:
        """Sentence part on an attack that was cut short; empty where it was not."""
        return describe_stop(self.share_of_steps, self.seconds_limit)


class AttackRow(AttackScores):
    """One attack with one attack seed: how it was carried out, and what it found.

    What was not measured is None, and absent in JSON.
    """

    seed: int | None = None
    """The attack seed, 0, 1, ..."""
    skipped: str | None = None
    """Why the attack was not carried out, or how it failed."""
    queries: int | None = None
    """Observations that the attack paid for, where they are paid."""
    identification_optimal: Number = None
    """Share of cases in which the optimal attacker picks the right one of the candidates."""
    identification_half_width: Number = None
    """Half the width of the 95 % interval of `identification_optimal`."""
    information_bits: Number = None
    bits_beyond_label: Number = None
    candidates: int | None = None
    """Images whose bits the optimal attacker measures."""
    information_cap: Number = None
    bits_cap: Number = None
    seconds: Number = None
    learning_curve: list[tuple[int, float]] | None = None
    """Epochs of a training, `CURVE_POINTS` at most, and the squared error on held-out images."""

    def with_results(self, **results: object) -> "AttackRow":
        """Make the same row with more fields set; ValueError on an unknown field or wrong type."""
        unknown = results.keys() - type(self).model_fields.keys()
        if unknown:
            raise ValueError(f"an attack's row has no {sorted(unknown)}; see AttackRow")
        set_fields = self.model_dump(exclude_none=True, exclude_unset=True)
        return self.model_validate(set_fields | results)

    def to_json(self) -> dict[str, object]:
        """Make the object that is written, by kebab-case keys: what was not measured is absent."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
