"""The evaluation client's answers."""

import numpy as np
import pytest
import torch

from clients import EvaluationClient
from fedcel.data import Images, to_floats
from fedcel.run_parts import build_workspace_net, select_client_images
from fedcel.settings import parse_settings

S = parse_settings({"clients": 4, "privacy.mechanism": "none", "privacy.clip": 100.0})
TEST = select_client_images(S, 0)


def client(samples: int = 2) -> EvaluationClient:
    """Return a client that serves `samples` posterior samples."""
    flat = build_workspace_net(S)
    stream = torch.Generator().manual_seed(0)
    vectors = [torch.randn(flat.vector.shape, generator=stream) * 0.1 for _ in range(samples)]
    return EvaluationClient(S, flat, TEST, vectors)


def test_the_answer_is_the_average_over_sampled_heads() -> None:
    """Without mechanism and with a wide clip: the centred log of the mean probability."""
    c = client()
    message = np.random.default_rng(0).random((5, 64), dtype=np.float32)
    heads = []
    for vector in c.samples:
        c.flat.load(vector)
        with torch.no_grad():
            heads.append(c.flat.net.answer(torch.from_numpy(message)).softmax(1))
    want = torch.stack(heads).mean(0).log()
    want = want - want.mean(1, keepdim=True)
    np.testing.assert_allclose(c.query(message), want.numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (np.zeros((2, 63), np.float32), r"smashed data are \(2, 63\), must be \(B, 64\)"),
        (np.zeros(64, np.float32), r"must be \(B, 64\)"),
        (np.full((1, 64), np.nan, np.float32), "smashed data hold NaN"),
    ],
)
def test_bad_messages_are_refused(message: np.ndarray, reason: str) -> None:
    """Shape and values are checked before the head sees them."""
    with pytest.raises(ValueError, match=reason):
        client().query(message)


def test_without_a_model_there_is_no_answer() -> None:
    """An empty chain is said, not answered with zeros."""
    with pytest.raises(ValueError, match="no model to answer with"):
        client(0).query(np.zeros((1, 64), np.float32))


def test_bytes_are_scored_as_the_numbers_that_they_are() -> None:
    """The images of a node may be unsigned bytes."""
    pixels = (255 * TEST.x).round().to(torch.uint8)
    scores = []
    for x in (pixels, to_floats(pixels)):
        scored = client()
        scored.images = Images(x, TEST.y)
        scores.append(scored.evaluate([], {})[0])
    assert scores[0] == scores[1]
