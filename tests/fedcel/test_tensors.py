"""What users give is made tensors, or refused with a remedy that helps."""

import pytest
import torch

from fedcel.tensors import to_tensor


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
