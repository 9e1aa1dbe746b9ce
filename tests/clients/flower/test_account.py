"""Answers of a node that an account on its own ledger pays for."""

from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict

from clients import EvaluationClient, make_client_app
from clients.flower.client_app import find_account
from clients.flower.evaluation_client import Account
from fedcel.errors import SettingsError
from fedcel.federation import record_names
from fedcel.privacy.ledger import MICRO, Ledger
from fedcel.run_parts import build_workspace_net, select_client_images
from fedcel.settings import parse_settings

S = parse_settings(
    {"clients": 4, "net.features": 8, "net.width": 16, "privacy.mechanism": "laplace"}
)
ROWS = np.random.default_rng(0).random((3, 8), dtype=np.float32)


def make_client() -> EvaluationClient:
    flat = build_workspace_net(S)
    return EvaluationClient(S, flat, select_client_images(S, 0), [flat.vector.clone()])


def test_each_message_is_paid_once_and_answered_the_same(tmp_path: Path) -> None:
    """Three messages at 4 epsilon of 13: a repeat is free, a fourth is refused."""
    client = make_client()
    account = Account(tmp_path / "ledger.db", "flower-1")
    with Ledger.open(account.ledger) as ledger:
        ledger.admit("flower-1", 13 * MICRO)
        first = client.query(ROWS, account)
        assert first.shape == (3, 10) and first.dtype == np.float32
        assert ledger.balance("flower-1").remaining == MICRO
        assert np.array_equal(client.query(ROWS[::-1].copy(), account), first[::-1])
        assert ledger.balance("flower-1").remaining == MICRO
        with pytest.raises(ValueError, match="cannot pay for an answer: budget, epsilon 1 left"):
            client.query(ROWS + 1, account)
        assert ledger.balance("flower-1").remaining == MICRO
    assert not np.array_equal(client.query(ROWS), client.query(ROWS))


def test_a_query_that_is_paid_in_part_says_so(tmp_path: Path) -> None:
    """Two of three messages at 4 epsilon of 9: these cost nothing when they are asked again."""
    client = make_client()
    account = Account(tmp_path / "ledger.db", "flower-1")
    with Ledger.open(account.ledger) as ledger:
        ledger.admit("flower-1", 9 * MICRO)
        with pytest.raises(ValueError, match="epsilon 1 left.*; 2 others of the query are paid"):
            client.query(ROWS, account)
        assert client.query(ROWS[:2], account).shape == (2, 10)
        assert ledger.balance("flower-1").remaining == MICRO


def test_a_message_without_a_finite_answer_is_told_so(tmp_path: Path) -> None:
    """It is not the account that lacks anything; nothing is charged."""
    flat = build_workspace_net(S)
    vector = flat.vector.clone()
    vector[flat.device_size :] = 1e30
    client = EvaluationClient(S, flat, select_client_images(S, 0), [vector])
    account = Account(tmp_path / "ledger.db", "flower-1")
    with pytest.raises(ValueError, match="no finite answer"):
        client.query(ROWS * 1e30, account)
    with Ledger.open(account.ledger) as ledger:
        assert ledger.balance("flower-1").spent == 0


def test_a_message_may_be_asked_again_of_another_model(tmp_path: Path) -> None:
    """It is another question, paid anew; the asker was unknown and got `privacy.budget`."""
    flat = build_workspace_net(S)
    account = Account(tmp_path / "ledger.db", "flower-1")
    for spent, vector in ((12, flat.vector.clone()), (24, flat.vector * 1.5)):
        EvaluationClient(S, flat, select_client_images(S, 0), [vector]).query(ROWS, account)
        with Ledger.open(account.ledger) as ledger:
            balance = ledger.balance("flower-1")
        assert (balance.granted, balance.spent) == (100 * MICRO, spent * MICRO)


def test_a_node_without_a_ledger_answers_nobody() -> None:
    """Else one message could be asked until its noise is averaged away."""
    content = RecordDict({record_names.SMASHED: ArrayRecord([ROWS])})
    message = Message(content, dst_node_id=101, message_type="query.logits")
    at = Context(1, 101, {"partition-id": 1}, RecordDict(), {})
    with pytest.raises(SettingsError, match="this node has no ledger"):
        find_account(message, at)


def test_a_node_with_a_ledger_answers_through_it(tmp_path: Path) -> None:
    """`ledger-path` in the node's config; whoever asks is the account."""
    path = tmp_path / "ledger.db"
    config = {"partition-id": 1, "ledger-path": str(path)}
    vector = build_workspace_net(S).vector.numpy().copy()
    content = RecordDict(
        {record_names.SMASHED: ArrayRecord([ROWS]), record_names.SAMPLES: ArrayRecord([vector])}
    )
    answers = []
    for _ in range(2):
        message = Message(content, dst_node_id=101, message_type="query.logits")
        at = Context(1, 101, dict(config), RecordDict(), {})
        reply = make_client_app(S)(message, at)
        answers.append(reply.content[record_names.LOGITS].to_numpy_ndarrays()[0])
    assert np.array_equal(*answers)
    with Ledger.open(path) as ledger:
        assert ledger.balance("flower-1").spent == 12 * MICRO
    assert np.isfinite(answers[0]).all()
