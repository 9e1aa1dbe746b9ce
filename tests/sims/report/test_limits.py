"""What a report says of itself: its choice, its seeds, what failed."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from fedcel.attacks import ATTACKS, AttackRow
from fedcel.settings import Settings
from sims.report.book import FinishedRun
from sims.report.limits import (
    count_rejections,
    describe_left_out,
    describe_seeds,
    list_limits,
)
from sims.report.verdict import find_verdict
from sims.results.records import FailedCell, RejectedReply, RoundEvent, RunResult
from tests.sims.report.made import cell

NONE = cell("none", 0.951, 4.46)


def run_with(result: RunResult, events: tuple[RoundEvent, ...] = ()) -> FinishedRun:
    """Return a run of this result."""
    return FinishedRun("r", Settings(), events, result, (), {})


def test_limits_print_m_and_cap() -> None:
    """M and the cap are always printed, and the number of seeds."""
    text = " ".join(list_limits([NONE], find_verdict([NONE])))
    assert "best of" not in text
    assert "cannot be seeded" in text
    assert "M = 397" in text
    assert "5.3 bits" in text
    assert "One training seed" in text


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([1, 1], "One training seed: too few for an interval"),
        ([2, 2], "2 training seeds: too few for an interval"),
        ([2, 1], "Each variant was trained with 2 seeds, but v1 with one seed: too few"),
        (
            [4, 4],
            "Each variant was trained with 4 seeds. The ± is the 95 % interval of the mean over",
        ),
        ([3, 4, 3], "with 4 seeds, but v0 with 3 seeds, v2 with 3 seeds. The ± is the"),
        (
            [3, 2],
            "3 seeds, but v1 with 2 seeds. The ± is the 95 % interval of the mean over seeds, by "
            "Student's t. Fewer than 3 seeds have no interval.",
        ),
    ],
)
def test_how_many_seeds_each_variant_has(numbers: list[int], words: str) -> None:
    """Of each where they differ: a cell that failed, or seeds that were added."""
    found = [
        replace(NONE, label=f"v{i}", seeds=tuple(range(number))) for i, number in enumerate(numbers)
    ]
    assert words in describe_seeds(found)


def test_what_was_done_to_the_images_is_said_once(outcome: Callable[..., RunResult]) -> None:
    """By all runs that it was done to; nothing where nothing was."""
    assert "done to the images" not in " ".join(list_limits([NONE], find_verdict([NONE])))
    result = outcome(data_notes=("3 grey taken as colour", "b"))
    noted = replace(NONE, runs=(run_with(result), run_with(result)))
    text = " ".join(list_limits([noted, noted], find_verdict([NONE])))
    words = "What was done to the images first: 3 grey taken as colour; b."
    assert text.count(words) == 1


def test_limits_name_what_failed() -> None:
    """Each cell and why; nothing where all went well."""
    cells = [
        FailedCell(cell="b-0", reason="it ran away"),
        FailedCell(cell="c-1", reason="no client"),
    ]
    text = " ".join(list_limits([NONE], find_verdict([NONE]), cells))
    assert "figure: b-0 (it ran away); c-1 (no client)." in text
    assert "Failed" not in " ".join(list_limits([NONE], find_verdict([NONE])))


def test_limits_name_the_attacks_nobody_ran(outcome: Callable[..., RunResult]) -> None:
    """A skipped one was not run, one averaged over repeats was; nothing where all were."""
    ran = [AttackRow(attack=name) for name in ("optimal", "decoder*16", "own.attack:Mine")]
    rows = (*ran, AttackRow(attack="unsplit", skipped="needs the architecture"))
    run = replace(run_with(outcome()), attacks=rows)
    text = " ".join(
        list_limits([replace(NONE, runs=(run,))], find_verdict([NONE]), (), ["mi-face"])
    )
    told = text.partition("these were not run at all: ")[2].partition(". ")[0].split(", ")
    assert told == [name for name in ATTACKS if name not in ("decoder", "mi-face")]
    assert "not run at all" not in " ".join(list_limits([NONE], find_verdict([NONE]), (), ATTACKS))


def test_limits_own_up_to_the_choice() -> None:
    """The best of several on the same test images is called slightly optimistic."""
    cells = [NONE, cell("a", 0.95, 2.0), cell("b", 0.95, 1.0), cell("c", 0.5, 0.1)]
    text = list_limits(cells, find_verdict(cells))[0]
    assert "b, named at the top, is the best of 3 variants" in text
    assert "slightly optimistic. The test accuracy decides" in text
    scored = [replace(s, validation=s.accuracy) for s in cells]
    assert "validation accuracy decides" in list_limits(scored, find_verdict(scored))[0]


def test_limits_state_the_floor(outcome: Callable[..., RunResult]) -> None:
    """What the answers of the variant named at the top tell; nothing where it was not measured."""
    runs = tuple(run_with(outcome(answer_bits=bits)) for bits in (0.1, 0.3))
    best = replace(cell("a", 0.95, 0.5), runs=runs)
    text = " ".join(list_limits([NONE, best], find_verdict([NONE, best])))
    assert "The answers of a alone tell 0.20 bits beyond the label" in text
    assert "no encoder" not in " ".join(list_limits([NONE], find_verdict([NONE])))


def test_limits_say_that_a_seed_may_not_repeat(outcome: Callable[..., RunResult]) -> None:
    """Once for each reason, as the runs say it."""
    reason = "Noisy: it draws random numbers while it aggregates"
    noisy = run_with(outcome().model_copy(update={"unrepeatable": reason}))
    summaries = [replace(NONE, runs=(noisy, noisy, run_with(outcome())))]
    text = " ".join(list_limits(summaries, find_verdict([NONE])))
    assert text.count(f"The same seed may give another model. {reason}.") == 1
    assert "another model" not in " ".join(list_limits([NONE], find_verdict([NONE])))


def test_rejected(outcome: Callable[..., RunResult]) -> None:
    """Reasons are counted, the most frequent first."""
    events = tuple(
        RoundEvent(round=i, rejected=(RejectedReply(client=i, reason=reason),))
        for i, reason in enumerate(("late", "not finite", "late"))
    )
    run = run_with(outcome(), events)
    assert count_rejections([run]) == [("late", 2), ("not finite", 1)]


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
