"""All code imports where the core checks shapes and types of every call, as in `make test-all`."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEEDS = {"wandb_tracker.py": "wandb"}
"""Packages that are installed for one file alone, and not with everything else."""
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
        for package in ("fedcel", "strategies", "clients", "sims")
        for path in (ROOT / package).rglob("*.py")
        if path.name not in {"__main__.py", "__init__.py"}
        and (path.name not in NEEDS or find_spec(NEEDS[path.name]))
    ]
    names = sorted(".".join(path.parts) for path in paths)
    subprocess.run([sys.executable, "-c", IMPORT_ALL, *names], check=True, cwd=ROOT)
