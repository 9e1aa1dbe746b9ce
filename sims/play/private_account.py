"""Account of the playground's visitor: the service's own private answers, with its own ledger."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clients.service import PrivateAnswerer, Query, load_served
from fedcel.errors import SettingsError
from fedcel.privacy import LabelledLogits, LabelOnlyAnswers, fit_calibration
from fedcel.privacy.ledger import Ledger, Refusal, to_granted_micro
from fedcel.runs import Run, predict_references

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
REFUSALS = {
    "budget": "The budget is spent: what is left is less than this answer costs.",
    "undefined": "The model has no finite answer to this message.",
}


class PrivateAccount:
    """Account of a visitor, which pays for the answers to messages.

    A message that was answered before, at the same epsilon, gets the same answer for nothing.

    Args:
        run: The finished run.
        folder: Where the ledger is written.
    """

    def __init__(self, run: Run, folder: Path) -> None:
        privacy = run.settings.privacy
        if not privacy.is_private:
            changed = LabelOnlyAnswers(epsilon=privacy.epsilon, budget=privacy.budget)
            run = run._replace(settings=run.settings.model_copy(update={"privacy": changed}))
        self.privacy = run.settings.privacy
        self.served, self.reason = None, ""
        try:
            self.served = load_served(run)
        except SettingsError as error:
            self.reason = str(error)
        self._references: LabelledLogits = predict_references(run)
        self._answerers: dict[float, PrivateAnswerer] = {}
        self._ledger = Ledger.open(folder / "ledger.db")
        self._numbers = itertools.count()
        self.start_again()

    @property
    def budget(self) -> float:
        """Return the epsilon that may be spent in all."""
        return self.privacy.budget

    def start_again(self) -> None:
        """Open a new account with a full budget; nothing real can."""
        self.client = f"visitor-{next(self._numbers)}"
        self._ledger.grant(self.client, to_granted_micro(self.budget))

    def ask(self, message: Float[Tensor, "1 D"], epsilon: float) -> dict[str, Any]:
        """Return a private answer to one message, or why there is none.

        Args:
            message: As the device sent it, (1, D).
            epsilon: What it may cost; one of `EPSILONS`.

        Returns:
            A JSON object.
        """
        if self.served is None:
            return {"refused": f"No private answers: {self.reason}."}
        answerer = self._find_answerer(epsilon)
        query = Query(
            self.client,
            f"question-{next(self._numbers):08d}",
            message[0].contiguous().numpy().astype("<f4").tobytes(),
            wants_uncertainty=False,
        )
        (reply,) = answerer.answer([query])
        balance = self._ledger.balance(self.client)
        budgets = {
            "spent": balance.spent / 1e6,
            "left": balance.remaining / 1e6,
            "budget": self.budget,
        }
        if isinstance(reply, Refusal):
            return {"refused": REFUSALS.get(reply.reason, reply.reason), **budgets}
        body = json.loads(reply.body)
        return {
            "label": body["label"],
            "probabilities": body["probabilities"],
            "is-fresh": reply.is_fresh,
            "cost": reply.spent / 1e6,
            **budgets,
        }

    def _find_answerer(self, epsilon: float) -> PrivateAnswerer:
        """Return what answers at an epsilon, made when it is first asked for."""
        if epsilon not in self._answerers:
            assert self.served is not None  # `ask` says so first
            privacy = self.privacy.model_copy(update={"epsilon": epsilon})
            mechanism = privacy.build(self.served.classes)
            calibration = fit_calibration(
                mechanism, self._references.logits, self._references.labels
            )
            self._answerers[epsilon] = PrivateAnswerer(
                replace(self.served, privacy=privacy),
                mechanism,
                self._ledger,
                calibration=calibration,
            )
        return self._answerers[epsilon]

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()


def prepare_answers(account: PrivateAccount, width: int, show: Callable[[int], None]) -> None:
    """Ask once at each epsilon, so that no first question waits, and open a new account."""
    if account.served is not None:
        for number, epsilon in enumerate(EPSILONS):
            show(number)
            account.ask(torch.zeros(1, width), epsilon)
    account.start_again()
