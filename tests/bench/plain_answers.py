"""Answers of a model server without privacy, at the worker that makes private answers."""

import json
from collections.abc import Sequence

import torch

from clients.service import PrivateAnswer, Query
from clients.service.worker import AnswerWorker
from fedcel.privacy.ledger import Refusal

BODY = b'{"unit": "logits", "label": 0, "values": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]}'


def answer_plainly(worker: AnswerWorker, asks: Sequence[Query]) -> list[PrivateAnswer | Refusal]:
    """Return what the heads say, for nothing."""
    model = worker._answerer.model
    rows = torch.stack([torch.frombuffer(bytearray(a.message), dtype=torch.float32) for a in asks])
    logits = model.predict(rows).logits
    pairs = zip(logits.argmax(1).tolist(), logits.tolist(), strict=True)
    fields = [{"unit": "logits", "label": label, "values": row} for label, row in pairs]
    bodies = [json.dumps(answer).encode() for answer in fields]
    return [PrivateAnswer(body, is_fresh=True, remaining=0, spent=0) for body in bodies]
