"""What an attacker of a finished run gets to see."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from clients import EvaluationClient
from fedcel.attacks import SmashedData
from fedcel.nets import SplitNet
from fedcel.outcome import sampled
from fedcel.posterior.predict import what_is_sent
from fedcel.runs import Run


@dataclass(frozen=True)
class PrivateLogits:
    """Answers of the evaluation client: encode, noise at the cut, head, clip, mechanism."""

    client: EvaluationClient
    net: SplitNet
    name: str = "private-logits"
    grants: frozenset[str] = frozenset()

    def sample(
        self, images: Float[Tensor, "B C H W"], generator: torch.Generator
    ) -> Float[Tensor, "B K"]:
        """Return one fresh private answer per image, through the client's query path."""
        with torch.no_grad():
            message = self.net.add_noise(self.net.encode(images), generator)
        return torch.from_numpy(self.client.query(message.numpy()))


def observations(run: Run) -> list[SmashedData | PrivateLogits]:
    """Return the surfaces of a run: smashed data, and its private logits.

    In scope `full` a single message fits one encoder only, so the last sample answers alone.
    """
    samples, scope = sampled(run), run.settings.chain.scope
    served = samples if scope == "head" else samples[-1:]
    client = EvaluationClient(run.settings, run.flat, run.splits.test, served)
    message = what_is_sent(run.flat, served, "head")
    return [SmashedData(what_is_sent(run.flat, samples, scope)), PrivateLogits(client, message)]
