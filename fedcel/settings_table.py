"""Options: frozen objects whose fields are the keys of a settings table.

A part that comes in kinds has one class a kind. Its fields are the keys of that kind, its rules
stand in it, and it computes what the kind computes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from fedcel.errors import SettingsError, replace_unwritable
from fedcel.ranges import FRACTION, POSITIVE, Range

Off = Literal["none"]


class Words(NamedTuple):
    """Values that a setting takes, in plain words, where its type does not say it."""

    words: str


def to_kebab(name: str) -> str:
    """Return the TOML spelling of a Python name."""
    return name.replace("_", "-")


def within(limits: Range) -> AfterValidator:
    """Return a validator that takes the numbers of a range."""

    def check(value: float) -> float:
        if limits.holds(value):
            return value
        raise ValueError(f"must be {limits.words}")

    return AfterValidator(check)


Positive = Annotated[float, within(POSITIVE), Words("number > 0")]
Fraction = Annotated[float, within(FRACTION), Words("number > 0 and < 1")]


class Options(BaseModel):
    """Frozen table of settings; unknown keys are refused.

    A field whose class is a `Kind` of the same table shares the table: its keys stand among the
    others, and the kind is selected by the field's own key.
    """

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

    @model_validator(mode="before")
    @classmethod
    def _gather_parts(cls, raw: object) -> object:
        """Move the keys of a part that shares this table into a table of its own."""
        if not isinstance(raw, Mapping):
            return raw
        table = dict(raw)
        for name, part in cls.list_parts():
            spelling = next((key for key in table if to_kebab(key) == name), name)
            if isinstance(table.get(spelling), Kind):
                continue
            keys = part.list_keys()
            gathered = {to_kebab(key): key for key in table if to_kebab(key) in keys}
            table[name] = {key: table.pop(given_key) for key, given_key in gathered.items()}
        return table

    @model_validator(mode="after")
    def _check_rules(self) -> "Options":
        self.check_rules()
        return self

    def check_rules(self) -> None:
        """Refuse options that contradict each other or have no effect: SettingsError."""

    @model_serializer(mode="wrap")
    def _flatten_parts(self, serialise: Callable[[object], dict[str, Any]]) -> dict[str, object]:
        """Write the keys of a part that shares this table among the others."""
        table: dict[str, object] = {}
        if isinstance(self, Kind) and self.kind_name != self.family.default_kind():
            table[self.selector] = self.kind_name  # also where defaults are left out
        parts = {name for name, _ in self.list_parts()}
        for key, value in serialise(self).items():
            table |= value if key in parts else {key: value}
        return table

    @classmethod
    def list_parts(cls) -> "Iterator[tuple[str, type[Kind]]]":
        """List the parts that share this table, by the key that selects each."""
        for field in cls.model_fields.values():
            part = field.annotation
            if isinstance(part, type) and issubclass(part, Kind) and part.shares_table:
                yield str(field.alias), part


def describe_kind(name: str) -> str:
    """Name a kind of `Kind.kinds` in quotes, or in words those that an import string names."""
    return "an import string" if name == ":" else repr(name)


class Kind(Options):
    """Base of a part that comes in kinds, each a subclass of its own.

    Example:
        >>> class Prior(Kind, table="prior", selector="mode"):
        ...     mode: str = Field("fixed", description="Prior at the received model.")
        >>> class FixedPrior(Prior):
        ...     mode: Literal["fixed"] = "fixed"
        ...     width: Positive = Field(1.0, description="Standard deviation.")
        >>> Prior.model_validate({"mode": "fixed", "width": 2}).width
        2.0

    The class of parts that import strings name is made with `is_imported=True`; a class with
    `prefixes=("library",)` has all names `library:NAME`.

    Attributes:
        family: Base class of the kinds.
        table: Name of the settings table, for messages.
        selector: Key that names the kind; its default is that of the base class.
        shares_table: Whether the keys stand in the table of the object that holds the part.
        kinds: Class of each kind, by its name.
        idle_keys: Keys of the family that have no effect in this kind, which takes their defaults
            only.
    """

    family: ClassVar[type["Kind"]]
    table: ClassVar[str]
    selector: ClassVar[str]
    shares_table: ClassVar[bool] = False
    kinds: ClassVar[dict[str, type[Any]]]
    idle_keys: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(
        cls,
        *,
        table: str | None = None,
        selector: str = "kind",
        shares_table: bool = False,
        is_imported: bool = False,
        prefixes: tuple[str, ...] = (),
        **more: Any,
    ) -> None:
        """Begin a family of kinds, where a table is named."""
        super().__init_subclass__(**more)
        if table is not None:
            cls.family, cls.table, cls.selector, cls.kinds = cls, table, selector, {}
            cls.shares_table = shares_table

    @classmethod
    def __pydantic_init_subclass__(
        cls, *, is_imported: bool = False, prefixes: tuple[str, ...] = (), **_: Any
    ) -> None:
        """Register a kind by the names that its selector may have; one without a table is not."""
        if not hasattr(cls, "selector"):
            return
        names = get_args(cls.model_fields[cls.selector].annotation)
        colons = [f"{prefix}:NAME" for prefix in prefixes] or [":"] * is_imported
        for name in colons or names:
            cls.kinds[name] = cls

    @model_validator(mode="wrap")
    @classmethod
    def _select_kind(cls, raw: object, build: Callable[[object], "Kind"]) -> "Kind":
        """Build the class of the kind that a table names."""
        if not isinstance(raw, Mapping) or cls in cls.kinds.values():
            return build(raw)
        chosen = cls.find_kind(raw.get(cls.selector, cls.default_kind()))
        cls._refuse_keys_of_others(chosen, raw)
        selected: Kind = chosen.model_validate({cls.selector: cls.default_kind(), **raw})
        return selected

    @property
    def kind_name(self) -> str:
        """Name of the kind, or the import string."""
        return str(getattr(self, self.selector))

    @classmethod
    def default_kind(cls) -> str:
        """Name of the kind where none is given."""
        return str(cls.model_fields[cls.selector].default)

    @classmethod
    def find_kind(cls, name: object) -> type[Any]:
        """Find the class of a kind; ValueError names those that there are."""
        prefix, colon, _ = str(name).partition(":")
        for key in (f"{prefix}:NAME", colon or str(name)):
            if key in cls.kinds:
                return cls.kinds[key]
        names = cls.list_names()
        imported = " or 'package.module:object'" if ":" in cls.kinds else ""
        near = get_close_matches(str(name), names, 1, cutoff=0)[0]
        raise SettingsError(
            f"{cls.table}.{cls.selector} is {name!r}, must be one of {', '.join(names)}{imported}; "
            f"nearest: {near!r}"
        )

    @classmethod
    def list_names(cls) -> list[str]:
        """List the names of the project's own kinds."""
        return [name for name in cls.kinds if name != ":"]

    @classmethod
    def list_keys(cls) -> dict[str, list[str]]:
        """List the keys of all kinds, each with the names of the kinds that have it."""
        kinds_of: dict[str, list[str]] = {}
        for name, kind in cls.kinds.items():
            for field in kind.model_fields.values():
                kinds_of.setdefault(str(field.alias), []).append(name)
        return kinds_of

    @classmethod
    def _refuse_keys_of_others(cls, chosen: type["Kind"], raw: Mapping[str, object]) -> None:
        """Refuse keys that only other kinds have; SettingsError names these kinds."""
        chosen_keys = {str(field.alias) for field in chosen.model_fields.values()}
        for key, kinds in cls.list_keys().items():
            if key in raw and key not in chosen_keys:
                selector, name = f"{cls.table}.{cls.selector}", raw.get(cls.selector)
                value = cls.default_kind() if name is None else name
                names = [describe_kind(name) for name in kinds]
                raise SettingsError(
                    f"{cls.table}.{key} is of {selector} {' or '.join(names)}, and {selector} is "
                    f"{value!r}, which has no such key; remove it, or set {selector}"
                )


