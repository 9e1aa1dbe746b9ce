"""Labels of any whole numbers: taken as they are, counted by what they are, or refused clearly."""

import numpy as np
import pytest
import torch

from fedcel.tensors import count_alike, number_labels, to_labels, to_tensor

WHOLE = ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", ">u2", ">i8")


@pytest.mark.parametrize("dtype", WHOLE)
def test_labels_of_every_whole_type(dtype: str) -> None:
    """PyTorch has no least number of unsigned ones, and no bytes in another order."""
    array = np.array([3, 0, 100, 3]).astype(dtype)
    assert to_labels(array, 4).tolist() == [3, 0, 100, 3]
    assert to_labels(array[::-1], 4).dtype == torch.int64
    assert to_labels(np.zeros(0, dtype), 0).tolist() == []


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.int8])
def test_labels_that_are_tensors(dtype: torch.dtype) -> None:
    """Of the types that have few operations."""
    assert to_labels(torch.tensor([3, 0, 3]).to(dtype), 3).tolist() == [3, 0, 3]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, -1, 2], r"hold -1, must be whole numbers from 0 and below 2\^63"),
        (np.array([0, 2**63, 1], dtype="u8"), "hold 9223372036854775808, must be"),
        ([0, 2**70, 1], "must be .* numbers .*numpy.unique"),
        ([0.0, 1.0, 2.0], r"of type torch.float64, must be whole .*numpy.unique\("),
        (torch.ones(3), r"of type torch.float32, must be whole .*torch.unique\("),
        ([True, False, True], r"of type torch.bool, must be whole numbers .*numpy.unique\("),
        (["a", "b", "a"], "labels are list, must be .* numbers .*text.*numpy.unique"),
        ([None, 1, 2], "must be .* numbers .*numpy.unique"),
        ([[1], [2, 3], 4], "must be .* numbers"),
        ([torch.ones((), requires_grad=True)] * 3, "must be .* numbers .*requires grad"),
        (np.array(["2020-01-01"] * 3, "datetime64[D]"), "must be .* numbers"),
        ([[0], [1], [2]], r"of shape \(3, 1\), must be \(3,\): one for each image"),
        ([0, 1], r"of shape \(2,\), must be \(3,\)"),
    ],
)
def test_what_is_no_label_is_refused(labels: object, message: str) -> None:
    """ValueError: what it is, what is allowed, and what helps."""
    with pytest.raises(ValueError, match=message):
        to_labels(labels, 3)


def test_numbers_of_people_become_small() -> None:
    """In their order, alike in all parts; what is given stays."""
    first, second = torch.tensor([10**12, 0, 5]), torch.tensor([7, 10**12])
    numbers = number_labels(first, second)
    assert [part.tolist() for part in numbers] == [[3, 0, 1], [2, 3]]
    assert first.tolist() == [10**12, 0, 5]
    assert count_alike(torch.tensor([10**12, 0, 10**12])).tolist() == [2, 1, 2]


def test_a_text_is_no_number() -> None:
    """And words about labels would not help who gave noise."""
    with pytest.raises(ValueError, match="noise are str, must be a tensor") as got:
        to_tensor("0.3", "noise")
    assert "unique" not in str(got.value)


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        ("0.3", "noise are str, .*the text '0.3': leave the quotes out, or convert it with float"),
        (["0.3"] * 4, "noise are list, .*the text .'0.3', .*: leave the quotes out"),
        ("little", "noise are str, .*the text 'little': leave the quotes out"),
    ],
)
def test_a_number_in_quotes_is_told(noise: object, words: str) -> None:
    """Nobody looks for classes in a noise."""
    with pytest.raises(ValueError, match=words) as refusal:
        to_tensor(noise, "noise")
    assert "unique" not in str(refusal.value)


def test_a_tensor_of_inference_mode_is_copied() -> None:
    """Outside it nothing can be learned from one."""
    with torch.inference_mode():
        values = torch.ones(3)
    assert not to_tensor(values, "values").is_inference()
