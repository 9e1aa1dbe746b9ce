r"""Replicas of the private service on a Ray cluster, which share one ledger and file of keys.

    serve run --working-dir examples/deployment ray_serve:build \
        run=RUN ledger=postgresql://USER@HOST/DATABASE keys=KEYS replicas=2

It needs `pip install "ray[serve]"` beside fedcel's extra `service`. RUN and KEYS are absolute
paths that every machine of the cluster can read. A ledger in a file serves replicas of one machine.
"""

from pathlib import Path

import torch
from fastapi import FastAPI
from pydantic import BaseModel
from ray import serve

from clients.service.app import ServiceApp
from clients.service.monitoring import configure_logs
from clients.service.service import Limits, Service
from clients.service.worker import ProcessWorker
from fedcel.privacy.ledger import parse_ledger_address
from fedcel.runs import run_folder
from sims.commands.web_server import load_offer

DRAIN_SECONDS = 30.0  # for questions under way when a replica ends


class Options(BaseModel):
    """What is served, and who pays for it."""

    run: Path
    ledger: str
    keys: Path | None = None
    replicas: int = 2
    rate: float = 50.0
    """Questions a second of one client to one replica, on average."""
    allow_chance: bool = False
    """Serve answers no better than a guess, too."""


def build(options: Options) -> serve.Application:
    """Return the application that Ray Serve runs."""

    def build_replica() -> FastAPI:
        torch.set_num_threads(1)
        configure_logs()
        run = run_folder.read_run(options.run)
        offer, _ = load_offer(run, {}, "torch", allow_chance=options.allow_chance)
        ledger = parse_ledger_address(options.ledger)
        limits, worker = Limits(rate=options.rate), ProcessWorker()  # it ends with the replica
        return ServiceApp(Service(offer, ledger, limits, keys=options.keys, worker=worker))

    @serve.deployment(
        num_replicas=options.replicas,
        max_ongoing_requests=256,
        graceful_shutdown_timeout_s=DRAIN_SECONDS,
        logging_config={"enable_access_log": False},  # the service writes its own
    )
    @serve.ingress(build_replica)
    class PrivateService:
        """One replica."""

    return PrivateService.bind()  # type: ignore[attr-defined,no-any-return]  # Serve adds it
