"""The examples of the library: what they reach, and that they need nothing of a federation."""

import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import fedcel

EXAMPLES = Path(__file__).parents[2] / "examples" / "library"


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let examples import each other, as a program of their folder does."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "digits", raising=False)
    return EXAMPLES


class Trained(nn.Module):
    """The part of a LightningModule that the example uses."""

    current_epoch = 0
    device = torch.device("cpu")


def train_module(module: nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int) -> None:
    """Call a LightningModule's hooks in the order in which Lightning's Trainer does."""
    (optimizer,), (schedule,) = module.configure_optimizers()
    for epoch in range(epochs):
        module.current_epoch = epoch
        module.train()
        module.on_train_epoch_start()
        for index, rows in enumerate(torch.randperm(len(y)).split(64)):
            loss = module.training_step((x[rows], y[rows]), index)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()


@pytest.mark.long
def test_the_plain_loop_leaks_little_and_answers_well(
    library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half a bit beyond the label of 5.3, at .96 accuracy; three lines say so."""
    names = runpy.run_path(str(library / "plain_loop.py"))
    leak = names["leak"]
    assert leak.accuracy > 0.96
    assert 0.3 < leak.bits_beyond_label < 0.55
    assert leak.verdict is None
    assert capsys.readouterr().out == f"{leak}\n"


@pytest.mark.parametrize("epochs", [2, pytest.param(100, marks=pytest.mark.long)])
def test_the_lightning_module_trains(
    epochs: int, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hooks, called by a loop as short as Lightning's is long: without Lightning."""
    stand_in = ModuleType("lightning")
    stand_in.LightningModule = Trained  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lightning", stand_in)
    torch.manual_seed(0)
    names = runpy.run_path(str(library / "lightning_module.py"))
    (x, y), (test_x, test_y) = names["build_net"].__globals__["read_digits"]()
    module = names["Defended"](x, y, epochs)
    train_module(module, x, y, epochs)
    leak = fedcel.measure_leakage(module.encoder, test_x, test_y, noise=0.3)
    assert leak.bits_beyond_label is not None
    if epochs > 2:
        assert 0.3 < leak.bits_beyond_label < 0.55
    saved = module.state_dict()
    assert "cel.centres" in saved
    names["Defended"](x, y, epochs).load_state_dict(saved)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")
def test_lightning_trains_it(library: Path) -> None:
    """By Lightning's own Trainer, where it is installed."""
    pytest.importorskip("lightning")
    leak = runpy.run_path(str(library / "train_with_lightning.py"))["leak"]
    assert leak.accuracy > 0.95
    assert 0.3 < leak.bits_beyond_label < 0.6


@pytest.mark.parametrize(
    "name", ["plain_loop.py", "lightning_module.py", "train_with_lightning.py"]
)
def test_an_example_is_short(name: str) -> None:
    """At most twenty lines, beside imports, blank lines and docstrings."""
    lines = [line for line in (EXAMPLES / name).read_text().splitlines() if line.strip()]
    code = [line for line in lines if not line.strip().startswith(('"""', "import ", "from "))]
    assert len(code) <= 20
