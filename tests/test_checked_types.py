"""The core imports where it checks shapes and types of every call, as in `make test-all`."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMPORT_ALL = """
import sys
from importlib import import_module
from jaxtyping import install_import_hook

packages = ["fedcel"]  # as in the Makefile
with install_import_hook(packages, "beartype.beartype"):
    for name in sys.argv[1:]:
        import_module(name)
"""


def test_every_hint_can_be_checked() -> None:
    """A protocol that cannot be asked at runtime, or an unknown name, would end all long tests."""
    paths = [
        path.relative_to(ROOT).with_suffix("")
        for path in (ROOT / "fedcel").rglob("*.py")
        if path.name != "__init__.py"
    ]
    names = sorted(".".join(path.parts) for path in paths)
    subprocess.run([sys.executable, "-c", IMPORT_ALL, *names], check=True, cwd=ROOT)
