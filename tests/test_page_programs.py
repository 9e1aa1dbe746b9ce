"""The pages' programs in Python: each is run as typed, or is a piece of a file that tests run."""

import re
from pathlib import Path

import pytest
import torch

from fedcel.settings import parse_settings
from sims.engines.simulate import simulate
from tests.sims.small import SAMPLED

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
TESTED = {
    "how-to/add-privacy-to-a-server.md": "tests/test_private_layer_page.py",
    "how-to/use-the-library.md": "tests/test_library_page.py",
    "how-to/where-to-cut.md": "tests/test_cuts_page.py",
    "how-to/perturb-logits.md": "tests/test_perturb_logits_page.py",
    "how-to/serve-private-answers.md": "tests/system/test_service_page.py",
    "concepts/worked-examples.md": "tests/test_worked_examples_page.py",
    "reference/stock-strategies.md": "tests/strategies/test_build_strategy.py",
}
"""Pages whose programs need more than to be run, and the test that does it."""
PIECES = ("own-", "write-own-parts", "audit-an-encoder")
"""Beginnings of the names of pages that show pieces of examples."""
PAGES = {
    str(path.relative_to(ROOT / "docs")): path
    for kind in ("how-to", "concepts", "reference")
    for path in sorted((ROOT / "docs" / kind).glob("*.md"))
    if BLOCK.search(path.read_text())
}
TYPED = [
    name for name, path in PAGES.items() if name not in TESTED and not path.name.startswith(PIECES)
]


@pytest.mark.parametrize("name", TYPED)
def test_programs_run_as_typed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, each with what those before it made; the folder holds a run at most."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {"__name__": "page"}
    text = PAGES[name].read_text()
    if "runs/mine" in text:
        simulate(parse_settings(SAMPLED), tmp_path / "runs" / "mine")
    for block in BLOCK.findall(text):
        exec(block, names)


@pytest.mark.parametrize("name", ["how-to/audit-an-encoder.md"])
def test_pieces_stand_in_an_example(name: str) -> None:
    """Those of own parts are held by tests/system/test_own_parts.py."""
    files = [path.read_text() for path in (ROOT / "examples" / "library").glob("*.py")]
    for block in BLOCK.findall(PAGES[name].read_text()):
        if block.startswith("import timm"):  # which is not installed
            compile(block, name, "exec")
            continue
        assert any(block in text for text in files), block


@pytest.mark.parametrize(("name", "test"), TESTED.items())
def test_a_page_of_its_own_test_has_programs(name: str, test: str) -> None:
    assert name in PAGES
    assert name.rpartition("/")[2] in (ROOT / test).read_text()
