"""Every loss and every defence trains when it is the only thing set."""

from pathlib import Path

import pytest

from fedcel.losses.cel import CEL, Cluster, Hybrid
from fedcel.losses.defences import Rival
from fedcel.settings import parse_settings
from sims.engines.simulate import check_parts


@pytest.mark.parametrize("kind", sorted(CEL.kinds.keys() - {":"}))
def test_a_kind_of_loss_needs_no_other_key(kind: str) -> None:
    """Settings that fit it, and a loss that can be made."""
    check_parts(parse_settings({"cel.kind": kind}))


@pytest.mark.parametrize("name", sorted(Rival.kinds.keys() - {":"}))
def test_a_defence_needs_no_other_key(name: str) -> None:
    """Settings that fit it, and a defence that acts."""
    settings = parse_settings({"defence.name": name})
    check_parts(settings)
    assert (settings.defence.used_strength > 0) == (name != "none")


@pytest.mark.parametrize(
    "setting", [{"cel.kind": "hybrid"}, {"defence.name": "adversarial"}, {"defence.name": "noise"}]
)
def test_two_rounds_of_training(setting: dict[str, str], tmp_path: Path) -> None:
    """With what the default leaves to be decided, on the way to a finished run."""
    from sims.engines.simulate import simulate

    small = {"rounds": 5, "cel.warm-up": 1, "local.steps": 2, "engine": "local"}
    simulate(parse_settings({**setting, **small}), tmp_path / "run")
    assert (tmp_path / "run" / "result.json").exists()


def test_what_is_written_stays_what_was_asked() -> None:
    """`auto` is decided where it is used; a number overrides it."""
    for kind, keys, clusters in (
        ("hybrid", {}, 0),
        ("cluster", {}, 1),
        ("hybrid", {"cel.clusters": 3}, 3),
    ):
        cel = parse_settings({"cel.kind": kind} | keys).cel
        assert isinstance(cel, Cluster | Hybrid)
        assert cel.used_clusters == clusters
    assert (
        parse_settings({"defence.name": "noise", "defence.strength": 0.7}).defence.used_strength
        == 0.7
    )
