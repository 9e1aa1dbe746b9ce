"""Maps of several encoders share one colour scale."""

import numpy as np

from sims.report.leak_strips import SENT, draw_leak_strips
from sims.report.reconstruction_strips import Strip


def test_colours_are_the_same_numbers_in_all_rows() -> None:
    """Equal numbers of two encoders have equal colours; a smaller one is darker."""
    information = np.array([[10.0, 1.0], [0.1, 0.0]])[None, None]
    deviation = np.array([[0.3, 0.1], [0.1, 0.0]])[None, None]
    sent = Strip("", SENT, deviation)
    maps = [
        ("weak", [sent], information / 10, deviation),
        ("strong", [], information, deviation / 3),
    ]
    strips, note = draw_leak_strips(maps, np.full((1, 1, 2, 2), 0.3))
    assert [(strip.group, strip.name) for strip in strips] == [
        *[("", SENT), ("weak", "exposed"), ("weak", "unknown")],
        *[("strong", "exposed"), ("strong", "unknown"), ("", "unknown without a message")],
    ]
    _, weak, weak_unknown, strong, strong_unknown, prior = (strip.images for strip in strips)
    assert weak.shape == (1, 3, 2, 2)
    assert (weak[..., 0, 0] == strong[..., 0, 1]).all()
    assert strong[..., 0, 0].sum() > strong[..., 0, 1].sum() > strong[..., 1, 0].sum()
    assert (weak_unknown[..., 0, 1] == strong_unknown[..., 0, 0]).all()
    assert (prior[..., 0, 0] == weak_unknown[..., 0, 0]).all()
    assert "from 0.01 to 10" in note
    assert "0 to 0.3" in note
