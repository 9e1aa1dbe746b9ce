"""Read records from files; what is missing or damaged is named, with the remedy."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from fedcel.errors import RunError
from fedcel.json_records import Record
from sims.results.records import RoundEvent

Parsed = TypeVar("Parsed")
REMEDY = "run it again"
AnyRecord = TypeVar("AnyRecord", bound=Record)


def parse_file(path: Path, parse: Callable[[str], Parsed], remedy: str = REMEDY) -> Parsed:
    """Return what a file's text is parsed to; RunError where it is missing or damaged."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path} is missing; {remedy}, or give another folder") from None
    except ValidationError as error:
        raise RunError(f"{path} is damaged: {describe_damage(error)}; {remedy}") from None
    except (OSError, TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}; {remedy}") from None


def describe_damage(error: ValidationError) -> str:
    """Return the first thing that is wrong, where it is, and what stands there."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "the file"
    value = "" if first["type"] == "missing" else f" (it is {first['input']!r:.60})"
    return f"{where}: {first['msg']}{value}"


def read_record(path: Path, kind: type[AnyRecord], remedy: str = REMEDY) -> AnyRecord:
    """Return the record in a file; RunError where it is missing or damaged."""
    return parse_file(path, kind.model_validate_json, remedy)


def read_records(path: Path, kind: type[AnyRecord], remedy: str = REMEDY) -> list[AnyRecord]:
    """Return a file's list of records, none where it is missing; RunError where it is damaged."""
    if not path.exists():
        return []
    return parse_file(path, TypeAdapter(list[kind]).validate_json, remedy)  # type: ignore[valid-type]


def parse_events(text: str) -> tuple[RoundEvent, ...]:
    """Return the rounds of a log; ValueError names the first line that is none."""
    events = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            events.append(RoundEvent.model_validate(json.loads(line)))
        except ValueError as error:
            raise ValueError(f"line {number} is no round: {str(error).splitlines()[0]}") from error
    return tuple(events)
