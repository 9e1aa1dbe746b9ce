"""The page of the library: its programs run, and are as short as it says."""

import contextlib
import inspect
import io
import re
from pathlib import Path

import pytest
import torch

import fedcel

PAGE = (Path(__file__).parents[1] / "docs" / "how-to" / "use-the-library.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
MOST_LINES = [6, 20, 7]


def run_program(number: int) -> tuple[dict[str, object], str]:
    names: dict[str, object] = {}
    printed = io.StringIO()
    torch.manual_seed(0)
    with contextlib.redirect_stdout(printed):
        exec(PROGRAMS[number], names)
    return names, printed.getvalue()


def test_programs_are_short() -> None:
    """As many as there are, each in the lines that its heading promises."""
    assert all(
        sum(bool(line) for line in program.splitlines()) <= most
        for program, most in zip(PROGRAMS, MOST_LINES, strict=True)
    )


def test_the_audit_prints_three_lines() -> None:
    """Of 400 images and their labels."""
    names, printed = run_program(0)
    leak = names["leak"]
    assert isinstance(leak, fedcel.Leakage)
    assert printed == f"{leak}\n"
    assert leak.candidates == 400
    assert leak.bits_beyond_label is not None


def test_the_loop_trains() -> None:
    """Test images are answered well, and little is left of the 5.3 bits beyond the label."""
    names, printed = run_program(1)
    x, y, encoder, head = (names[name] for name in ("test_x", "test_y", "encoder", "head"))
    assert isinstance(x, torch.Tensor)
    z = encoder.eval()(x)  # type: ignore[attr-defined]
    answers = head(z + 0.3 * torch.randn_like(z)).argmax(1)  # type: ignore[operator]
    assert (answers == y).float().mean() > 0.94
    leak = fedcel.measure_leakage(encoder, x, y, noise=0.3)  # type: ignore[arg-type]
    assert leak.bits_beyond_label is not None and leak.bits_beyond_label < 0.6
    assert len(printed.splitlines()) == 6


def test_the_inversion_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three lines, and a picture beside."""
    monkeypatch.chdir(tmp_path)
    names, printed = run_program(2)
    assert printed == f"{names['result']}\n"
    assert len(printed.splitlines()) == 3
    assert (tmp_path / "rebuilt.png").stat().st_size > 0


def test_every_name_of_fedcel_exists() -> None:
    """That the page calls, or names as a kind of loss."""
    for name in re.findall(r"fedcel\.([A-Za-z_]+)", PAGE):
        assert hasattr(fedcel, name), name
    for name in re.findall(r"^\| `(\w+CEL)`", PAGE, re.MULTILINE):
        assert hasattr(fedcel, name), name


def test_arguments_that_the_page_names_exist() -> None:
    """In backticks, with the sign of equality behind."""
    known = {
        name
        for function in (
            *(fedcel.measure_leakage, fedcel.invert),
            *(fedcel.ClusterCEL, fedcel.MutualInformationCEL),
        )
        for name in inspect.signature(function).parameters
    }
    assert set(re.findall(r"`([a-z_]+)=", PAGE)) <= known
