"""The time of attacks: estimated, told, and limited."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import fedcel
from fedcel.attacks import AttackRow, attack_clock, kernel_ridge, pixel_descent, run_attacks
from fedcel.attacks.attack_clock import AttackClock, check_memory, describe_time
from fedcel.errors import SizeError
from fedcel.settings import AttackSettings
from fedcel.testing.attacks import load_digit_targets
from tests.fedcel.attacks.test_runner import smashed, without_seconds


class FakeTime:
    """A clock that only moves when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(attack_clock, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """Return the time that clocks see."""
    return FakeTime(monkeypatch)


def test_without_a_limit_all_steps_are_taken(passing: FakeTime) -> None:
    """However long they take."""
    clock = AttackClock()
    for _ in clock.steps(10):
        passing.now += 1e6
    assert not clock.is_over and clock.share_of_steps is None


def test_steps_end_when_the_time_is_up(passing: FakeTime) -> None:
    """Of 100 steps of 1 s, those that begin within 34.5 s are taken, whole."""
    clock = AttackClock(34.5)
    taken = []
    for step in clock.steps(100):
        taken.append(step)
        passing.now += 1
    assert taken == [*range(1, 36)] and clock.share_of_steps == pytest.approx(0.35)


def test_loops_get_the_time_that_is_left_by_their_shares(passing: FakeTime) -> None:
    """A quarter of the work gets a quarter of the time; what it leaves goes to the others."""
    clock = AttackClock(100.0)
    first = sum(1 for _ in pace(clock.steps(50, share=0.25), passing))
    second = sum(1 for _ in pace(clock.steps(10, share=0.5), passing))
    third = sum(1 for _ in pace(clock.steps(100), passing))
    assert (first, second, third) == (25, 10, 65)
    taken = 0.25 * 25 / 50 + 0.75 * 0.5 + 0.75 * 0.5 * 65 / 100
    assert clock.share_of_steps == pytest.approx(taken)


def pace(steps, passing: FakeTime, seconds: float = 1.0):  # type: ignore[no-untyped-def]
    """Yield steps that take so long."""
    for step in steps:
        yield step
        passing.now += seconds


def test_loops_to_come_may_be_timed_in_place_of_their_share(passing: FakeTime) -> None:
    """Half the work takes 20 s: 40 s by its share, 120 s where 100 more were timed."""
    told: list[str] = []
    for seconds in (None, 100.0):
        clock = AttackClock(tell=told.append)
        clock.expect(seconds)
        assert sum(1 for _ in pace(clock.steps(20, share=0.5), passing)) == 20
    assert told == ["takes about 40 s", "takes about 2 min"]


def test_a_loop_that_ends_by_itself_is_not_cut_short(passing: FakeTime) -> None:
    """As a training that finds nothing better."""
    clock = AttackClock(100.0)
    for step in pace(clock.steps(50), passing):
        if step == 10:
            break
    assert clock.share_of_steps is None


def test_a_step_ends_within_its_parts(passing: FakeTime) -> None:
    """A long epoch is left after the batch under way; the first batch is always taken."""
    clock = AttackClock(5.0)
    batches = [len([*pace(clock.parts(range(20)), passing)]) for _ in clock.steps(3)]
    assert batches == [5] and clock.share_of_steps == pytest.approx(1 / 3)
    clock = AttackClock(5.0)
    passing.now += 6
    assert [*clock.steps(3)] == [] and [*clock.steps(3, least=1)] == [1]
    assert [*clock.parts([7, 8])] == [7]


@pytest.mark.parametrize(
    ("seconds", "line"),
    [(0.0, "takes about 4 min"), (60.0, "takes about 4 min, and is stopped after 60 s")],
)
def test_the_time_is_told_once_after_a_second(seconds: float, line: str, passing: FakeTime) -> None:
    """By the steps after the first, which is slow: 5 s and 250 times 1 s."""
    told: list[tuple[float, str]] = []
    clock = AttackClock(seconds, lambda line: told.append((passing.now, line)))
    for step in clock.steps(125, share=0.5):
        passing.now += 5 if step == 1 else 1
    assert told == [(5 + 1, line)]


def test_an_epoch_is_timed_by_its_batches(passing: FakeTime) -> None:
    """20 s of batches and 10 s of what follows them, of which `work` tells."""
    told: list[str] = []
    clock = AttackClock(tell=told.append)
    for _ in clock.steps(10, work=3.0):
        for _ in clock.parts(range(20), work=2.0):
            passing.now += 1
        assert told == ["takes about 5 min"]
        passing.now += 10


def test_hours_are_refused_unless_they_are_limited(passing: FakeTime) -> None:
    """In a sentence that says how long, and the remedy."""
    clock = AttackClock(tell=lambda line: None)
    with pytest.raises(SizeError, match=r"would take about 27\.8 h at this size; limit it"):
        list(pace(clock.steps(100_000), passing))
    assert passing.now == 2
    clock = AttackClock(10.0, tell=lambda line: None)
    assert sum(1 for _ in pace(clock.steps(100_000), passing)) == 10


def test_times_in_words() -> None:
    """Seconds, minutes, hours."""
    times = [describe_time(seconds) for seconds in (12.4, 240.0, 7300.0)]
    assert times == ["12 s", "4 min", "2.0 h"]


def test_more_memory_than_is_free_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With both numbers."""
    file = tmp_path / "meminfo"
    monkeypatch.setattr(attack_clock, "MEMORY_FILE", file)
    check_memory(1e15)  # nobody knows
    file.write_text("MemTotal: 9000000 kB\nMemAvailable:    2000000 kB\n")
    check_memory(1.6e9)
    with pytest.raises(SizeError, match=r"about 3\.1 GB of memory at this size, and 2\.0 are free"):
        check_memory(3.1e9)


ITERATING = ["decoder", "decoder-large", "gauss-newton", "rmle", "hybrid-inversion", "shadow"]


@pytest.mark.parametrize("name", [*ITERATING, "decoder*2"])
def test_each_attack_ends_when_its_time_is_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is up at once: a picture of each target, and a row that says so."""
    monkeypatch.setattr(
        attack_clock, "time", SimpleNamespace(monotonic=map(float, range(10**9)).__next__)
    )
    how = AttackSettings(names=name, seeds=1, targets=4, seconds=0.5)
    (row,) = run_attacks([smashed()], how, *load_digit_targets(), seed=1).rows
    assert row.skipped is None and row.mse is not None
    assert row.seconds_limit == 0.5
    assert row.share_of_steps is not None and row.share_of_steps < 0.5
    assert row.stop_note == f"stopped at 0.5 s, {row.share_of_steps:.0%} of its steps"
    assert row.seconds is not None and row.seconds < 20


def test_a_limit_that_is_not_reached_changes_nothing_but_the_row() -> None:
    """The same bits; such a row does not replace that of an attack without a limit."""
    how = AttackSettings(names="decoder", seeds=1, targets=4, budget=0.02)
    (free,), (limited,) = (
        run_attacks([smashed()], each, *load_digit_targets(), seed=1).rows
        for each in (how, how.model_copy(update={"seconds": 1e6}))
    )
    expected = {**free.to_json(), "seconds-limit": 1e6}
    assert without_seconds([limited.to_json()]) == without_seconds([expected])
    assert free.id.seconds_limit == 0 and limited.id == free.id._replace(seconds_limit=1e6)
    assert "stopped" not in limited.stop_note


def test_an_attack_of_hours_leaves_a_row_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no failure: the others go on."""
    monkeypatch.setattr(
        attack_clock, "time", SimpleNamespace(monotonic=map(float, range(10**9)).__next__)
    )
    monkeypatch.setattr(attack_clock, "MOST_SECONDS", 100.0)
    how = AttackSettings(names="rmle,optimal", seeds=1, targets=4)
    first, second = run_attacks([smashed()], how, *load_digit_targets(), seed=1).rows
    assert first.skipped is not None and first.skipped.startswith("it would take about")
    assert second.skipped is None


@pytest.mark.parametrize("name", ["rmle", "hybrid-inversion", "kernel-ridge"])
def test_attacks_that_memory_is_too_small_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before they take it: so many rows, each with what the encoder's gradient needs."""
    sizes: list[float] = []

    def refuse(size: float) -> None:
        sizes.append(size)
        raise SizeError("too large")

    for module in (pixel_descent, kernel_ridge):
        monkeypatch.setattr(module, "check_memory", refuse)
    how = AttackSettings(names=name, seeds=1, targets=4, budget=0.02)
    (row,) = run_attacks([smashed()], how, *load_digit_targets(), seed=1).rows
    assert row.skipped == "too large" and sizes[0] > 0


def test_the_memory_of_a_descent_is_that_of_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image and its hidden units, in float32, of each row; parameters are not counted."""
    sizes: list[float] = []
    monkeypatch.setattr(pixel_descent, "check_memory", sizes.append)
    observation = smashed()
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 1000), nn.Sigmoid(), nn.Linear(1000, 10))
    wide = replace(
        observation, net=fedcel.nets.SplitNet(encoder, nn.Identity(), observation.net.cut, 10)
    )
    pixel_descent.check_graph_memory(wide, torch.zeros(1, 8, 8), 100)
    assert 100 * 4 * 1000 <= sizes[0] <= 100 * 4 * 1200


def test_rows_say_when_an_attack_was_cut_short() -> None:
    """And nothing where it was not."""
    row = AttackRow(attack="decoder", seconds_limit=60, share_of_steps=0.341)
    assert row.stop_note == "stopped at 60 s, 34% of its steps"
    assert AttackRow(attack="decoder", seconds_limit=60).stop_note == ""
