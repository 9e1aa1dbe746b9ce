"""What the package offers is loaded when it is first used, and not before."""

import inspect
import subprocess
import sys
from pathlib import Path

import fedcel.privacy


def test_every_name_can_be_loaded_and_is_documented() -> None:
    """Each with a docstring, none of them the name of a file, which would hide it."""
    names = fedcel.privacy.__all__
    files = {path.stem for path in Path(str(fedcel.privacy.__file__)).parent.glob("*.py")}
    assert not files & set(names)
    for name in names:
        value = getattr(fedcel.privacy, name)
        assert name == "ClipKind" or inspect.getdoc(value), name


def test_settings_are_checked_without_tensors() -> None:
    """In a fresh process: reading settings imports no torch, what sensitivity takes included."""
    script = (
        "import sys; from fedcel.settings import parse_settings; "
        "parse_settings({'privacy.sensitivity': 3, 'privacy.mechanism': 'laplace'}); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
