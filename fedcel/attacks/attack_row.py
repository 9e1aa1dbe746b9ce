"""The record of one attack with one attack seed, as it stands in the files of a run."""

from typing import NamedTuple

from fedcel.json_records import Number, Record
from fedcel.leakage import UPDATE

REPEAT_MARK = "*"
"""In the name of an attack that sees several answers to one image, and of what it sees."""


class AttackId(NamedTuple):
    """One attack as it was carried out; its runs differ in nothing but the attack seed."""

    attack: str
    observation: str = ""
    knowledge: str = ""
    budget: float | None = None
    targets: int | None = None
    candidates: int | None = None
    """Among how many images the right one was looked for."""

    @property
    def on_one_inference(self) -> bool:
        """Say whether it sees what one inference shows: no upload, no repeated answers."""
        return self.observation != UPDATE and REPEAT_MARK not in self.attack + self.observation


class AttackConditions(Record):
    """How an attack was carried out."""

    attack: str
    observation: str = ""
    """The kind of observation, such as `smashed-data`."""
    knowledge: str = ""
    """Which images the attacker owns: `held-out`, `training-size`; the optimal one: `white-box`."""
    budget: Number = None
    """Multiple of the attack's default effort."""
    targets: int | None = None
    """Images that were reconstructed."""
    identification_candidates: int | None = None
    """Images among which the right one is picked."""

    @property
    def id(self) -> AttackId:
        """Return what runs of one attack have in common, whatever their seed."""
        return AttackId(
            self.attack,
            self.observation,
            self.knowledge,
            self.budget,
            self.targets,
            self.identification_candidates,
        )


class AttackScores(AttackConditions):
    """How an attack was carried out, and what its reconstructions score.

    Error and similarity are means over targets, with pixels in [0, 1]; identification is a share of
    the targets.
    """

    mse: Number = None
    psnr: Number = None
    ssim: Number = None
    identification_1: Number = None
    """How often the original is the nearest of the candidates."""
    identification_5: Number = None
    label_accuracy: Number = None
    """How often an independent classifier reads the right label off a reconstruction."""
    mean_mse: Number = None
    """Error of who knows nothing: the mean of all images."""
    oracle_mse: Number = None
    """Error of who knows the label: the mean of its class."""
    attribute_bits: Number = None
    """What the optimal attacker learns of an attribute beyond the label."""
    attribute_cap: Number = None
    """All of it: H(attribute | label)."""
    attribute_accuracy: Number = None
    """How often the attribute is named, the label known."""
    attribute_by_label: Number = None
    """How often it is named by the label alone."""
    attribute_by_others: Number = None
    """How often one names it who knows all candidates but the sender."""


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
    """How often the optimal attacker picks the right one of the candidates."""
    identification_half_width: Number = None
    """Half the width of the 95 % interval of `identification_optimal`."""
    information_bits: Number = None
    bits_beyond_label: Number = None
    candidates: int | None = None
    """Images whose bits the optimal attacker measures."""
    information_cap: Number = None
    bits_cap: Number = None
    seconds: Number = None

    def with_results(self, **results: object) -> "AttackRow":
        """Make the same row with more fields set.

        Args:
            results: Values by the name of the field.

        Returns:
            The new row.

        Raises:
            ValueError: There is no such field, or a value is of another type.
        """
        unknown = results.keys() - type(self).model_fields.keys()
        if unknown:
            raise ValueError(f"an attack's row has no {sorted(unknown)}; see AttackRow")
        set_fields = self.model_dump(exclude_none=True, exclude_unset=True)
        return self.model_validate(set_fields | results)

    def to_json(self) -> dict[str, object]:
        """Make the object that is written: what was not measured is not in it.

        Returns:
            Values by kebab-case keys.
        """
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
