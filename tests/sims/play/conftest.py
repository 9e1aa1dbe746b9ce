"""A bench of two encoders, trained in seconds, and its playground on a real socket."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from clients.service_messages import LOOPBACK_HOSTS
from fedcel.attacks.decoder import FLAT_PACE
from sims.bench import run_bench, scenario
from sims.play import Playground, create_app, open_playground
from tests.sims.served_page import serve_app
from tests.sims.small import QUICK
from tests.spared import spare_bound, spare_figures

FEW_EPOCHS = FLAT_PACE._replace(epochs=FLAT_PACE.epochs // 12)
SETTINGS = QUICK | {"rounds": 12, "local.steps": 20, "data.test": 80, "data.auxiliary": 60}


class Served(NamedTuple):
    """A playground that listens."""

    playground: Playground
    client: httpx.Client

    def look(self, **question: Any) -> Any:
        """Return the answer to a question of the page."""
        reply = self.client.post("/api/look", json=question)
        assert reply.status_code == 200, reply.text
        return reply.json()


def shorten_decoders(patch: pytest.MonkeyPatch) -> None:
    """Let decoders learn in a twelfth of the time."""
    patch.setattr("fedcel.attacks.decoder.FLAT_PACE", FEW_EPOCHS)


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undefended encoder and one with a loss, of the same digits."""
    folder = tmp_path_factory.mktemp("play")
    path = folder / "pair.toml"
    path.write_text(
        'title = "A pair"\n[[variant]]\nname = "cluster"\nsettings = { cel = { kind = "cluster", '
        'weight = 1.0 } }\n[[variant]]\nname = "none"\nsettings = { net = { noise = 0.1 } }\n'
    )
    plan = scenario.read_scenario(str(path))
    with pytest.MonkeyPatch.context() as patch:
        spare_bound(patch)
        spare_figures(patch)
        run_bench.run_bench(plan, scenario.list_cells(plan, SETTINGS), folder / "bench")
    return folder / "bench"


@pytest.fixture(scope="session")
def served(bench: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Its playground, for all tests that change nothing but the budget."""
    steps = list[tuple[float, float]]()
    folder = tmp_path_factory.mktemp("ledgers")
    with pytest.MonkeyPatch.context() as patch:
        shorten_decoders(patch)
        playground = open_playground(
            bench, folder, lambda done, total, _: steps.append((done, total))
        )
        for column in playground.columns:
            column.attackers.wait()
    assert [done for done, _ in steps] == sorted(done for done, _ in steps) and len(steps) > 3
    with serve_app(create_app(playground, LOOPBACK_HOSTS)) as client:
        yield Served(playground, client)
    playground.close()
