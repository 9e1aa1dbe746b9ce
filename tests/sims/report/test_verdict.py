"""The wording follows the numbers: verdict, cautions, and what a report says of itself."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from fedcel.attacks import ATTACKS, AttackRow
from fedcel.settings import Settings, parse_settings
from sims.report.summary import FinishedRun, Summary
from sims.report.verdict import Verdict, find_verdict
from sims.results.columns import POSITIONS
from sims.results.records import CellAttack, FailedCell, RejectedReply, RoundEvent, RunResult
from tests.sims.report.made import cell

NONE = cell("none", 0.951, 4.46, 0.92)
NO_HELP = "No defence is shown to leak less."


def said(*summaries: Summary) -> str:
    """Return the sentence with plain spaces."""
    return find_verdict(summaries).sentence.replace("\N{NO-BREAK SPACE}", " ")


def test_defence_helps() -> None:
    """All the numbers are in the sentence."""
    text = said(NONE, cell("cluster", 0.943, 0.54, 0.22))
    assert text == (
        "With cluster, the best possible attacker picks the right one of 100 images in 22 % "
        "(undefended: 92 %) of cases, 0.54 (undefended: 4.46) of 5.3 bits leak beyond the label, "
        "and accuracy is 94.3 % (undefended: 95.1 %)."
    )


def test_best_is_at_matched_accuracy() -> None:
    """Fewer bits do not win when more than 2 points of accuracy are gone; 2 are allowed."""
    far, edge = cell("far", 0.930, 0.1), cell("edge", 0.931, 0.6)
    found = find_verdict([NONE, far, edge, cell("near", 0.95, 0.7)])
    assert (found.outcome, found.best) == ("", edge)


def test_best_is_matched_on_validation() -> None:
    """Validation accuracy says who is matched, whatever the test set says; the price is tested."""
    base = cell("none", 0.951, 4.46, 0.92, validation=0.96)
    lucky = cell("lucky", 0.96, 0.1, validation=0.935)
    matched = cell("matched", 0.93, 0.6, validation=0.94)
    found = find_verdict([base, lucky, matched])
    assert found.best == matched
    assert "accuracy is 93.0\xa0% (undefended: 95.1" in found.sentence
    assert find_verdict([base, lucky, cell("matched", 0.93, 0.6)]).best == lucky
    text = said(base, lucky)
    assert "more than 2 points of the undefended validation accuracy, 96.0 %" in text
    assert "the nearest, lucky, costs 2.5. With lucky, the best" in text


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (4.9, "No defence is shown to leak less. With cluster, the best"),
        (4.46, "No defence"),
        (4.3, "No defence"),
        (1.0, "With cluster, "),
    ],
)
def test_honest_when_it_loses(bits: float, words: str) -> None:
    """More, the same or hardly less is no help."""
    found = find_verdict([NONE, cell("cluster", 0.95, bits)])
    assert found.sentence.startswith(words)


def test_seeds_that_overlap_do_not_help() -> None:
    """Differences paired by seed, 2, -1, 2: their mean is 1, their 95 % interval holds 0."""
    base = cell("none", 0.951, [5.0, 3.0, 4.0])
    assert find_verdict([base, cell("wild", 0.95, [3.0, 4.0, 2.0])]).outcome == NO_HELP
    assert find_verdict([base, cell("sure", 0.95, [4.0, 2.1, 2.9])]).outcome == ""


def with_samples(summary: Summary, bits: list[float]) -> Summary:
    """Return a summary whose bits are these in bootstrap samples of the images, in all seeds."""
    samples = np.tile(summary.measured, (len(bits), 1, 1))
    samples[..., POSITIONS["bits-beyond-label"]] = np.array(bits)[:, None]
    return replace(summary, measured=np.concatenate([summary.measured, samples]))


def test_images_that_differ_do_not_help_where_seeds_agree() -> None:
    """A drop of 1 in all seeds; between samples of the images it varies by 1, or not at all."""
    base, best = cell("none", 0.951, [4.0] * 3), cell("a", 0.95, [3.0] * 3)
    waves = [4.0 + (-1) ** number for number in range(200)]
    hard, flat = with_samples(base, waves), with_samples(best, [3.0] * 200)
    both = with_samples(best, [wave - 1 for wave in waves])
    assert find_verdict([hard, flat]).outcome == NO_HELP
    assert find_verdict([hard, both]).outcome == ""  # the same images are hard for both
    assert find_verdict([hard, best]).outcome == ""  # kept by one alone: over seeds


def test_too_expensive() -> None:
    """When every defence costs more than 2 points, the nearest is named with its cost."""
    text = said(NONE, cell("a", 0.90, 0.1), cell("b", 0.92, 0.3))
    assert text.startswith("Every defence costs more than 2 points of the undefended test accuracy")
    assert "the nearest, b, costs 3.1. With b" in text and "0.30 (undefended: 4.46)" in text


def test_the_undefended_variant_may_have_any_name() -> None:
    """And one named 'none' that defends is a defence; the first undefended one is the base."""
    base = cell("plain net", 0.95, 4.0, undefended=True)
    other = cell("wide net", 0.95, 0.2, undefended=True)
    defence = cell("none", 0.95, 0.5, undefended=False)
    found = find_verdict([defence, base, other])
    assert (found.outcome, found.base, found.best) == ("", base, defence)
    swept = cell("plain net", 0.95, 4.0, undefended=True, strength=1.0)
    assert find_verdict([defence, swept]).base is None
    text = said(base, other)
    assert text.startswith("With plain net, the best")
    assert "4.00 of 5.3 bits" in text


def test_no_undefended_variant() -> None:
    """Without one nothing is claimed about a gain."""
    found = find_verdict([cell("a", 0.9, 2.0), cell("b", 0.95, 1.0)])
    assert found.base is None
    assert "No undefended variant" in found.sentence
    assert "With b, " in found.sentence and "1.00 of 5.3 bits" in found.sentence


def test_alone() -> None:
    """One run, or the undefended one alone, compares nothing."""
    assert said(cell("run", 0.9, 2.0)) == (
        "With run, the best possible attacker picks the right one of 100 images in 50 % of cases, "
        "2.00 of 5.3 bits leak beyond the label, and accuracy is 90.0 %."
    )
    assert "With none, the best" in said(NONE)


def attack(mse: float) -> CellAttack:
    return CellAttack(attack="decoder", mse=mse, oracle_mse=0.0434)


def test_attack_sentence() -> None:
    """The worst attack stands beside the undefended one and label-only knowledge."""
    base = cell("none", 0.951, 4.46, attack=attack(0.0312))
    best = cell("a", 0.95, 0.5, attack=attack(0.0425))
    text = find_verdict([base, best]).describe_attack()
    assert text == (
        "The best reconstruction by a trained attack (decoder) has MSE 0.0425 (undefended: "
        "0.0312), the average image of the class 0.0434."
    )
    assert find_verdict([NONE]).describe_attack() == ""


def test_a_model_at_chance_never_reads_as_private() -> None:
    """Alone, as the baseline, as the best of the defended, as the nearest: nothing was learned."""
    collapsed = cell("collapsed", 0.13, 0.0, 0.1)
    nothing = (
        "Nothing was learned, so this leak means nothing: collapsed classifies 13.0 % of 397 test "
        "images correctly, which cannot be told from a guess (12.0 %)."
    )
    assert said(collapsed).startswith(nothing)
    undefended = cell("collapsed", 0.13, 0.0, 0.1, undefended=True)
    assert said(undefended, cell("a", 0.95, 1.0)).startswith(nothing)
    alone = said(cell("a", 0.95, 1.0), collapsed)
    assert "With a, " in alone and "1.00 of" in alone
    low = cell("none", 0.14, 4.46, 0.92, chance=0.01)
    assert said(low, collapsed).startswith(nothing)  # at a point less: that is not the cost
    expensive = said(NONE, collapsed)
    assert f"costs 82.1. {nothing}" in expensive
    (caution,) = find_verdict([NONE, collapsed]).list_cautions()
    assert caution.startswith("No better than a guess: collapsed.")
    unknown = said(cell("collapsed", 0.13, 0.0, 0.1, chance=None))
    assert "With collapsed, " in unknown and "0.00 of 5.3 bits" in unknown


def test_an_update_of_one_image_is_a_caution(outcome: Callable[..., RunResult]) -> None:
    """Unless there are more images in it, or noise hides it."""
    noise = parse_settings({"update.clip": 1.0, "update.noise": 1.0, "temperature": 0.0})
    single = run_with(outcome(smallest_update_images=1))
    many = run_with(outcome(smallest_update_images=2))
    for run, cautions in ((single, 1), (many, 0), (replace(single, settings=noise), 0)):
        found = list(find_verdict([replace(NONE, runs=(run,))]).list_cautions())
        assert [text.startswith("An update of a client") for text in found] == [True] * cautions


def test_cautions() -> None:
    """Unequal noise, an attack worse than the label alone; else none."""
    best = cell("a", 0.95, 0.5, noise=0.3)
    assert list(find_verdict([NONE, best]).list_cautions()) == []
    base = cell("none", 0.951, 4.46, 0.92, noise=0.1)
    bad = cell("a", 0.95, 0.5, noise=0.3, attack=attack(0.06))
    noise, weak = find_verdict([base, bad]).list_cautions()
    assert "sigma 0.1, a of sigma 0.3" in noise
    assert "weak attack" in weak and ": a (0.0600, label only 0.0434)." in weak


def run_with(result: RunResult, events: tuple[RoundEvent, ...] = ()) -> FinishedRun:
    return FinishedRun(Settings(), events, result, (), {}, {})


def limits_of(
    summaries: list[Summary], failed: Sequence[FailedCell] = (), served: Iterable[str] = ()
) -> list[str]:
    return list(find_verdict(summaries).list_limits(failed, served))


def test_limits_print_m_and_cap() -> None:
    text = " ".join(limits_of([NONE]))
    assert "best of" not in text
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
    assert words in Verdict(found).describe_seeds()


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
    told = text.partition("may reach further: ")[2].removesuffix(".").split(", ")
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
    expensive = [NONE, cell("a", 0.9, 0.1), cell("b", 0.92, 0.3)]
    assert "best of" not in " ".join(limits_of(expensive))  # the nearest was not chosen by its bits


def test_limits_say_that_a_seed_may_not_repeat(outcome: Callable[..., RunResult]) -> None:
    """Once for each reason, as the runs say it."""
    reason = "Noisy: it draws random numbers while it aggregates"
    noisy = run_with(outcome().model_copy(update={"unrepeatable": reason}))
    three = cell("none", 0.951, [4.46] * 3)
    text = " ".join(limits_of([replace(three, runs=(noisy, noisy, run_with(outcome())))]))
    assert text.count(f"The same seed may give another model. {reason}.") == 1
    assert "another model" not in " ".join(limits_of([NONE]))


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
    assert Verdict([replace(NONE, runs=(run, run))]).describe_left_out() == (
        "Clients were left out in 2 of 4 rounds (2 × late): 80.0% of the clients' weight was kept "
        "on average, 60.0% in the worst round."
    )
    assert (
        "in 1 of 2 rounds (1 × late): 80.0%"
        in Verdict([replace(NONE, runs=(run,))]).describe_left_out()
    )
    complete = replace(NONE, runs=(run_with(outcome(), events[:1]),))
    assert Verdict([complete]).describe_left_out() == ""
