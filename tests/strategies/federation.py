"""Small federations of nodes in this process, and what befalls some of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from clients import make_client_app
from fedcel.federation import record_names
from fedcel.files import read_tensors
from fedcel.flower_messages import allow_messages
from fedcel.runs import EventCallback, create_run
from fedcel.settings import Settings
from sims.engines.simulated_grid import InMemoryGrid
from strategies.server_app import train_over_grid

Events = list[dict[str, Any]]


def make_app(settings: Settings, befall: Callable[[Context, int], None]) -> ClientApp:
    """Return our ClientApp; before a node trains in a round, something may befall it."""
    inner, outer = make_client_app(settings), ClientApp()
    outer.query(record_names.COUNT_QUERY)(inner)

    @outer.train()
    def train(message: Message, context: Context) -> Message:
        befall(context, int(message.content["config"][record_names.ROUND]))
        return inner(message, context)

    return outer


def fail_at(settings: Settings, partitions: set[int], number: int | None = None) -> ClientApp:
    """Return our ClientApp, whose nodes of some partitions fail in a round, or in each."""

    def fail(context: Context, round_number: int) -> None:
        is_round = number in (None, round_number)
        if is_round and context.node_config["partition-id"] in partitions:
            raise RuntimeError("no images")

    return make_app(settings, fail)


def train_nodes(
    folder: Path,
    settings: Settings,
    grid: InMemoryGrid | None = None,
    *,
    resume: bool = False,
    measure: bool = False,
    show_round: EventCallback = lambda event: None,
) -> tuple[torch.Tensor, Events]:
    """Train over a grid, by default of our own nodes; return the model and the rounds."""
    if not resume:
        create_run(folder, settings)
    with allow_messages():
        nodes: Any = grid or InMemoryGrid(make_client_app(settings), settings.clients)
        train_over_grid(nodes, settings, folder, show_round, resume=resume, measure=measure)
    return read_tensors(folder / "model.safetensors")[0]["model"], read_events(folder)


def read_events(folder: Path) -> Events:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
