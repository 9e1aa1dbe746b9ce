"""The core imports where it checks shapes and types of every call: `make test` runs this so."""

from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_hint_can_be_checked() -> None:
    """A protocol that cannot be asked at runtime, or an unknown name, would end all long tests."""
    for path in sorted((ROOT / "fedcel").rglob("*.py")):
        if path.name != "__init__.py":
            import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
