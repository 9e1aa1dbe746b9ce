"""The record of one attack with one attack seed, as it stands in the files of a run."""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict


class AttackRow(BaseModel):
    """One attack with one attack seed: how it was carried out, and what it found.

    What was not measured is None. Error and similarity are means over targets, with pixels in
    [0, 1]; identification is a share of the targets.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        populate_by_name=True,
        alias_generator=lambda name: name.replace("_", "-"),
    )

    attack: str
    observation: str | None = None
    """The kind of observation, such as `smashed-data`."""
    knowledge: str | None = None
    """Which images the attacker owns: `held-out`, `training-size`; the optimal one: `white-box`."""
    seed: int | None = None
    """The attack seed, 0, 1, ..."""
    skipped: str | None = None
    """Why the attack was not carried out, or how it failed."""
    budget: float | None = None
    """Multiple of the attack's default effort."""

    targets: int | None = None
    """Images that were reconstructed."""
    identification_candidates: int | None = None
    """Images among which the right one is picked."""
    queries: int | None = None
    """Observations that the attack paid for, where they are paid."""
    mse: float | None = None
    psnr: float | None = None
    ssim: float | None = None
    identification_1: float | None = None
    """How often the original is the nearest of the candidates."""
    identification_5: float | None = None
    label_accuracy: float | None = None
    """How often an independent classifier reads the right label off a reconstruction."""
    mean_mse: float | None = None
    """Error of who knows nothing: the mean of all images."""
    oracle_mse: float | None = None
    """Error of who knows the label: the mean of its class."""

    identification_optimal: float | None = None
    """How often the optimal attacker picks the right one of the candidates."""
    information_bits: float | None = None
    bits_beyond_label: float | None = None
    candidates: int | None = None
    """Images whose bits the optimal attacker measures."""
    information_cap: float | None = None
    bits_cap: float | None = None
    identification_half_width: float | None = None
    """Of the 95 % interval of `identification_optimal`."""
    seconds: float | None = None

    def with_results(self, **results: object) -> "AttackRow":
        """Make the same row with more fields set.

        Args:
            results: Values by the name of the field.

        Returns:
            The new row.

        Raises:
            ValueError: There is no such field, or a value is of another type.
        """
        return self.model_validate(self.model_dump(exclude_none=True) | results)

    @classmethod
    def from_dict(cls, row: Mapping[str, object]) -> "AttackRow":
        """Read a row of a JSON file; keys that an attack's row does not have are left out.

        Args:
            row: Values by kebab-case keys, `attack` among them.

        Returns:
            The row.

        Raises:
            ValueError: A value is of another type, or `attack` is missing.
        """
        keys = {name.replace("_", "-") for name in cls.model_fields}
        return cls.model_validate({key: value for key, value in row.items() if key in keys})

    def to_dict(self) -> dict[str, object]:
        """Dump the row for a JSON file: kebab-case keys, absent where nothing was measured.

        Returns:
            Values by key, in the order of the fields.
        """
        return self.model_dump(by_alias=True, exclude_none=True)
