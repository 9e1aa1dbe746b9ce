"""The local engine by itself."""

import json
import subprocess
import sys
from pathlib import Path

from fedcel.losses.contract import RESERVED_METRICS

PROGRAM = """
import sys
sys.modules.update({name: None for name in ("flwr", "ray")})
from importlib import metadata
find = metadata.version
def version(name):
    if name in ("flwr", "ray"):
        raise metadata.PackageNotFoundError(name)
    return find(name)
metadata.version = version
from pathlib import Path
from fedcel.settings import parse_settings
from sims.engines.simulate import simulate
raw = {"engine": "local", "rounds": 2, "clients": 2, "local.steps": 2, "temperature": 0.0,
       "data.test": 40}
simulate(parse_settings(raw), Path(sys.argv[1]))
"""


def test_a_local_run_needs_neither_flower_nor_ray(tmp_path: Path) -> None:
    """Training and evaluation, versions included, where neither is installed.

    Nothing that the line of a round tells can be the name of a loss's metric.
    """
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "run")]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    result = (tmp_path / "run" / "result.json").read_text()
    assert '"torch"' in result
    assert '"ray"' not in result
    *_, line = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    assert json.loads(line).keys() <= RESERVED_METRICS