LIMITS = {
    "bool_parsing": "true or false",
    "finite_number": "finite",
    "float_parsing": "a number",
    "greater_than": "above {gt:g}",
    "greater_than_equal": "{ge:g} or more",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "less_than": "below {lt:g}",
    "less_than_equal": "{le:g} or less",
    "literal_error": "{expected}",
}
"""Meaning of pydantic's kinds of error for a value, in words."""


def describe_problems(error: ValidationError, known_keys: Iterable[str], prefix: str = "") -> str:
    """Describe each refused setting in a line: its value, and what it must be."""
    names = {part for key in known_keys for part in key.split(".")}
    limits: dict[str, list[str]] = {}
    for problem in error.errors():
        path = [part for part in problem["loc"] if isinstance(part, str) and part in names]
        key = ".".join([*path[:1], *path[1:][-1:]])  # a part may share its owner's table
        context = problem.get("ctx", {})
        words = problem["msg"].removeprefix("Input should be ")
        if isinstance(context.get("error"), SettingsError):  # a rule between fields
            limits.setdefault(str(context["error"]), [])
            continue
        if "error" in context:  # of a validator of this project
            words = str(context["error"]).removeprefix("must be ")
        elif problem["type"] in LIMITS:
            words = LIMITS[problem["type"]].format(**context)
        limits.setdefault(f"{prefix}{key} is {problem['input']!r}", []).append(words)
    return "\n".join(
        f"{value}, must be {', or '.join(words)}" if words else value
        for value, words in limits.items()
    )
