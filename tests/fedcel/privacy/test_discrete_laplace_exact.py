"""The sampler's steps, followed as an exact tree: each value has the law's chance, in fractions.

A coin's randomness enters by `draw_below`, whose result is uniform. Each call of it is a fork into
all equally likely results, and every path is followed by the shipped functions themselves, with its
chance in fractions. A path is cut where it asks for more numbers than it may; a chance can differ
from the law by what the cut paths hold, and by nothing else.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch

from fedcel.privacy import discrete_laplace
from fedcel.privacy.discrete_laplace import (
    add_grid_noise,
    draw_below,
    draw_decayed,
    draw_discrete_laplace,
    draw_offsets,
    draw_runs,
)

Chances = dict[object, Fraction]
Numbers = Iterator[int]


class PathEndedError(Exception):
    """A path asks for more uniform numbers than are given."""

    def __init__(self, limit: int, count: int) -> None:
        self.limit, self.count = limit, count


def follow_all(work: Callable[[], object], most: int) -> tuple[Chances, Fraction]:
    """Return the chance of each result, and that of the paths of more than `most` numbers."""
    chances: Chances = defaultdict(Fraction)
    cut = Fraction(0)
    paths: list[tuple[tuple[int, ...], Fraction]] = [((), Fraction(1))]
    while paths:
        path, chance = paths.pop()
        given = iter(path)

        def below(limit: int, count: int, given: Numbers = given) -> np.ndarray:
            numbers = [next(given, None) for _ in range(count)]
            if None in numbers:
                raise PathEndedError(limit, count)
            return np.array(numbers, np.int64)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(discrete_laplace, "draw_below", below)
            try:
                chances[work()] += chance
                continue
            except PathEndedError as ended:
                limit, count = ended.limit, ended.count
        if len(path) + count > most:
            cut += chance
            continue
        share = chance / limit**count
        paths += [(path + more, share) for more in product(range(limit), repeat=count)]
    return chances, cut


@pytest.mark.parametrize(
    ("u", "t", "depth"), [(0, 3, 4), (1, 3, 6), (2, 3, 5), (1, 1, 8), (3, 5, 5)]
)
def test_a_bit_has_exactly_its_chance(u: int, t: int, depth: int) -> None:
    """Of the first paths' sums: 1 - x + x^2 / 2 - ..., which is exp(-x) as far as it goes."""
    chances, cut = follow_all(lambda: bool(draw_decayed(np.array([u]), t)[0]), depth)
    x = Fraction(u, t)
    assert cut == x**depth / math.factorial(depth)
    series = sum(((-x) ** k / math.factorial(k) for k in range(depth + 1)), Fraction(0))
    unfinished = cut if depth % 2 == 0 else Fraction(0)
    assert chances[True] + unfinished == series
    assert sum(chances.values()) + cut == 1


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 7, 8])
def test_words_give_uniform_numbers(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of words that can be 0 to 7, all are followed: each number is as likely as the others."""
    monkeypatch.setattr(discrete_laplace, "WORDS", 8)
    counts: dict[int, int] = defaultdict(int)
    rejected = 0
    for word in range(8):
        words = iter([word])

        def give(size: int, words: Numbers = words) -> bytes:
            return np.array([next(words)], np.uint64).tobytes()

        monkeypatch.setattr("os.urandom", give)
        try:
            counts[int(draw_below(limit, 1)[0])] += 1
        except StopIteration:
            rejected += 1  # it asks for another word
    assert set(counts) == set(range(limit))
    assert set(counts.values()) == {8 // limit}
    assert rejected == 8 % limit


@pytest.mark.parametrize("count", [1, 2, 3])
def test_offsets_are_the_first_that_are_accepted(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So u has the chance of exp(-u / t) over the sum of all: what comes after decides nothing."""
    stream = np.random.default_rng(0)
    for _ in range(200):
        numbers = iter(stream.integers(0, 5, 2_000))
        trials: list[tuple[int, bool]] = []

        def below(limit: int, size: int, numbers: Numbers = numbers) -> np.ndarray:
            assert limit == 5
            return np.array([next(numbers) for _ in range(size)])

        def decayed(u: np.ndarray, t: int, trials: list[tuple[int, bool]] = trials) -> np.ndarray:
            assert t == 5
            bits = stream.random(len(u)) < 0.1
            trials += zip(u.tolist(), bits.tolist(), strict=True)
            return bits

        monkeypatch.setattr(discrete_laplace, "draw_below", below)
        monkeypatch.setattr(discrete_laplace, "draw_decayed", decayed)
        offsets = draw_offsets(5, count).tolist()
        assert offsets == [u for u, accepted in trials if accepted][:count]


def test_runs_are_the_heads_before_each_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all ways in which ten coins fall: v heads and a tail have the chance e^-v (1 - 1/e)."""
    for bits in product((False, True), repeat=10):
        falls = [np.array(bits), np.zeros(100, bool)]

        def decayed(u: np.ndarray, t: int, falls: list[np.ndarray] = falls) -> np.ndarray:
            assert t == 1 and (u == 1).all()
            return falls.pop(0)

        monkeypatch.setattr(discrete_laplace, "draw_decayed", decayed)
        expected = [len(heads) for heads in "".join("ht"[not b] for b in bits).split("t")]
        assert draw_runs(1).tolist() == expected[:1]


@pytest.mark.parametrize("t", [1, 2, 3, 5])
@pytest.mark.parametrize("q", [Fraction(2, 3), Fraction(1, 5)])
def test_parts_make_exactly_the_law(t: int, q: Fraction) -> None:
    """With any q in place of exp(-1 / t): P(z) = (1 - q) / (1 + q) q^|z|, less what is cut.

    An offset u has the chance q^u (1 - q) / (1 - q^t), a run v that of q^(t v) (1 - q^t).
    """
    most_runs, tries = 6, 3
    chances: dict[int, Fraction] = defaultdict(Fraction)
    trials = [
        (u, v, sign, q**u * (1 - q) / (1 - q**t) * q ** (t * v) * (1 - q**t) / 2)
        for u in range(t)
        for v in range(most_runs)
        for sign in (0, 1)
    ]
    paths: list[tuple[tuple[tuple[int, int, int], ...], Fraction]] = [((), Fraction(1))]
    while paths:
        path, chance = paths.pop()
        for u, v, sign, share in trials:
            longer = (*path, (u, v, sign))
            z = run_on(t, longer)
            if z is not None:
                chances[z] += chance * share
            elif len(longer) < tries:
                paths.append((longer, chance * share))
    zero_again = ((1 - q) / 2) ** tries
    for z, chance in chances.items():
        law = (1 - q) / (1 + q) * q ** abs(z)
        assert chance == law * (1 - zero_again)
    assert set(chances) == set(range(1 - t * most_runs, t * most_runs))


def run_on(t: int, trials: tuple[tuple[int, int, int], ...]) -> int | None:
    """Return the draw that the sampler makes of offsets, runs and signs; None: it asks for more."""
    offsets, runs, signs = (iter(part) for part in zip(*trials, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(discrete_laplace, "draw_offsets", lambda _t, _n: np.array([next(offsets)]))
        patch.setattr(discrete_laplace, "draw_runs", lambda _n: np.array([next(runs)]))
        patch.setattr(discrete_laplace, "draw_below", lambda _limit, _n: np.array([next(signs)]))
        try:
            return int(draw_discrete_laplace(t, 1)[0])
        except StopIteration:
            return None


def test_a_block_is_drawn_without_knowing_the_row() -> None:
    """Whatever is served, the same is asked of the sampler, as often: its time tells no row."""
    asked: list[list[tuple[int, int]]] = []
    for row in ([0.0, 0.0, 0.0], [1.0, -1.0, 0.0], [-0.3, 0.3, 1e-9]):
        calls: list[tuple[int, int]] = []

        def draw(t: int, count: int, calls: list[tuple[int, int]] = calls) -> np.ndarray:
            calls.append((t, count))
            return np.zeros(count, np.int64)

        add_grid_noise(torch.tensor([row, row]), 4.0, 2.0, draw)
        asked.append(calls)
    assert asked[0] == asked[1] == asked[2]
    assert len(asked[0]) == 1
