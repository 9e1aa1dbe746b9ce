"""Contradictions in rows of attacks."""

import pytest

from fedcel.attacks import AttackRow, MeasuredLeak, contradictions

BEST = {
    "attack": "optimal",
    "observation": "smashed-data",
    "identification-optimal": 0.6,
    "identification-half-width": 0.02,
    "information-bits": 5.0,
    "identification-candidates": 100,
}
DECODER = {
    "attack": "decoder",
    "observation": "smashed-data",
    "identification-1": 0.5,
    "targets": 400,
}


def find_contradictions(
    rows: list[dict[str, object]], result: dict[str, object] | None = None
) -> list[str]:
    leak = None if result is None else MeasuredLeak.model_validate(result)
    return contradictions.find_contradictions([AttackRow.model_validate(row) for row in rows], leak)


def changed(row: dict[str, object], **keys: object) -> dict[str, object]:
    return row | {key.replace("_", "-"): value for key, value in keys.items()}


def test_sound_rows() -> None:
    """A trained attack below, skipped rows, an observation that nobody knows the law of."""
    skipped = {"attack": "rmle", "observation": "smashed-data", "skipped": "needs mean"}
    other = changed(DECODER, observation="update", identification_1=1.0)
    assert find_contradictions([BEST, DECODER, skipped, other]) == []
    assert find_contradictions([]) == []


@pytest.mark.parametrize(("rate", "count"), [(0.65, 0), (0.665, 0), (0.68, 1), (1.0, 1)])
def test_beyond_both_intervals(rate: float, count: int) -> None:
    """.6 + .02 + 1.96 sqrt(.6 x .4 / 400) = .668 is the limit."""
    sentences = find_contradictions([BEST, changed(DECODER, identification_1=rate)])
    assert len(sentences) == count
    assert all("decoder picks the right image" in sentence for sentence in sentences)


def test_seeds_are_averaged() -> None:
    """One lucky seed is no contradiction."""
    lucky = changed(DECODER, identification_1=0.75, seed=1)
    assert find_contradictions([BEST, DECODER, lucky]) == []


def test_fewer_targets_than_candidates() -> None:
    """Among 20 the right one is easier to pick: no comparison."""
    assert find_contradictions([BEST, changed(DECODER, identification_1=0.9, targets=20)]) == []


def test_fano() -> None:
    """One bit about 100 images does not allow .6."""
    (sentence,) = find_contradictions([changed(BEST, information_bits=1.0)])
    assert "(Fano)" in sentence
    assert (
        find_contradictions([changed(BEST, information_bits=-0.01, identification_optimal=0.011)])
        == []
    )


def test_rows_that_say_too_little_are_not_looked_at() -> None:
    """Those of versions that stored less, whatever else is there."""
    for key in ("identification-candidates", "identification-half-width", "information-bits"):
        old = {name: value for name, value in BEST.items() if name != key}
        assert find_contradictions([old, changed(DECODER, identification_1=1.0)]) == []
        assert len(find_contradictions([old, BEST, changed(DECODER, identification_1=1.0)])) == 1


@pytest.mark.parametrize("way", [{"budget": 4.0}, {"knowledge": "training-size"}])
def test_a_weak_attack_hides_no_impossible_one(way: dict[str, object]) -> None:
    """The mean of .9 and .1 is .5, which may be."""
    weak = changed(DECODER, identification_1=0.1) | way
    (sentence,) = find_contradictions([BEST, weak, changed(DECODER, identification_1=0.9)])
    assert "0.900" in sentence


RESULT = {
    "bits-beyond-label": 0.56,
    "bits-half-width": 0.02,
    "certificate-bits-within-class": 0.53,
    "information-bits": 3.8,
    "information-half-width": 0.04,
    "certificate-bits": 4.5,
}


def test_bits_above_their_certificate() -> None:
    """Beyond twice the half width, of either information; within it they may be chance."""
    assert find_contradictions([], RESULT) == []
    (sentence,) = find_contradictions([], RESULT | {"bits-half-width": 0.01})
    assert "0.560 +- 0.010 bits beyond the label; its certificate allows 0.530" in sentence
    (sentence,) = find_contradictions([BEST, DECODER], RESULT | {"information-bits": 4.6})
    assert "4.600 +- 0.040 bits; its certificate allows 4.500" in sentence


def test_bits_at_their_certificate() -> None:
    """No noise: the bits are the cap, to rounding, and have no width."""
    exact = {"bits-half-width": 0.0, "bits-beyond-label": 0.53 + 1e-9}
    assert find_contradictions([], RESULT | exact) == []


@pytest.mark.parametrize("key", list(RESULT)[:3])
def test_results_that_say_too_little_are_not_looked_at(key: str) -> None:
    """Those of versions that stored less, and what is not certified."""
    wrong = RESULT | {"bits-beyond-label": 2.0}
    assert len(find_contradictions([], wrong)) == 1
    assert (
        find_contradictions([], {name: value for name, value in wrong.items() if name != key}) == []
    )
