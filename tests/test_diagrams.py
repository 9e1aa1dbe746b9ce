"""The diagrams of the concept pages are those that their program draws."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

FIGURES = Path(__file__).parents[1] / "docs" / "figures"


@pytest.fixture(scope="module")
def diagrams() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_diagrams", FIGURES / "draw_diagrams.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["bayes-rule", "split-inference"])
def test_a_kept_diagram_is_the_drawn_one(diagrams: ModuleType, name: str) -> None:
    """To the letter, so that neither is changed alone."""
    assert (FIGURES / f"{name}.svg").read_text() == diagrams.DIAGRAMS[name]()


def test_shares_of_the_images_add_up(diagrams: ModuleType) -> None:
    """Bayes' rule: the probabilities beneath the bars are of one law."""
    shares = diagrams.weigh_images((90.0, 250.0, 335.0), 55.0, 300.0)
    assert sum(shares) == pytest.approx(1)
    assert shares[2] == pytest.approx(shares[1] * 2.718281828 ** ((50**2 - 35**2) / (2 * 55**2)))
