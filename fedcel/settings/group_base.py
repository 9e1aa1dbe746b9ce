"""What all groups share."""

from difflib import get_close_matches
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, field_validator

from fedcel.errors import replace_unwritable
from fedcel.ranges import FRACTION, POSITIVE, Range

Off = Literal["none"]


class Words(NamedTuple):
    """What a setting takes, in plain words, where its type does not say it."""

    words: str


def to_kebab(name: str) -> str:
    """Return the TOML spelling of a Python name."""
    return name.replace("_", "-")


def parse_numbers(text: str) -> str:
    """Return a comma-separated list of numbers as it is; ValueError unless all are positive."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(map(POSITIVE.holds, values)):
        raise ValueError(f"must be numbers, separated by commas, each {POSITIVE.words}")
    return text


def within(limits: Range) -> AfterValidator:
    """Return a validator that takes the numbers of a range."""

    def check(value: float) -> float:
        if limits.holds(value):
            return value
        raise ValueError(f"must be {limits.words}")

    return AfterValidator(check)


def part_name(names: tuple[str, ...]) -> AfterValidator:
    """Return a validator that takes these names or an import string."""

    def check(name: str) -> str:
        if name in names or ":" in name:
            return name
        near = get_close_matches(name, names, 1, cutoff=0)[0]
        raise ValueError(
            f"must be one of {', '.join(names)} or 'package.module:object'; nearest: {near!r}"
        )

    return AfterValidator(check)


def part_words(names: tuple[str, ...]) -> Words:
    """Return in plain words what `part_name` takes."""
    return Words(f"{', '.join(names)}, or package.module:object")


PositiveList = Annotated[str, AfterValidator(parse_numbers), Words("numbers > 0, comma-separated")]
Positive = Annotated[float, within(POSITIVE), Words("number > 0")]
Fraction = Annotated[float, within(FRACTION), Words("number > 0 and < 1")]


class Group(BaseModel):
    """A frozen table; unknown keys are refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_kebab,
        populate_by_name=True,
        coerce_numbers_to_str=True,  # a list of one number is read as a number
    )

    @field_validator("*")
    @classmethod
    def refuse_unwritable(cls, value: object) -> object:
        """Refuse text that no file of a run can hold; ValueError."""
        if isinstance(value, str) and value != replace_unwritable(value):
            raise ValueError("must be of characters that UTF-8 has; rename the file or folder")
        return value
