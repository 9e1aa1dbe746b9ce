"""What a report says of itself: its choice, its seeds, what failed."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from fedcel.attacks import ATTACKS, AttackRow
from fedcel.settings import Settings
from sims.report.book import FinishedRun
from sims.report.summary import Summary
from sims.report.verdict import describe_left_out, describe_seeds, find_verdict, list_limits
from sims.results.records import FailedCell, RejectedReply, RoundEvent, RunResult
from tests.sims.report.made import cell

NONE = cell("none", 0.951, 4.46)


def run_with(result: RunResult, events: tuple[RoundEvent, ...] = ()) -> FinishedRun:
    return FinishedRun("r", Settings(), events, result, (), {})


def limits_of(
    summaries: list[Summary], failed: Sequence[FailedCell] = (), served: Iterable[str] = ()
) -> list[str]:
    return list(list_limits(find_verdict(summaries), failed, served))


def test_limits_print_m_and_cap() -> None:
    text = " ".join(limits_of([NONE]))
    assert "best of" not in text
    assert "cannot be seeded" in text
    assert "M = 397" in text
    assert "5.3 bits" in text


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([1, 1], "Training seeds of each variant: 1. Too few for an interval"),
        ([2, 1], "Training seeds of each variant: 2; v1: 1. Too few for an interval"),
        ([4, 4], "Training seeds of each variant: 4. ±: 95 % interval of the mean over seeds"),
        ([3, 4, 2], "Training seeds of each variant: 4; v0: 3; v2: 2. ±: 95 % interval"),
    ],
)
def test_how_many_seeds_each_variant_has(numbers: list[int], words: str) -> None:
    """Of each where they differ: a cell that failed, or seeds that were added."""
    found = [
        cell("none", 0.951, [4.46] * number, label=f"v{i}") for i, number in enumerate(numbers)
    ]
    assert words in describe_seeds(found)


def test_what_was_done_to_the_images_is_said_once(outcome: Callable[..., RunResult]) -> None:
    """By all runs that it was done to; nothing where nothing was."""
    assert "Changes made" not in " ".join(limits_of([NONE]))
    result = outcome(data_notes=("3 grey taken as colour", "b"))
    noted = replace(NONE, runs=(run_with(result),))
    text = " ".join(limits_of([noted, noted]))
    words = "Changes made to the images first: 3 grey taken as colour; b."
    assert text.count(words) == 1


def test_limits_name_the_attacks_nobody_ran(outcome: Callable[..., RunResult]) -> None:
    """A skipped one was not run, one averaged over repeats was; nothing where all were."""
    ran = [AttackRow(attack=name) for name in ("optimal", "decoder*16", "own.attack:Mine")]
    rows = (*ran, AttackRow(attack="decoder-large", skipped="needs the architecture"))
    run = replace(run_with(outcome()), attacks=rows)
    text = " ".join(limits_of([replace(NONE, runs=(run,))], (), ["shadow"]))
    told = text.partition("were not run, and may reach further: ")[2].partition(". ")[0].split(", ")
    assert told == [name for name in ATTACKS if name not in ("decoder", "shadow")]
    assert "were not run" not in " ".join(limits_of([NONE], (), ATTACKS))


def test_limits_own_up_to_the_choice() -> None:
    """The best of several on the same test images is called slightly optimistic."""
    cells = [NONE, cell("a", 0.95, 2.0), cell("b", 0.95, 1.0), cell("c", 0.5, 0.1)]
    text = limits_of(cells)[0]
    assert "b, named at the top, is the best of 3 variants on" in text
    assert "slightly optimistic. The test accuracy decides" in text
    scored = [cell(s.label, 0.95, 4 - n, validation=0.95) for n, s in enumerate(cells)]
    assert "validation accuracy decides" in limits_of(scored)[0]


def test_limits_state_the_floor(outcome: Callable[..., RunResult]) -> None:
    """What the answers of the variant named at the top tell; nothing where it was not measured."""
    runs = tuple(run_with(outcome(answer_bits=bits)) for bits in (0.1, 0.3))
    best = replace(cell("a", 0.95, [0.5, 0.5]), runs=runs)
    text = " ".join(limits_of([NONE, best]))
    assert "The answers of a alone tell 0.20 bits beyond the label" in text
    assert "no encoder" not in " ".join(limits_of([NONE]))


def test_limits_say_that_a_seed_may_not_repeat(outcome: Callable[..., RunResult]) -> None:
    """Once for each reason, as the runs say it."""
    reason = "Noisy: it draws random numbers while it aggregates"
    noisy = run_with(outcome().model_copy(update={"unrepeatable": reason}))
    three = cell("none", 0.951, [4.46] * 3)
    text = " ".join(limits_of([replace(three, runs=(noisy, noisy, run_with(outcome())))]))
    assert text.count(f"The same seed may give another model. {reason}.") == 1
    assert "another model" not in " ".join(limits_of([NONE]))


def test_rejected(outcome: Callable[..., RunResult]) -> None:
    """Reasons are counted, the most frequent first."""
    events = tuple(
        RoundEvent(round=i, rejected=(RejectedReply(client=i, reason=reason),))
        for i, reason in enumerate(("late", "not finite", "late"))
    )
    run = run_with(outcome(), events)
    told = limits_of([replace(NONE, runs=(run,))])[-1]
    assert told == "Replies of clients left out in 3 rounds: 2 × late; 1 × not finite."
    assert limits_of([NONE])[-1] == "Replies of clients left out in 0 rounds: none."


def test_left_out_clients_are_told_by_rounds_and_weight(
    outcome: Callable[..., RunResult],
) -> None:
    """Two of four rounds in two runs; the mean goes over all rounds. Nothing where none was."""
    late = (RejectedReply(client=1, reason="late"),)
    events = tuple(
        RoundEvent(round=number, rejected=late if share < 1 else (), kept_share=share)
        for number, share in enumerate((1.0, 0.6))
    )
    run = run_with(outcome(), events)
    assert describe_left_out([run, run]) == (
        "Clients were left out in 2 of 4 rounds of 2 runs: 80.0% of the clients' weight was kept "
        "on average, 60.0% in the worst round."
    )
    assert "in 1 of 2 rounds: 80.0%" in describe_left_out([run])
    assert describe_left_out([run_with(outcome(), events[:1])]) == ""
