"""Descent on pixels, against minima known by hand."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcel.attacks.pixel_descent import DescentSteps, descend_pixels, total_variation


def test_minimum_inside_and_at_the_edge() -> None:
    """|x - c|^2 from grey: c where it is in [0, 1], else the nearest pixel that is."""
    centre = torch.tensor([0.2, 0.9, 1.7, -0.3]).view(4, 1, 1, 1)
    rebuilt = descend_pixels(
        lambda x: (x - centre).square().flatten(1).sum(1), torch.full((4, 1, 1, 1), 0.5), STEPS
    )
    torch.testing.assert_close(rebuilt.flatten(), torch.tensor([0.2, 0.9, 1, 0]), atol=1e-3, rtol=0)


STEPS = DescentSteps(300, 0.05)


def test_rows_do_not_mix() -> None:
    """A row's path is the same alone and among others."""
    x = torch.rand(5, 1, 4, 4, generator=torch.Generator().manual_seed(1))

    def loss(images: torch.Tensor) -> torch.Tensor:
        return (images.flatten(1).sum(1) - 3).square() + 0.1 * total_variation(images)

    together = descend_pixels(loss, x, DescentSteps(20, 0.05))
    torch.testing.assert_close(descend_pixels(loss, x[2:3], DescentSteps(20, 0.05)), together[2:3])


@settings(deadline=None)
@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_total_variation_by_hand(a: float, b: float) -> None:
    """Two halves: one jump of |a - b| in each row of 4, of the 3 gaps; nothing down."""
    image = torch.full((1, 1, 4, 4), a)
    image[..., 2:] = b
    wanted = abs(a - b) / 3
    torch.testing.assert_close(total_variation(image), torch.tensor([wanted]), atol=1e-6, rtol=0)


def test_budget_multiplies_steps() -> None:
    """At least one is left."""
    assert DescentSteps(100, 0.1).scaled(2.5) == DescentSteps(250, 0.1)
    assert DescentSteps(100, 0.1).scaled(1e-9).number == 1
