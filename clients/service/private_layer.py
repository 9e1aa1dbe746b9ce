"""Private answers over the logits of any model: keys, charges, repeats, in front of its caller.

For operators who already serve a model with another stack. Needs no web framework.
"""

import json
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Self, final

import numpy as np
import torch
from torch import Tensor

from clients.service.access import KeyStore, check_request_id, key_table_path
from clients.service.private_answers import ChargedMechanism, PrivateAnswer
from clients.service.problems import explain_refusal
from fedcel.errors import SettingsError
from fedcel.forks import restart_in_forks
from fedcel.privacy import AnswerCalibration, Mechanism
from fedcel.privacy.ledger import Ledger, LedgerAddress, Refusal, parse_ledger_address

Logits = Sequence[float] | np.ndarray | Tensor


@final
class PrivateLayer:
    """Turns a model's logits into private answers that are charged to a budget.

    Threads may share it; after a fork each process opens its own connection to the ledger.

    Example::

        layer = PrivateLayer(LabelOnly(epsilon=4, classes=10), "budget.db", model="digits-1")
        client = layer.authenticate(headers.get("authorization"))
        answer = layer.answer(client, headers["idempotency-key"], body, logits)
        reply = answer.to_json()

    Args:
        mechanism: Perturbs a row of logits.
        ledger: Budgets: a file, made if missing, or `postgresql://USER@HOST/DATABASE`.
            `fedcel ledger keys LEDGER --client NAME` makes a client and its key.
        model: Name of the model's weights, up to 200 characters. Change it with the weights:
            answers are stored by it.
        classes: Logits of a row; None: the mechanism's.
        calibration: Adds probabilities to answers, see `fedcel.privacy.fit_calibration`.
        keys: File of clients' keys; None: LEDGER.keys.json.

    Raises:
        SettingsError: The model has no name, the number of classes is not known, or the ledger in
            PostgreSQL has no file of keys.
        LedgerError: The ledger cannot be opened.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        ledger: str | LedgerAddress,
        *,
        model: str,
        classes: int | None = None,
        calibration: AnswerCalibration | None = None,
        keys: str | Path | None = None,
    ) -> None:
        if not 0 < len(model) <= 200:
            raise SettingsError(
                f"model has {len(model)} characters, must be a name of 1 to 200; try 'digits-1'"
            )
        classes = classes or getattr(mechanism, "classes", None)
        if not classes:
            raise SettingsError(f"{mechanism.name!r} does not say its classes; give `classes`")
        self.mechanism = mechanism
        self.classes = int(classes)
        self.calibration = calibration
        self._address = parse_ledger_address(ledger)
        self._keys = KeyStore(key_table_path(self._address, keys))
        self._law = describe_mechanism(mechanism)
        self._model = model
        self._lock = Lock()
        self._opened: ChargedMechanism | None = None
        self._inherited: list[ChargedMechanism] = []
        """Connections of the process that this one was forked from: they are not touched."""
        self._is_closed = False
        restart_in_forks(self)
        Ledger.open(self._address).close()  # what is wrong with it is said now

    @property
    def version(self) -> str:
        """Return 32 hex digits of the model's name and the mechanism, as the ledger knows them."""
        return sha256(self._law + self._model.encode()).hexdigest()[:32]

    def authenticate(self, authorization: str | None) -> str:
        """Return the client of a header `Bearer KEY`; ProblemError where the key is not valid."""
        return self._keys.authenticate(authorization).client

    def answer(self, client: str, request: str, message: bytes, logits: Logits) -> PrivateAnswer:
        """Charge a client and perturb the logits, or give it the answer that it got before.

        Args:
            client: Client that pays.
            request: The client's own id of the request, 8 to 64 letters, digits, `.`, `_`, `-`.
                Sent again with the same message, it costs nothing.
            message: All that decides the logits besides the model, the request's body for example.
            logits: The model's answer, (C,).

        Raises:
            ProblemError: The request id is none, or a budget is spent; nothing may leave.
            ValueError: Not one logit a class; nothing was charged.
            LedgerError: The ledger cannot be written; nothing may leave.
        """
        check_request_id(request)
        row = read_row(logits, self.classes)
        digest = sha256(self._law + b"\0" + message).digest()
        with self._lock:  # a mechanism need not be safe for threads
            paid = self._open()
            (reply,) = paid.answer([paid.build_charge(client, request, digest)], row[None])
        if isinstance(reply, Refusal):
            raise explain_refusal(reply)
        return reply

    def close(self) -> None:
        """Close the ledger; what was charged stays charged."""
        with self._lock:
            self._is_closed = True
            if self._opened is not None:
                self._opened.ledger.close()
                self._opened = None

    def restart(self) -> None:
        """Begin again in a process that was forked."""
        self._lock = Lock()
        if self._opened is not None:
            self._inherited.append(self._opened)
            self._opened = None

    def __enter__(self) -> Self:
        """Return this layer."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the ledger."""
        self.close()

    def _open(self) -> ChargedMechanism:
        """Return what answers in this process; a connection from before a fork is not touched."""
        if self._is_closed:
            raise ValueError("the layer is closed; make another one")
        if self._opened is None:
            ledger = Ledger.open(self._address)
            self._opened = ChargedMechanism(self.mechanism, ledger, self.version, self.calibration)
        return self._opened


def describe_mechanism(mechanism: Mechanism) -> bytes:
    """Return canonical JSON of what is known of a mechanism: its law, and what plain fields say."""
    law: dict[str, object] = {
        "name": mechanism.name,
        "epsilon": mechanism.epsilon,
        "delta": mechanism.delta,
        "unit": mechanism.unit,
    }
    if is_dataclass(mechanism):
        stated = {field.name: getattr(mechanism, field.name) for field in fields(mechanism)}
        law |= {key: value for key, value in stated.items() if isinstance(value, str | int | float)}
    return json.dumps(law, sort_keys=True, separators=(",", ":")).encode()


def read_row(logits: Logits, classes: int) -> Tensor:
    """Return logits as (C,) in double precision; ValueError where they are not one a class."""
    row = torch.as_tensor(logits, dtype=torch.float64).detach().cpu()
    if row.shape != (classes,):
        raise ValueError(
            f"logits of one input are {tuple(row.shape)}, must be ({classes},); give one row at a "
            "time"
        )
    return row
