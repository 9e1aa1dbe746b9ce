"""A bench's rows with what its runs have met, and what stands beside them image by image."""

import json
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import pytest
import torch

from fedcel import per_image
from fedcel.attacks import AttackId, AttackOutcome, AttackRow
from fedcel.errors import RunError
from fedcel.settings import AttackSettings
from sims.results.attack_results import (
    average_attacks,
    group_by_attack,
    read_attack_rows,
    write_result,
)
from sims.results.bench_rows import (
    common_attacks,
    find_worst_attack,
    hold_to_common,
    read_bench_rows,
    read_image_vectors,
    update_bench,
    write_bench_rows,
)
from sims.results.intervals import row_vectors
from sims.results.records import BenchRow, CellAttack
from tests.sims.results.made import attack, make_row

ERRORS = {"kernel": (0.05, 0.06), "hybrid": (0.04, None)}
"""Of either cell; one of them has met the stronger attack alone."""


def attack_run(folder: Path, name: str, mse: float, targets: int = 10) -> None:
    """Write what an attack with two seeds scored on a run, each image alike."""
    how: dict[str, object] = {"attack": name, "knowledge": "held-out", "budget": 1.0}
    how |= {"observation": "smashed-data", "targets": targets}
    rows: list[dict[str, object]] = [
        {**how, "seed": seed, "mse": mse + 0.01 * (2 * seed - 1)} for seed in range(2)
    ]
    vectors = {
        per_image.vector_name(row, "mse"): torch.full((targets,), float(str(row["mse"])))
        for row in rows
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_result(
        folder, AttackSettings(names=name, targets=targets), AttackOutcome(rows, {}, vectors)
    )


def bench(folder: Path) -> Path:
    """Write two cells of one variant, attacked, with what their runs keep of ten images."""
    rows = [make_row("v", float(number), run=f"runs/{number}") for number in range(2)]
    for number, row in enumerate(rows):
        for name, errors in ERRORS.items():
            if (mse := errors[number]) is not None:
                attack_run(folder / row.run, name, mse)
        kept = {key: torch.full((10,), 0.5) for key in ("accuracy", "bits-beyond-label")}
        per_image.write_vectors(folder / row.run, kept)
    write_bench_rows(folder, rows)
    return folder


def test_a_row_has_all_attacks_of_its_run(tmp_path: Path) -> None:
    """Mean over the seeds; columns are those of the worst attack that all cells met."""
    rows = read_bench_rows(bench(tmp_path))
    assert [[(a.attack, a.seeds) for a in row.attacks] for row in rows] == [
        [("kernel", 2), ("hybrid", 2)],
        [("kernel", 2)],
    ]
    assert rows[0].attacks[1].mse == pytest.approx(0.04)
    columns = [
        (r["worst-attack"], r["mse"]) for r in json.loads((tmp_path / "bench.json").read_text())
    ]
    assert columns == [("kernel", pytest.approx(0.05)), ("kernel", pytest.approx(0.06))]
    attack_run(tmp_path / "runs" / "1", "hybrid", 0.03)
    update_bench(tmp_path)
    columns = [
        (r["worst-attack"], r["mse"]) for r in json.loads((tmp_path / "bench.json").read_text())
    ]
    assert columns == [("hybrid", pytest.approx(0.04)), ("hybrid", pytest.approx(0.03))]


def test_images_are_of_the_attack_that_a_row_is_held_to(tmp_path: Path) -> None:
    """One that both cells have met; without one only what needs no attack has images."""
    rows = read_bench_rows(bench(tmp_path))
    assert mean_errors(tmp_path, rows) == pytest.approx([0.05, 0.06])
    alone = rows[0].model_copy(update={"worst": None})
    assert row_vectors(alone, read_image_vectors(tmp_path)).keys() == {
        "accuracy",
        "bits-beyond-label",
    }


def test_images_are_of_no_other_number_of_targets(tmp_path: Path) -> None:
    """Four targets were attacked after ten: the mean of ten is that of its own ten."""
    bench(tmp_path)
    attack_run(tmp_path / "runs" / "0", "kernel", 0.01, targets=4)
    rows = hold_to_common(update_bench(tmp_path))
    assert mean_errors(tmp_path, rows) == pytest.approx([0.05, 0.06])


def mean_errors(folder: Path, rows: list[BenchRow]) -> list[float]:
    """Return each run's mean error over its images."""
    vectors = read_image_vectors(folder)
    return [float(row_vectors(row, vectors)["mse"].mean()) for row in rows]


def test_a_bench_of_an_earlier_version_says_what_to_do(tmp_path: Path) -> None:
    """Its rows have the worst attack alone."""
    row = make_row().to_json()
    del row["attacks"]
    (tmp_path / "bench.json").write_text(json.dumps([row]))
    with pytest.raises(RunError, match="0.attacks: Field required.*`fedcel bench` again"):
        read_bench_rows(tmp_path)


def test_what_is_read_is_written_again(tmp_path: Path) -> None:
    """No key is lost, and none that a row did not have is added."""
    rows = read_bench_rows(bench(tmp_path))
    written = json.loads((tmp_path / "bench.json").read_text())
    assert [row.to_json() for row in hold_to_common(rows)] == written
    assert "engine" not in written[0] and written[0]["seed"] == 0


A = attack("a", 0.2)


def test_the_lowest_error_counts_and_the_first_of_equals() -> None:
    """Each is the mean over its attack seeds already."""
    better = attack("b", 0.1)
    assert find_worst_attack([A, better]) == better
    assert find_worst_attack([A, attack("b", 0.2)]) == A
    assert find_worst_attack([attack("b", 0.2), A]) == attack("b", 0.2)
    assert find_worst_attack([A, attack("b", None)]) == A


@pytest.mark.parametrize(
    "better",
    [
        attack("gradient-inversion", 0.0, observation="update"),
        attack("a*16", 0.0, observation="smashed-data*16"),
        attack("optimal", 0.0, observation="x*4"),
    ],
)
def test_an_attack_on_more_than_one_inference_does_not_count(better: CellAttack) -> None:
    """However exact the images of an upload, or of sixteen answers to one question."""
    assert find_worst_attack([better, A]) == A
    assert find_worst_attack([better]) is None


def test_few_targets_do_not_win_by_being_easy() -> None:
    """An attack on ten images is no worse than one on 400, whatever its error."""
    few = attack("b", 0.1, targets=10)
    assert find_worst_attack([A, few]) == A
    assert find_worst_attack([few]) == few


def test_no_trained_attack() -> None:
    """Nobody rebuilt an image."""
    assert find_worst_attack([]) is None


def worst_of(rows: Sequence[BenchRow]) -> list[object]:
    return [row.worst and (row.worst.attack, row.worst.mse) for row in rows]


DECODER = attack("decoder", 0.05)


def test_each_seed_has_its_own_worst_attack() -> None:
    """Winners differ from seed to seed; an attack that one seed did not meet does not count."""
    errors = ((0.02, 0.06), (0.04, 0.03), (0.06, 0.06))
    rows = [
        make_row("v", 1.0, DECODER, attack("hybrid", one), attack("kernel", two), seed=seed)
        for seed, (one, two) in enumerate(errors)
    ]
    assert worst_of(hold_to_common(rows)) == [
        ("hybrid", 0.02),
        ("kernel", 0.03),
        ("decoder", 0.05),
    ]
    lacking = make_row("v", 1.0, DECODER, seed=3)
    assert worst_of(hold_to_common([*rows, lacking])) == [("decoder", 0.05)] * 4
    other = make_row("v", 1.0, DECODER, attack("hybrid", 0.01, budget=4.0), seed=3)
    assert (
        worst_of(hold_to_common([*rows, other])) == [("decoder", 0.05)] * 4
    )  # nor with one budget


def test_errors_on_other_targets_are_not_compared() -> None:
    """Ten targets never take the place of 400; 400 do that of ten, even where they are harder."""
    few = attack("hybrid", 0.01, targets=10)
    assert worst_of(hold_to_common([make_row("v", 1.0, DECODER, few)])) == [("decoder", 0.05)]
    many = attack("kernel", 0.06)
    assert worst_of(hold_to_common([make_row("v", 1.0, few, many)])) == [("kernel", 0.06)]


def test_a_choice_among_five_is_none_among_a_hundred() -> None:
    """Its rate would stand beside others' as if it were theirs; ten targets are ten at most."""
    hundred = {"identification-candidates": 100}
    few = attack("hybrid", 0.02, **{"identification-candidates": 5})
    assert worst_of(hold_to_common([make_row("v", 1.0, DECODER, few, **hundred)])) == [
        ("decoder", 0.05)
    ]
    many = attack("hybrid", 0.02, **hundred)
    assert worst_of(hold_to_common([make_row("v", 1.0, DECODER, many, **hundred)])) == [
        ("hybrid", 0.02)
    ]
    ten = attack("hybrid", 0.02, targets=10, **{"identification-candidates": 10})
    assert worst_of(hold_to_common([make_row("v", 1.0, ten, **hundred)])) == [("hybrid", 0.02)]


def test_a_curve_is_of_what_all_its_cells_met() -> None:
    """A stronger attack at one strength alone would make that variant look worse than others."""
    hybrid = attack("hybrid", 0.02)
    first = make_row("v", 1.0, DECODER, hybrid)
    for other in ({"budget": 4.0}, {"revision": 2}, {"mse": None}, {"knowledge": "other"}):
        second = make_row("v", 2.0, DECODER, hybrid.model_copy(update=other))
        assert worst_of(hold_to_common([first, second])) == [("decoder", 0.05)] * 2
    assert common_attacks([first]) == {(DECODER.id, None), (hybrid.id, None)}


def test_one_cell_that_lacks_an_attack_does_not_mix_them() -> None:
    """The attack that met most cells alone is compared; where it is missing there is no error."""
    ridge, hybrid = attack("ridge", 0.05), attack("hybrid", 0.02)
    rows = [
        make_row("v", 1.0, ridge, hybrid),
        make_row("v", 2.0, ridge),
        make_row("v", 3.0, ridge),
        make_row("v", 4.0, attack("other", 0.01)),
    ]
    assert worst_of(hold_to_common(rows)) == [("ridge", 0.05)] * 3 + [None]
    assert worst_of(hold_to_common([make_row("v", 1.0)])) == [None]


def test_the_order_of_rows_decides_nothing() -> None:
    """Of two equally large groups of cells that of the runs first by name is compared."""
    ridge, hybrid = attack("ridge", 0.05), attack("hybrid", 0.02)
    rows = [
        make_row("a", 1.0, hybrid),
        make_row("b", 1.0, hybrid, ridge),
        make_row("c", 1.0, ridge),
    ]
    assert worst_of(hold_to_common(rows)) == [("hybrid", 0.02), ("hybrid", 0.02), None]
    for order in permutations(rows):
        worst = {row.variant: row.worst for row in hold_to_common(order)}
        assert worst == {"a": hybrid, "b": hybrid, "c": None}


def test_uploads_of_other_clients_are_other_attacks(tmp_path: Path) -> None:
    """A client with eight images hides none with one; the same upload again takes its place."""
    for batch, seeds, mse in ((1, 3, 0.5), (8, 3, 0.1), (1, 1, 0.0)):
        settings = AttackSettings(names="gradient-inversion", batch=batch, seeds=seeds)
        row = AttackRow(attack="gradient-inversion", observation="update", seed=0, mse=mse)
        outcome = AttackOutcome([row.with_results(upload=settings.upload)], {}, {})
        write_result(tmp_path, settings, outcome)
    rows = read_attack_rows(tmp_path)
    assert [(row.upload, row.mse) for row in rows] == [
        ("batch 8, steps 1, model first", 0.1),
        ("batch 1, steps 1, model first", 0.0),
    ]


def test_rows_of_other_budgets_are_other_attacks() -> None:
    """They are not averaged with each other; seeds are, and what was skipped counts nowhere."""
    first = AttackRow(attack="a", budget=1.0, seed=0, mse=0.1)
    seeds = [first, first.model_copy(update={"seed": 1, "mse": 0.3})]
    more = first.model_copy(update={"budget": 4.0})
    groups = group_by_attack([*seeds, more, AttackRow(attack="b", skipped="no")])
    assert groups == {AttackId("a", budget=1.0): seeds, AttackId("a", budget=4.0): [more]}
    assert average_attacks([]) == []
