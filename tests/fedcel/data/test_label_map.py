"""Tasks that are coarser than the images' classes, and the attribute that is left."""

import pytest
import torch

from fedcel.data import load_attributes, load_splits
from fedcel.errors import DataError
from fedcel.settings import DataSettings

FEW = {"train": 300, "validation": 40, "auxiliary": 50, "test": 60}


def test_each_kind_by_hand() -> None:
    """Own, parity, and a list."""
    y = torch.tensor([0, 1, 2, 3, 2])
    for labels, expected, classes in (
        ("own", [0, 1, 2, 3, 2], 4),
        ("parity", [0, 1, 0, 1, 0], 2),
        ("0,2, 1,0", [0, 2, 1, 0, 1], 3),
    ):
        data = DataSettings(labels=labels)
        assert data.map_labels(y, "here").tolist() == expected
        assert data.count_task_classes(4) == classes


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ("odd", "data.labels is 'odd'"),
        ("0,0,0,0", "must be 'own'"),
        ("0,2,0,2", "each used"),
        ("0,1", "there is a label 3"),
    ],
)
def test_refuses_what_is_no_task(labels: str, words: str) -> None:
    """Words, one class, a gap, too few."""
    with pytest.raises(DataError, match=words):
        DataSettings(labels=labels).map_labels(torch.arange(4), "here")


def test_attributes_are_those_of_the_splits() -> None:
    """Image by image, the same ones as without a task; classes and labels are the task's."""
    own, odd = DataSettings(**FEW), DataSettings(**FEW, labels="parity")
    fine, coarse = load_splits(own, 3, 1), load_splits(odd, 3, 1)
    attributes = load_attributes(odd, 3, 1)
    assert load_attributes(own, 3, 1) is None
    assert (fine.classes, coarse.classes) == (10, 2)
    assert torch.equal(fine.test.x, coarse.test.x)
    assert attributes is not None and torch.equal(fine.test.y, attributes)
    assert torch.equal(coarse.test.y, attributes % 2)


def test_no_classes_are_held_out_of_a_task() -> None:
    """Which are held out would no longer be classes."""
    with pytest.raises(DataError, match="leave one of them out"):
        load_splits(DataSettings(held_out_classes=2, labels="parity"), 3, 0)
