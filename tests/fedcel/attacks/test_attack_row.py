"""The record of an attack's row."""

import pytest

from fedcel.attacks import AttackRow

ROW = {
    "attack": "decoder",
    "observation": "smashed-data",
    "seed": 0,
    "budget": 1.0,
    "targets": 60,
    "mse": 0.03,
    "identification-1": 0.5,
}


def test_what_was_read_is_written() -> None:
    """Keys in kebab-case, absent where nothing was measured."""
    row = AttackRow.model_validate(ROW)
    assert row.identification_1 == 0.5
    assert row.ssim is None
    assert row.to_json() == ROW


def test_keys_of_other_files_are_left_out() -> None:
    """Rows of a live service say more than an attack's row; a row that names no attack is none."""
    assert AttackRow.model_validate(ROW | {"service": "abc"}).to_json() == ROW
    with pytest.raises(ValueError, match="attack"):
        AttackRow.model_validate({"mse": 0.03})


def test_results_are_added() -> None:
    """The row itself stays; a name that is no field is refused."""
    row = AttackRow(attack="decoder")
    assert row.with_results(mse=0.1, label_accuracy=None).to_json() == {
        "attack": "decoder",
        "mse": 0.1,
    }
    assert row.mse is None
    with pytest.raises(ValueError, match="label-acuracy|label_acuracy"):
        row.with_results(label_acuracy=0.5)
