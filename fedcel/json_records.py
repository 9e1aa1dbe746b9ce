"""Records in JSON files: what writes them and what reads them shares one type."""

from pydantic import BaseModel, ConfigDict, FiniteFloat

Number = FiniteFloat | None
"""A measured number; None: not measured."""


class Record(BaseModel):
    """A JSON object with kebab-case keys; keys that are not known are left out."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        alias_generator=lambda name: name.replace("_", "-"),
    )

    def to_json(self) -> dict[str, object]:
        """Make the object that is written, by kebab-case keys: one that was never set is absent."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)
