"""The Ray engine: Flower's simulation runtime, one virtual SuperNode a client."""

import logging
import os
import warnings
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from clients import client_app
from fedcel.journal import Tell
from fedcel.settings import Settings
from strategies.app import serve

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # keeps Ray's GPU notice away on CPU machines
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}


def train(settings: Settings, folder: Path, tell: Tell, resume: bool = False) -> None:
    """Train into the run folder on Ray; an error in the ServerApp is raised here."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, settings, folder, tell, resume)

    os.environ.update({key: os.environ.get(key, value) for key, value in QUIET.items()})
    logger = logging.getLogger("flwr")
    logger.setLevel(logging.WARNING)
    logger.addFilter(not_about_us)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Tip:", FutureWarning)  # Ray's advice on env variables
        run_simulation(
            server_app=app,
            client_app=client_app(settings, (folder / "state").resolve()),
            num_supernodes=settings.clients,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"log_to_driver": False, "logging_level": logging.ERROR},
            },
        )


def not_about_us(record: logging.LogRecord) -> bool:
    """Drop Flower's advice to start simulations by `flwr run`: its in-process call is what we use.

    The command line's run needs a detached server process, and returns 0 when an app fails.
    """
    return "DEPRECATED FEATURE" not in str(record.msg)
