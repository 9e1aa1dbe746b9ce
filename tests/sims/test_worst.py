"""The attack a defence is held to."""

from pathlib import Path

import pytest
import torch

from fedcel import per_image
from sims.worst import Who, of_attack, who, worst_attack

A, B = Who("a", "smashed-data"), Who("b", "private-logits")


def test_the_lowest_mean_over_seeds_and_not_the_luckiest_seed() -> None:
    """Of two attacks, b has the best seed and a the best mean; the first of equals wins."""
    assert worst_attack([(B, 0.1), (A, 0.2), (B, 0.5), (A, 0.2)]) == A
    assert worst_attack([(B, 0.2), (A, 0.2)]) == B


def test_other_budgets_are_other_attacks() -> None:
    """Their runs are not averaged with each other."""
    more = A._replace(budget=4.0)
    assert worst_attack([(A, 0.2), (more, 0.1), (B, 0.18)]) == more


@pytest.mark.parametrize(
    "better",
    [Who("gradient-inversion", "update"), Who("a*16", "smashed-data*16"), Who("optimal", "x*4")],
)
def test_an_attack_on_more_than_one_inference_does_not_count(better: Who) -> None:
    """However exact the images of an upload, or of sixteen answers to one question."""
    assert worst_attack([(better, 0.0), (A, 0.2)]) == A
    assert worst_attack([(better, 0.0)]) is None


def test_no_trained_attack() -> None:
    """Nobody rebuilt an image."""
    assert worst_attack([]) is None


def test_what_a_row_says_of_its_attack() -> None:
    """The seed is left out; what a row does not say is not known."""
    row: dict[str, object] = {"attack": "a", "observation": "o", "knowledge": "k", "seed": 3}
    assert who(row | {"budget": 2, "targets": 400}) == Who("a", "o", "k", 2.0, 400)
    assert who({"attack": "a"}) == Who("a")


def test_images_are_of_the_attack_named_and_of_no_other_number_of_targets(tmp_path: Path) -> None:
    """Ten targets were attacked before four: the mean of four is that of its own four."""
    row = {"attack": "decoder", "observation": "smashed-data", "knowledge": "held-out"}
    many, few = ({**row, "budget": 1.0, "targets": count, "seed": 0} for count in (10, 4))
    kept = {per_image.name(many, "mse"): torch.full((10,), 0.2)}
    per_image.write(tmp_path, kept | {per_image.name(few, "mse"): torch.full((4,), 0.1)})
    told = {f"worst-{key}": few[key] for key in ("attack", "knowledge", "budget", "targets")}
    found = of_attack(tmp_path, {**told, "mse": 0.1})
    assert found["mse"].tolist() == pytest.approx([0.1] * 4)
    assert of_attack(tmp_path, {**told, "mse": 0.3}) == {}  # of another run: not these images
