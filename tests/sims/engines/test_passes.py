"""How often a run sees its images, said before it begins."""

import pytest

from fedcel.settings import parse_settings
from sims.engines.simulate import describe_passes, print_notes


def test_epochs_are_counted() -> None:
    """16 clients of 3 100 images, 20 steps of 32: 10 240 of 49 600 images a round, .206."""
    settings = parse_settings({"clients": 16, "rounds": 120})
    assert describe_passes(settings, [3100] * 16) == (
        "20 steps of 32 images a client are 0.21 epochs a round, 25 in 120 rounds"
    )


def test_images_that_are_hardly_seen_are_warned_of() -> None:
    """Half of the clients a round, one of which has fewer images than a batch."""
    settings = parse_settings({"clients": 2, "clients-per-round": 1, "rounds": 10})
    text = describe_passes(settings, [16, 3984])  # 10 rounds of .5 * 20 * (16 + 32) of 4000
    assert "are 0.12 epochs a round, 1.2 in 10 rounds" in text and "less than once" not in text
    few = describe_passes(settings, [16, 9984])
    assert "0.48 in 10 rounds: the run sees each image less than once" in few
    assert "raise rounds, local.steps or local.batch-size" in few


def test_passes_of_each_client_are_counted() -> None:
    """Two passes of 320 and of 3 200 images, in steps of 32; one of them of equal clients."""
    settings = parse_settings({"clients": 2, "rounds": 10, "local.epochs": 2})
    assert describe_passes(settings, [320, 3200]) == (
        "20 to 200 steps of 32 images a client are 2 epochs a round, 20 in 10 rounds; a client "
        "with more steps moves the mean of the updates more"
    )
    assert describe_passes(settings, [320, 320]).endswith("20 in 10 rounds")
    rare = parse_settings({"clients": 2, "rounds": 2, "local.epochs": 0.1})
    assert "raise rounds or local.epochs" in describe_passes(rare, [320, 320])


def test_each_line_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Of runs with other seeds; of other lengths each."""
    short, long = (parse_settings({"clients": 3, "rounds": rounds}) for rounds in (30, 60))
    print_notes([short, long, short.model_copy(update={"seed": 5})])
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" in ")[2] for line in lines if line.startswith("passes: ")] == [
        "30 rounds",
        "60 rounds",
    ]
