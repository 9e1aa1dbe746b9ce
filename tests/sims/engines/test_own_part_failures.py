"""A part of a user's own that fails: refused before there is a run, named in one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from fedcel.errors import DataError, FailedError, NetError, PluginError
from fedcel.losses import Batch, ClientLoss
from fedcel.losses.cel import PlainCEL, State, Term
from fedcel.settings import NetSettings, parse_settings
from sims.commands.main import main
from sims.engines.simulate import check_parts, simulate
from tests.sims.small import CLUSTERED

OURS = {"strategy.name": "strategies:PosteriorStrategy"}


class Spread(ClientLoss):
    """A loss that holds its contract."""

    def __init__(self, *arguments: object) -> None:
        self.plain = PlainCEL(classes=10, penalty="linear")

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        return Term(self.plain(batch.z, batch.y), {})


class Bounded(Spread):
    """Knows features in [0, 1] alone to be real ones, and raises at those."""

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        """Raise in training; the features that a run checks it with are normal."""
        if batch.z.min() >= 0 and batch.z.max() <= 1 and len(batch.y) > 2:
            raise LookupError("a real batch")
        return super().loss(state, batch, measure)


class Undefined(Spread):
    """Returns NaN of features in [0, 1]."""

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        term = super().loss(state, batch, measure)
        return Term(term.loss * torch.nan, {}) if batch.z.min() >= 0 and len(batch.y) > 2 else term


class Leaving(Spread):
    """Asks the process to end, as if all were done."""

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        """Exit with 0 in training."""
        if batch.z.min() >= 0 and batch.z.max() <= 1 and len(batch.y) > 2:
            raise SystemExit(0)
        return super().loss(state, batch, measure)


class Crashing(Spread):
    """Raises always."""

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        raise LookupError("no batch")


def settings(name: str, **change: Any) -> Any:
    """Return a small federation with a loss of this file."""
    return parse_settings(CLUSTERED | {"cel.kind": f"{__name__}:{name}"} | change)


@pytest.mark.parametrize("change", [{}, OURS])
def test_a_broken_part_leaves_no_run(change: dict[str, Any], tmp_path: Path) -> None:
    """Whatever the engine: PluginError, and no folder."""
    with pytest.raises(PluginError, match="Crashing' failed: LookupError: no batch"):
        simulate(settings("Crashing", **change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_command_line_says_it_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 before the run, 1 in it; the part, the line of the user's, no traceback."""
    for name, status, words in (
        ("Crashing", 2, "failed: LookupError: no batch ("),
        ("Bounded", 1, "failed: LookupError: a real batch ("),
        ("Leaving", 1, "failed: SystemExit: 0 ("),
        ("Undefined", 1, "gave a loss that is not finite (nan), though its features are"),
    ):
        change = CLUSTERED | {"cel.kind": f"{__name__}:{name}"}
        assignments = [f"--set={key}={str(value).lower()}" for key, value in change.items()]
        scenario = tmp_path / "scenario.toml"
        scenario.write_text('title = "small"\n')
        arguments = ["simulate", str(scenario), "--out", str(tmp_path / name), "--engine", "local"]
        filtered = [a for a in assignments if not a.startswith(("--set=engine", "--set=cel.kind"))]
        kind = f"--set=cel.kind={__name__}:{name}"
        assert main([*arguments, *filtered, kind]) == status
        error = capsys.readouterr().err
        assert f"cel.kind '{__name__}:{name}' {words}" in error
        assert "Traceback" not in error
        assert (f"{Path(__file__).name}, line" in error) == ("(nan)" not in words)


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_part_that_fails_in_a_round_is_named(at_once: int, tmp_path: Path) -> None:
    """With round and client, and the line of the user's."""
    words = (
        r"round \d+, client \d+: cel.kind '.*:Bounded' failed: LookupError: a real batch \(.*py, "
    )
    with pytest.raises(FailedError, match=words):
        simulate(settings("Bounded", **{"local.at-once": at_once}), tmp_path / "run")


def test_under_flower_the_reason_names_the_part(tmp_path: Path) -> None:
    """A client that fails is left out; when all are, the run fails by the first one's reason."""
    with pytest.raises(FailedError, match=f"the client failed: .*'{__name__}:Bounded' failed"):
        simulate(settings("Bounded", **OURS), tmp_path / "run")


def test_built_in_parts_need_no_door(monkeypatch: pytest.MonkeyPatch) -> None:
    """No check of a contract is made where no part is a user's own."""

    def refuse(*arguments: object) -> None:
        raise AssertionError("a built-in part was held to a contract")

    monkeypatch.setattr("fedcel.plugins.check_contract", refuse)
    monkeypatch.setattr("strategies.check_strategy.check_contract", refuse)
    check_parts(parse_settings(CLUSTERED))


def forgetful_net(shape: object, classes: int, net: NetSettings) -> tuple[nn.Module, nn.Module]:
    """Build a net with dropout, and BatchNorm in its head."""
    encoder = nn.Sequential(nn.Flatten(), nn.LazyLinear(4), nn.Dropout(0.5))
    return encoder, nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, classes))


def test_layers_of_a_net_are_refused_before_the_images_are_read(tmp_path: Path) -> None:
    """All of them, after two pictures of many: the third is none and is never met."""
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.new("RGB", (8, 8), number).save(tmp_path / name / f"{number}.png")
    (tmp_path / "b" / "2.png").write_bytes(b"no picture")
    data = {"data.source": "image-folder", "data.path": str(tmp_path)}
    own = {"net.name": f"{__name__}:forgetful_net"}
    with pytest.raises(NetError, match=r"'head.0' \(BatchNorm1d\)(.|\n)*'encoder.2' \(Dropout\)"):
        check_parts(parse_settings({**data, **own}))
    with pytest.raises(DataError, match="1 of 5 pictures cannot be used"):
        check_parts(parse_settings(data))
    with pytest.raises(PluginError, match="no 'forgetful_nets'"):
        check_parts(parse_settings({**data, "net.name": f"{__name__}:forgetful_nets"}))
