"""Tables of options, and parts that come in kinds."""

from typing import Literal

import pytest
from pydantic import Field

from fedcel.errors import SettingsError
from fedcel.posterior import LocalSettings
from fedcel.posterior.schedule import ConstantStepSize
from fedcel.settings import drop_foreign_keys, dump_settings, merge_layers, parse_settings
from fedcel.settings_table import Kind, Options, Positive


class Partition(Kind, table="data", selector="partition", shares_table=True):
    """Family of kinds whose keys stand among those of its owner."""

    partition: str = Field("iid", description="Kind.")


class Even(Partition):
    """Kind without an option."""

    partition: Literal["iid"] = "iid"


class Skewed(Partition):
    """Kind with an option."""

    partition: Literal["dirichlet"] = "dirichlet"
    alpha: Positive = Field(0.5, description="Concentration.")


class OwnPartition(Partition, is_imported=True):
    """Kind of import strings."""


class Table(Options):
    train: int = 0
    partition: Partition = Even()


class LongNamed(Options):
    """Owner whose part has a name that TOML spells otherwise."""

    data_split: Partition = Even()


def test_the_selected_kind_is_built_from_the_owners_table() -> None:
    """And is written back into it."""
    raw = {"train": 3, "partition": "dirichlet", "alpha": 2.0}
    table = Table.model_validate(raw)
    assert table.partition == Skewed(alpha=2.0)
    assert table.model_dump(by_alias=True, serialize_as_any=True) == raw
    assert Table(partition=Skewed(alpha=2.0)).partition == table.partition
    assert Table.model_validate({}) == Table()
    own = Table.model_validate({"partition": "mine:deal"}).partition
    assert isinstance(own, OwnPartition) and own.kind_name == "mine:deal"


def test_a_part_is_given_by_either_spelling_of_its_name() -> None:
    """In Python's and in TOML's, as an object; or by its keys."""
    part = Skewed(alpha=2.0)
    by_name, by_alias = LongNamed(data_split=part), LongNamed.model_validate({"data-split": part})
    by_keys = LongNamed.model_validate({"partition": "dirichlet", "alpha": 2.0})
    assert by_name.data_split == by_alias.data_split == by_keys.data_split == part
    assert LocalSettings(step_size=ConstantStepSize(rate=0.5)).step_size.rate == 0.5


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            {"alpha": 1.0},
            "data.alpha is of data.partition 'dirichlet', and data.partition is 'iid'",
        ),
        ({"partition": "dirichlt"}, "must be one of iid, dirichlet or 'package.module:object'"),
        ({"partition": "dirichlet", "alpha": -1.0}, "finite and above 0"),
        ({"partition": "iid", "beta": 1.0}, "Extra inputs"),
    ],
)
def test_what_a_kind_does_not_have_is_refused(raw: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Table.model_validate(raw)


def test_a_later_layer_with_another_kind_ends_the_options_of_the_first() -> None:
    """But not what it says itself, and not the options that both kinds have."""
    fixed = {"prior.mode": "fixed", "prior.width": 2.0, "prior.scale": 3.0}
    merged = merge_layers(fixed, {"prior": {"mode": "consistent", "pull": 0.2}})
    assert merged == {"prior.mode": "consistent", "prior.pull": 0.2, "prior.scale": 3.0}
    stays = {"prior.mode": "fixed", "prior.scale": 3.0}
    assert drop_foreign_keys(fixed, {"prior.mode": "none"}) == stays
    assert drop_foreign_keys(fixed, {"prior.mode": "unknown"}) == fixed
    with pytest.raises(SettingsError, match="prior.width is of prior.mode 'fixed'"):
        parse_settings(fixed, {"prior.mode": "consistent", "prior.width": 1.0})
    settings = parse_settings(fixed)
    assert parse_settings(dump_settings(settings)) == settings
