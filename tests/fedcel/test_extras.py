"""Optional packages: the table agrees with the distribution, and a missing one is explained."""

import re
import tomllib
from pathlib import Path

import pytest

import fedcel
from fedcel import extras

ROOT = Path(__file__).parents[2]
IMPORTED_AS = {
    "pillow": "PIL",
    "arviz-stats": "arviz_stats",
    "dp-accounting": "dp_accounting",
    "flwr-datasets": "flwr_datasets",
    "mlflow-skinny": "mlflow",
    "prometheus-client": "prometheus_client",
}


def test_the_table_agrees_with_the_distribution() -> None:
    """Each extra brings the packages, and includes the extras, that the project file says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["optional-dependencies"]
    for extra, packages in extras.PACKAGES.items():
        names, included = set(), set()
        for requirement in declared[extra]:
            if match := re.fullmatch(r"fedcel\[(.*)\]", requirement):
                included |= set(match[1].split(","))
                continue
            name = re.split(r"[\[>=<]", requirement)[0]
            names.add(IMPORTED_AS.get(name, name))
        assert names == set(packages), extra
        assert included == set(extras.INCLUDES.get(extra, ())), extra
    assert set(declared) == {*extras.PACKAGES, "all", "dev"}


def test_a_missing_package_names_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By its own extra, or the one that the caller needs as a whole; others are not explained."""
    monkeypatch.setitem(extras.PACKAGES, "tune", ("fedcel_has_no_such_package",))
    monkeypatch.setitem(extras.PACKAGES, "onnx", ("fedcel_has_no_such_parent.part",))
    with pytest.raises(extras.MissingExtraError, match=r"fedcel\[onnx\]"):
        extras.require_extra("onnx")
    with pytest.raises(fedcel.MissingExtraError, match=r'pip install "fedcel\[tune\]"'):
        extras.import_optional("fedcel_has_no_such_package.part")
    with pytest.raises(fedcel.MissingExtraError, match=r'pip install "fedcel\[tune\]"'):
        extras.require_extra("tune")
    with pytest.raises(ModuleNotFoundError, match="another_that_is_missing"):
        extras.import_optional("another_that_is_missing")
    extras.require_extra("simulation")
