"""The wording follows the numbers."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from fedcel.attacks import AttackRow
from fedcel.settings import Settings, parse_settings
from sims.report.book import FinishedRun
from sims.report.summary import Summary
from sims.report.verdict import (
    describe_attack,
    describe_in_one_sentence,
    describe_price,
    describe_single_image_updates,
    describe_weak_attacks,
    find_verdict,
    list_cautions,
)
from sims.results.intervals import Estimate
from sims.results.records import RunResult
from tests.sims.report.made import cell

NONE = cell("none", 0.951, 4.46, 0.92)


def said(*summaries: Summary) -> str:
    """Return the headline with plain spaces."""
    return find_verdict(summaries).headline.replace("\N{NO-BREAK SPACE}", " ")


def test_defence_helps() -> None:
    """All the numbers are in the sentence."""
    text = said(NONE, cell("cluster", 0.943, 0.54, 0.22))
    assert text == (
        "Without a defence, 4.46 of at most 5.3 bits leak beyond the label. The best possible "
        "attacker picks the right one of 100 images in 92 % of cases. With cluster, 0.54 bits "
        "leak, and that attacker is right in 22 % of cases. Then accuracy falls by 0.8 points "
        "(95.1 % to 94.3 %). The label alone gives the right image in 10 % of cases."
    )


def test_best_is_at_matched_accuracy() -> None:
    """Fewer bits do not win when more than 2 points of accuracy are gone; 2 are allowed."""
    far, edge = cell("far", 0.930, 0.1), cell("edge", 0.931, 0.6)
    found = find_verdict([NONE, far, edge, cell("near", 0.95, 0.7)])
    assert (found.kind, found.best) == ("helps", edge)


def test_best_is_matched_on_validation() -> None:
    """Validation accuracy says who is matched, whatever the test set says; the price is tested."""
    base = replace(NONE, validation=Estimate(0.96))
    lucky = replace(cell("lucky", 0.96, 0.1), validation=Estimate(0.935))
    sound = replace(cell("sound", 0.93, 0.6), validation=Estimate(0.94))
    found = find_verdict([base, lucky, sound])
    assert found.best == sound
    assert "accuracy falls by 2.1 points" in found.headline
    assert find_verdict([base, lucky, replace(sound, validation=Estimate())]).best == lucky
    text = said(base, lucky)
    assert "within 2.0 points of the undefended validation accuracy, 96.0 %" in text
    assert "lucky, costs 2.5 points. With it, 0.10 bits leak" in text
    assert "On the test set, accuracy rises by 0.9 points (95.1 % to 96.0 %)." in text


@pytest.mark.parametrize(
    ("bits", "kind", "words"),
    [
        (4.9, "does-not-help", "leaks more"),
        (4.46, "does-not-help", "leaks as much"),
        (4.3, "does-not-help", "leaks as much"),
        (3.9, "helps-little", "helps only a little"),
        (1.0, "helps", "Without a defence"),
    ],
)
def test_honest_when_it_loses(bits: float, kind: str, words: str) -> None:
    """More, the same, a little less and much less are told apart."""
    found = find_verdict([NONE, cell("cluster", 0.95, bits)])
    assert found.kind == kind
    assert words in found.headline


def test_seeds_that_overlap_do_not_help() -> None:
    """Differences paired by seed, 2, -1, 2: their mean is 1, their 95 % interval holds 0."""
    base = replace(NONE, bits=Estimate(4.0), bits_of_seed={0: 5.0, 1: 3.0, 2: 4.0})
    wild = replace(cell("wild", 0.95, 3.0), bits_of_seed={0: 3.0, 1: 4.0, 2: 2.0})
    assert find_verdict([base, wild]).kind == "does-not-help"
    sure = replace(wild, bits_of_seed={0: 4.0, 1: 2.1, 2: 2.9})
    assert find_verdict([base, sure]).kind == "helps"


def test_images_that_differ_do_not_help_where_seeds_agree() -> None:
    """A drop of 1 in all seeds; between samples of the images it varies by 1, or not at all."""
    base = replace(NONE, bits=Estimate(4.0), bits_of_seed=dict.fromkeys(range(3), 4.0))
    best = replace(cell("a", 0.95, 3.0), bits_of_seed=dict.fromkeys(range(3), 3.0))
    waves = [4.0 + (-1) ** number for number in range(200)]
    hard = replace(base, bits_again=dict.fromkeys(range(3), waves))
    flat = replace(best, bits_again={key: [3.0] * 200 for key in range(3)})
    both = replace(best, bits_again={key: [wave - 1 for wave in waves] for key in range(3)})
    assert find_verdict([hard, flat]).kind == "does-not-help"
    assert find_verdict([hard, both]).kind == "helps"  # the same images are hard for both
    assert find_verdict([hard, best]).kind == "helps"  # kept by one alone: over seeds


def test_too_dear() -> None:
    """When every defence costs more than 2 points, the nearest is named with its cost."""
    text = said(NONE, cell("a", 0.90, 0.1), cell("b", 0.92, 0.3))
    assert "No defence stayed within 2.0 points" in text
    assert "The nearest, b, costs 3.1 points" in text


def test_the_undefended_variant_may_have_any_name() -> None:
    """And one named 'none' that defends is a defence; the first undefended one is the base."""
    base = replace(cell("plain net", 0.95, 4.0), undefended=True)
    other = replace(cell("wide net", 0.95, 0.2), undefended=True)
    defence = replace(cell("none", 0.95, 0.5), undefended=False)
    found = find_verdict([defence, base, other])
    assert (found.kind, found.base, found.best, found.compared) == ("helps", base, defence, 1)
    swept = replace(base, strength=1.0)
    assert find_verdict([defence, swept]).kind == "no-baseline"
    text = said(base, other)
    assert text.startswith("Only undefended models were measured. With plain net, 4.00 of")


def test_no_undefended_variant() -> None:
    """Without one nothing is claimed about a gain."""
    found = find_verdict([cell("a", 0.9, 2.0), cell("b", 0.95, 1.0)])
    assert found.kind == "no-baseline"
    assert found.base is None
    assert "no undefended variant" in found.headline
    assert "with b: 1.00 of" in found.headline


def test_alone() -> None:
    """One run, or the undefended one alone, compares nothing."""
    alone = "This model classifies 90.0 % of 397 test images correctly, and 2.00 of at most"
    assert said(cell("run", 0.9, 2.0)).startswith(alone)
    assert said(NONE).startswith("Only the undefended model was measured: 4.46 of at most 5.3")


def test_unmeasured() -> None:
    """No number, no verdict."""
    assert "were not measured" in said(replace(cell("run", 0.9, 0), bits=Estimate()))


@pytest.mark.parametrize(("bits", "words"), [(5.296, "all 5.3 bits"), (5.294, "5.29 of at most")])
def test_all_bits_leak(bits: float, words: str) -> None:
    """Within 0.005 of the cap, 5.3 bits, it is all of them."""
    found = find_verdict([replace(NONE, bits=Estimate(bits)), cell("a", 0.95, 0.5)])
    assert found.kind == "helps"
    assert f"Without a defence, {words}" in found.headline
    assert "bits leak beyond the label" in found.headline


@pytest.mark.parametrize(
    ("accuracy", "words"),
    [(0.951, "stays the same"), (0.961, "rises by 1.0 points"), (0.941, "falls by 1.0 points")],
)
def test_price(accuracy: float, words: str) -> None:
    """Gain, loss and neither."""
    assert words in describe_price(NONE, cell("a", accuracy, 1.0))


def test_attack_sentence() -> None:
    """The worst attack stands beside the undefended one and label-only knowledge."""
    best = replace(cell("a", 0.95, 0.5), mse=Estimate(0.0425), worst=("decoder",))
    best = replace(best, oracle_mse=0.0434)
    text = describe_attack(find_verdict([replace(NONE, mse=Estimate(0.0312)), best]))
    assert text == (
        "The best reconstruction by a trained attack (decoder) has MSE 0.0425. Without a defence "
        "it is 0.0312. The average image of the class has 0.0434."
    )
    assert describe_attack(find_verdict([NONE])) is None


def test_a_model_at_chance_never_reads_as_private() -> None:
    """Alone, as the baseline, as the best of the defended, as the nearest: nothing was learned."""
    collapsed = cell("collapsed", 0.13, 0.0, 0.1)
    nothing = "Nothing was learned: collapsed classifies 13.0 % of 397 test images correctly"
    assert said(collapsed).startswith(nothing)
    assert "a guess (12.0 %). So its leak means nothing" in said(collapsed)
    assert said(replace(collapsed, undefended=True), cell("a", 0.95, 1.0)).startswith(nothing)
    alone = said(cell("a", 0.95, 1.0), collapsed)
    assert "with a: 1.00 of" in alone
    low = replace(NONE, accuracy=Estimate(0.14, n=1), chance=0.01)
    assert find_verdict([low, replace(collapsed, label="b")]).kind == "costs-too-much"
    dear = said(NONE, collapsed)
    assert "costs 82.1 points" in dear and dear.endswith("so its leak means nothing.")
    (caution,) = list_cautions([NONE, collapsed], find_verdict([NONE, collapsed]))
    assert caution.startswith("No better than a guess: collapsed.")
    unknown = replace(collapsed, chance=None)
    assert "classifies 13.0 % of 397 test images correctly, and 0.00 of" in said(unknown)


def test_an_update_of_one_image_stands_at_the_top(outcome: Callable[..., RunResult]) -> None:
    """Where `first-layer` read it off, or where the settings allow it and nothing hides it."""
    row = AttackRow(attack="first-layer", observation="update", mse=3e-9)

    def said_of(run: FinishedRun) -> str | None:
        return describe_single_image_updates(find_verdict([replace(NONE, runs=(run,))]))

    single = run_with(outcome(smallest_update_images=1))
    assert "`fedcel attack RUN --set attack.names=first-layer` tries" in (said_of(single) or "")
    rebuilt = said_of(replace(single, attacks=(row,)))
    assert rebuilt is not None and "(MSE 0.0000). In this run there are such updates." in rebuilt
    many = run_with(outcome(smallest_update_images=2))
    assert (said_of(replace(many, attacks=(row,))) or "").endswith("reads it off (MSE 0.0000).")
    blurred = row.with_results(mse=0.02)
    noisy = parse_settings({"update.clip": 1.0, "update.noise": 1.0, "temperature": 0.0})
    for run in (
        many,
        replace(single, settings=noisy),
        replace(many, attacks=(blurred,)),
        replace(single, attacks=(blurred,)),
    ):
        assert said_of(run) is None
    assert describe_single_image_updates(find_verdict([cell("a", 0.1, 0.0)])) is None


def run_with(result: RunResult) -> FinishedRun:
    """Return a run of this result."""
    return FinishedRun("r", Settings(), (), result, (), {})


def test_cautions(outcome: Callable[..., RunResult]) -> None:
    """Unequal noise, an attack worse than the label alone, a broken bound; else none."""
    best = replace(cell("a", 0.95, 0.5), noise=0.3)
    assert list_cautions([NONE, best], find_verdict([NONE, best])) == []
    base = replace(NONE, noise=0.1)
    bound = run_with(outcome(fano_identification=0.4))
    bad = replace(best, mse=Estimate(0.06), oracle_mse=0.0434, runs=(bound,))
    noise, weak, broken = list_cautions([base, bad], find_verdict([base, bad]))
    assert "sigma 0.1" in noise
    assert "With a, sigma is 0.3" in noise
    assert "weak attack" in weak and "label (MSE 0.0434) on a (0.0600)." in weak
    two = describe_weak_attacks([bad, replace(bad, label="b")])
    assert len(two) == 1 and "on a (0.0600); b (0.0600)." in two[0]
    assert "above the certificate's bound" in broken


@pytest.mark.parametrize(
    ("summaries", "words"),
    [
        (
            [NONE, cell("cluster", 0.943, 0.54, 0.22)],
            "With cluster, the best possible attacker picks the right "
            "one of 100 images in 22 % of cases instead of 92 % (0.54 bits beyond the label leak "
            "instead of 4.46); accuracy falls by 0.8 points (95.1 % to 94.3 %).",
        ),
        ([NONE, cell("cluster", 0.943, 3.9, 0.8)], "The defence helps little: with cluster, "),
        ([NONE, cell("cluster", 0.943, 4.9, 0.95)], "No defence helps: with cluster, "),
        (
            [NONE, cell("cluster", 0.80, 0.54, 0.22)],
            "Every defence costs more than 2 points of accuracy: the nearest, cluster, costs 15.1.",
        ),
        ([replace(NONE, undefended=True)], "none: 4.46 of at most 5.3 bits leak"),
    ],
)
def test_one_sentence(summaries: list[Summary], words: str) -> None:
    """What a reader takes away, for every kind of verdict."""
    sentence = describe_in_one_sentence(find_verdict(summaries))
    assert sentence.replace("\N{NO-BREAK SPACE}", " ").startswith(words)
