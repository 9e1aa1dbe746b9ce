"""A plain NumPyClient, and the ClientApp that lets `PosteriorStrategy` talk to it."""

from collections.abc import Callable
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn.functional import cross_entropy


class SGDClient(NumPyClient):
    """Trains any torch module on images of its own by SGD; it knows nothing of fedcel."""

    def __init__(self, net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        self.net, self.x, self.y = net, x, y

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return how many images it holds."""
        return {"num-examples": len(self.y)}

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict]:
        """Return the arrays after ten steps on all images, their number, the last loss."""
        self.load(parameters)
        for _ in range(10):
            self.net.zero_grad()
            loss = cross_entropy(self.net(self.x), self.y)
            loss.backward()
            with torch.no_grad():
                for value in self.net.parameters():
                    value -= 0.5 * value.grad
        arrays = [value.detach().numpy() for value in self.net.parameters()]
        return arrays, len(self.y), {"loss": loss.item()}

    def evaluate(self, parameters: list[Any], config: dict[str, Any]) -> tuple[float, int, dict]:
        """Return the loss, the number of images, the accuracy."""
        self.load(parameters)
        with torch.no_grad():
            logits = self.net(self.x)
        accuracy = torch.eq(logits.argmax(1), self.y).double().mean()
        return cross_entropy(logits, self.y).item(), len(self.y), {"accuracy": accuracy.item()}

    def load(self, parameters: list[Any]) -> None:
        """Write the arrays into the net."""
        for value, array in zip(self.net.parameters(), parameters, strict=True):
            value.data = torch.tensor(array)


def make_client_app(client_fn: Callable[[Context], NumPyClient]) -> ClientApp:
    """Return the app of any NumPyClient that trains weights: it sends their difference.

    `PosteriorStrategy` asks how many examples a node holds before round 1, and takes from each one
    message a round with records `delta` and `metrics`.
    """
    app = ClientApp()

    @app.query("count")
    def count(message: Message, context: Context) -> Message:
        count = client_fn(context).get_properties({})["num-examples"]
        return make_reply(message, {"num-examples": count, "partition": read_partition(context)})

    @app.train()
    def train(message: Message, context: Context) -> Message:
        received, config = read_message(message)
        trained, count, metrics = client_fn(context).fit(received, config)
        delta = [new - old for new, old in zip(trained, received, strict=True)]
        return make_reply(message, {**metrics, "num-examples": count}, delta=ArrayRecord(delta))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        loss, count, metrics = client_fn(context).evaluate(*read_message(message))
        return make_reply(message, {**metrics, "nll": loss, "num-examples": count})

    return app


def read_message(message: Message) -> tuple[list[Any], dict[str, Any]]:
    """Return the model's arrays, which a client may overwrite, and the round's settings."""
    received = message.content["arrays"].to_numpy_ndarrays()
    return [array.copy() for array in received], dict(message.content["config"])


def make_reply(message: Message, metrics: dict[str, Any], **records: ArrayRecord) -> Message:
    """Return the reply."""
    return Message(RecordDict({"metrics": MetricRecord(metrics), **records}), reply_to=message)


def read_partition(context: Context) -> int:
    """Return which of the run's holders this node is."""
    return int(context.node_config["partition-id"])
