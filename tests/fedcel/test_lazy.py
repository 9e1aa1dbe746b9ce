"""Public names that are loaded when they are first used."""

import subprocess
import sys

import pytest

import fedcel
from fedcel import testing


def test_public_names_are_loaded_when_asked_for() -> None:
    """Each is available and listed; another is refused as Python does."""
    for package in (fedcel, testing):
        for name in package.__all__:
            assert getattr(package, name) is vars(package)[name]
        assert set(package.__all__) <= set(dir(package))
        with pytest.raises(AttributeError, match=f"'{package.__name__}' has no attribute 'typo'"):
            package.typo  # noqa: B018


def test_subpackages_are_attributes_and_cost_nothing_before() -> None:
    """They are listed by `dir`, not by `__all__`."""
    script = """
import sys, fedcel
assert "torch" not in sys.modules
assert "data" in dir(fedcel) and "data" not in fedcel.__all__
assert fedcel.data.Images is fedcel.Images
import torch
fedcel.private_logits(torch.zeros(1, 3), fedcel.Settings().privacy)
assert "opendp" in sys.modules and "sklearn" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
