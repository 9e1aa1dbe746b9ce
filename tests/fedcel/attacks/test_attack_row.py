"""The record of an attack's row."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcel.attacks import AttackRow
from fedcel.attacks.attack_row import CURVE_POINTS, thin_curve

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


@given(st.integers(0, 400))
def test_a_learning_curve_is_thinned(count: int) -> None:
    """The last epoch, at most so many, equally far apart; all of a short training."""
    curve = thin_curve([1 / epoch for epoch in range(1, count + 1)])
    epochs = [epoch for epoch, _ in curve]
    assert len(curve) <= CURVE_POINTS and epochs[-1:] == [count][:count]
    assert len({later - earlier for earlier, later in pairwise(epochs)}) <= 1
    assert count > CURVE_POINTS or epochs == list(range(1, count + 1))
    assert all(error == pytest.approx(1 / epoch, rel=1e-3) for epoch, error in curve)
