"""Account of the playground's visitor: the service's own private answers, with its own ledger."""

import itertools
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clients.service import PrivateAnswerer, Query, load_served
from fedcel.errors import SettingsError
from fedcel.privacy import LabelOnlyAnswers, fit_calibration
from fedcel.privacy.ledger import MICRO, Ledger, Refusal, to_granted_micro
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
        folder: Where the ledger is written; made if missing.
    """

    def __init__(self, run: Run, folder: Path) -> None:
        privacy = run.settings.privacy
        if not privacy.is_private:
            changed = LabelOnlyAnswers(epsilon=privacy.epsilon, budget=privacy.budget)
            run = run._replace(settings=run.settings.model_copy(update={"privacy": changed}))
        self.privacy = run.settings.privacy
        self._reason = ""
        try:
            self._served = load_served(run)
        except SettingsError as error:
            self._reason = str(error)
        self._references = predict_references(run)
        self._find_answerer = cache(self._build_answerer)
        folder.mkdir(exist_ok=True)
        self._ledger = Ledger.open(folder / "ledger.db")
        self._numbers = itertools.count()
        self.start_again()
        if not self._reason:  # no first question waits
            for epsilon in EPSILONS:
                self.ask(torch.zeros(1, self._served.net.features), epsilon)
            self.start_again()

    @property
    def budget(self) -> float:
        """Return the epsilon that may be spent in all."""
        return self.privacy.budget

    def start_again(self) -> None:
        """Open a new account with a full budget; nothing real can."""
        self._client = f"visitor-{next(self._numbers)}"
        self._ledger.grant(self._client, to_granted_micro(self.budget))

    def ask(self, message: Float[Tensor, "1 D"], epsilon: float) -> dict[str, Any]:
        """Return a private answer to one message, or why there is none, as a JSON object.

        `message` is what the device sent, `epsilon` its price, one of `EPSILONS`.
        """
        if self._reason:
            return {"refused": f"No private answers: {self._reason}."}
        content = message[0].contiguous().numpy().astype("<f4").tobytes()
        query = Query(self._client, "", content, wants_uncertainty=False)
        (reply,) = self._find_answerer(epsilon).answer([query])
        balance = self._ledger.balance(self._client)
        budgets = {
            "spent": balance.spent / MICRO,
            "left": balance.remaining / MICRO,
            "budget": self.budget,
        }
        if isinstance(reply, Refusal):
            return {"refused": REFUSALS.get(reply.reason, reply.reason), **budgets}
        body = json.loads(reply.body)
        return {
            "label": body["label"],
            "probabilities": body["probabilities"],
            "is-fresh": reply.is_fresh,
            "cost": reply.spent / MICRO,
            **budgets,
        }

    def _build_answerer(self, epsilon: float) -> PrivateAnswerer:
        """Return what answers at an epsilon."""
        privacy = self.privacy.model_copy(update={"epsilon": epsilon})
        mechanism = privacy.build(self._served.classes)
        references = self._references
        calibration = fit_calibration(mechanism, references.logits, references.labels)
        model = replace(self._served, privacy=privacy)
        return PrivateAnswerer(model, mechanism, self._ledger, calibration)

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()
