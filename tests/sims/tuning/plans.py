"""A small scenario with ranges, read from its text, and its tuning."""

from pathlib import Path

from sims.bench import scenario
from sims.tuning import search, tune

TEXT = """
[settings]
clients = 3
rounds = 5
local = { steps = 3 }
[tune]
local = { rate = "0.1..1" }
[[variant]]
name = "none"
[[variant]]
name = "plain"
settings = { cel = { kind = "plain", warm-up = 0 } }
[variant.tune]
cel = { weight = "0.1..1" }
net = { noise = "0.2|0.4" }
"""


def tuned(
    plan: scenario.Scenario, trials: int, overrides: search.FlatSettings, jobs: int = 1
) -> dict[str, object]:
    """Return the tuned scenario; trials are kept beside the file."""
    return tune.tune_scenario(plan, trials, overrides, plan.path.with_suffix(".log"), jobs=jobs)


def read(folder: Path, text: str = TEXT) -> scenario.Scenario:
    path = folder / "s.toml"
    path.write_text(text)
    return scenario.read_scenario(str(path))
