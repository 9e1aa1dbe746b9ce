"""A run that services of several files serve."""

from pathlib import Path

import pytest

from tests.system.services import stored


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on disk, without training."""
    path = tmp_path_factory.mktemp("runs") / "run"
    stored(path, **{"net.noise": 2.0})
    return path
