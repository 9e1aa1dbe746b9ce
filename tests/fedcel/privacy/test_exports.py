"""What the package offers is loaded when it is first used, and not before."""

import inspect
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
