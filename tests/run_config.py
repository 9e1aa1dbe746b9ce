"""Tables of pyproject.toml that list every setting, without which `flwr run` refuses its key.

`python -m tests.run_config` writes them anew, after a change of settings.
"""

import re
from pathlib import Path
from typing import Any

import tomli_w

from fedcel.settings import CONNECTED_NODES, UNSET, describe_settings

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
_TABLES = re.compile(
    r"(?ms)^\[tool\.flwr\.app\.config\.\w+\]$.*?(?=^\[(?!tool\.flwr\.app\.config)|\Z)"
)


def list_defaults() -> dict[str, Any]:
    """List the defaults of the settings by group, and of keys that only the server reads.

    But for `clients`, which it leaves to the connected nodes.
    """
    tables: dict[str, Any] = {"out": UNSET, "resume": False, "recount": False}
    for setting in describe_settings():
        group, _, key = setting.key.rpartition(".")
        table = tables.setdefault(group, {}) if group else tables
        table[key] = setting.default
    return tables | {"clients": CONNECTED_NODES}


if __name__ == "__main__":
    groups = {name: table for name, table in list_defaults().items() if isinstance(table, dict)}
    written = tomli_w.dumps({"tool": {"flwr": {"app": {"config": groups}}}})
    PYPROJECT.write_text(_TABLES.sub(written, PYPROJECT.read_text(), count=1))
