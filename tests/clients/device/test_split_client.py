"""The client against a real service in this process."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import torch

from clients.device import ImageOwner, PrivatePrediction, SplitClient
from clients.device.conversation import check_url
from clients.device.device import Device
from clients.service_messages import ExpectedCard
from fedcel.errors import DataError, LeakError, LeakLimitError, ModelVersionError, ServiceError
from fedcel.posterior.predict import apply_heads
from fedcel.privacy.ledger import MICRO, Ledger
from tests.clients.serving import Running, made_run, running

RUN = made_run(
    **{"net.noise": 2.0, "privacy.epsilon": 1e4, "privacy.budget": 1e6},
    **{"privacy.mechanism": "laplace", "privacy.clip": 50.0},
)
X, Y = RUN.splits.test
OWNER = ImageOwner(X[:100], Y[:100])


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service whose answers are nearly exact."""
    with running(tmp_path_factory.mktemp("service"), RUN) as service:
        yield service


def test_an_image_is_answered_and_stays_here(up: Running) -> None:
    """The noisy values are near the heads' average of the message that was sent."""
    with SplitClient(up.url, up.key, OWNER) as client:
        answer = client.ask(X[0], uncertainty=True)
        message = torch.frombuffer(
            bytearray(client.device.build_message(X[0])), dtype=torch.float32
        )
        again = client.ask(X[0], uncertainty=True)
        remaining = client.budget().remaining
    expected = apply_heads(RUN.flat, RUN.samples, message[None]).exp().mean(0)[0].double()
    torch.testing.assert_close(answer.values.softmax(0), expected, rtol=0, atol=0.1)
    read = up.service.offer.calibration.probabilities(answer.values[None])[0]
    torch.testing.assert_close(answer.probabilities, read, rtol=0, atol=1e-5)
    assert answer.label == int(read.argmax()) and float(answer.probabilities.sum()) == 1
    assert torch.equal(again.values, answer.values) and not again.is_fresh and answer.is_fresh
    assert again.uncertainty == answer.uncertainty and answer.uncertainty
    assert again.remaining_epsilon == answer.remaining_epsilon == remaining
    assert again.leaked_bits == answer.leaked_bits == client.device.leak.upper


def test_threads_share_a_client(up: Running) -> None:
    """Twenty questions together, each charged once."""
    with SplitClient(up.url, up.key, OWNER) as client, ThreadPoolExecutor(20) as pool:
        before = client.budget().spent
        answers = list(pool.map(client.ask, X[:20]))
        assert client.budget().spent - before == 20 * 10_000
        told = max(answer.leaked_bits for answer in answers)  # they are counted in any order
        assert client.device.leaked_bits == told
    assert all(answer.is_fresh for answer in answers)


def test_another_model_version_is_an_error_of_its_own(up: Running) -> None:
    """It says which version is served; a new client with the same folder goes on with that one."""
    with SplitClient(up.url, up.key, OWNER) as client:
        old = client.card.model_copy(update={"model": "0" * 32})
        client.device = replace(client.device, card=old)
        with pytest.raises(ModelVersionError, match=f"409.*{up.service.model.version}"):
            client.ask(X[0])


def test_a_leaking_encoder_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    """Without noise; nothing but the model's card and encoder was fetched."""
    with running(tmp_path, made_run(**{"net.noise": 0.01})) as up:
        with pytest.raises(LeakError, match="leaks up to"):
            SplitClient(up.url, up.key, OWNER)
        assert 'route="/v1/query"' not in httpx.get(f"{up.url}/metrics").text


def test_the_limit_of_all_messages_holds_before_sending(up: Running) -> None:
    """One message fits, the second does not and costs nothing."""
    with SplitClient(up.url, up.key, OWNER) as client:
        leak = client.device.leak._replace(bits=1.0)  # an untrained encoder tells next to nothing
        device = replace(client.device, leak=leak, limit=1.9 * leak.upper)
        client.device = device
        assert client.ask(X[30]).leaked_bits == client.device.leaked_bits
        with Ledger.open(up.ledger) as ledger:
            spent = ledger.balance("phone").spent
        with pytest.raises(LeakLimitError, match="nothing was sent"):
            client.ask(X[31])
        with Ledger.open(up.ledger) as ledger:
            assert ledger.balance("phone").spent == spent > 10_000 * MICRO


@pytest.mark.parametrize("key", ["", "fedcel_abc\n", "fedcel_“"])
def test_a_key_that_no_header_takes_is_refused(key: str) -> None:
    """As read from a file with its end of line; the network is not to blame."""
    with pytest.raises(ServiceError, match="the key .*such as an end of line"):
        SplitClient("http://127.0.0.1:1", key, OWNER)


@pytest.mark.parametrize(
    "url", ["http://example.org", "ftp://localhost", "example.org", "http://127.0.0.1.org", ""]
)
def test_keys_travel_encrypted_or_not_at_all(url: str) -> None:
    """Plain HTTP to this machine alone."""
    with pytest.raises(ServiceError, match="https"):
        check_url(url)
    assert check_url("https://example.org") == "https://example.org"
    for port in ("x", "70000"):
        with pytest.raises(ServiceError, match="(?i)port"):
            check_url(f"https://example.org:{port}")


def test_trust_cannot_be_turned_off_and_errors_say_what_is_wrong(
    up: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No certificate check, a wrong key, nobody there."""
    with pytest.raises(ServiceError, match="anybody could answer"):
        SplitClient("https://localhost:1", up.key, OWNER, verify=False)
    with pytest.raises(ServiceError, match="401"):
        SplitClient(up.url, "wrong", OWNER)
    monkeypatch.setattr("clients.device.conversation.MAX_CONNECT_SECONDS", 0.1)
    with pytest.raises(ServiceError, match="no connection"):
        SplitClient("http://127.0.0.1:9", up.key, OWNER)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads
def test_a_client_is_of_one_process_and_ends_with_its_context(up: Running) -> None:
    """Two processes on one connection would read each other's answers."""
    with SplitClient(up.url, up.key, OWNER) as client:
        child = os.fork()
        if child == 0:
            try:
                client.close()
                client.budget()
            except ServiceError:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.budget().client == "phone"
    with pytest.raises(ServiceError, match="closed"):
        client.ask(X[0])
    client.close()  # twice is once


def test_a_reply_without_end_is_cut(up: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """More bytes than a reply may have."""
    endless = httpx.MockTransport(lambda _: httpx.Response(200, content=b"0" * (2**20 + 1)))
    real = httpx.Client
    monkeypatch.setattr(
        httpx, "Client", lambda **k: real(base_url=k["base_url"], transport=endless)
    )
    with pytest.raises(ServiceError, match="longer than"):
        SplitClient(up.url, up.key, OWNER)


def test_a_reply_that_cannot_be_decoded_is_an_error_in_words(
    up: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that it is packed, and is not."""
    packed = {"content-encoding": "gzip"}
    broken = httpx.MockTransport(
        lambda _: httpx.Response(200, headers=packed, stream=httpx.ByteStream(b"plain"))
    )
    real = httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **k: real(base_url=k["base_url"], transport=broken))
    with pytest.raises(ServiceError, match="the reply cannot be decoded"):
        SplitClient(up.url, up.key, OWNER)


def test_what_a_device_prints_shows_no_image_and_no_table() -> None:
    """A log may leave the device: shapes stand in the place of images and answers."""
    assert repr(OWNER).startswith("ImageOwner(images=float32[100, 1, 8, 8], labels=int64[100]")
    values = torch.zeros(3)
    answer = PrivatePrediction(1, values, values, None, True, 96.0, 0.8)
    assert "label=1, probabilities=float32[3]" in str(answer) and "tensor(" not in str(answer)


def test_frames_of_a_scene_are_metered_together(up: Running) -> None:
    """By the name that the caller gives them; with a limit of groups each image has one."""
    with SplitClient(up.url, up.key, replace(OWNER, group_limit=1e3)) as client:
        first, second = (client.ask(X[30 + k], group="kitchen") for k in range(2))
        other = client.ask(X[40], group="hall")
        with pytest.raises(DataError, match="name the scene"):
            client.ask(X[41])
        assert len({first.leaked_bits, second.leaked_bits, other.leaked_bits}) == 3


def test_a_client_shows_what_the_service_claims_of_its_answers(
    up: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As /v1/model states it; nothing where the service states nothing."""
    claim = ExpectedCard(
        accuracy=0.8, half_width=0.02, images=400, without_privacy=0.9, guess=0.1, ece=0.01
    )
    with SplitClient(up.url, up.key, OWNER) as client:
        assert client.claimed_answers is None
    card = up.service.model_card.model_copy(update={"expected": claim})
    monkeypatch.setattr(up.service, "model_card", card)
    with SplitClient(up.url, up.key, OWNER) as client:
        assert client.claimed_answers == claim
    assert "ExpectedCard" in httpx.get(f"{up.url}/openapi.json").json()["components"]["schemas"]


def test_threads_that_share_a_client_encode_at_once(
    up: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two encodings meet; the second does not wait for the first."""
    build, meeting = Device.build_message, threading.Barrier(2)

    def build_together(self: Device, image: torch.Tensor, group: str | None = None) -> bytes:
        meeting.wait(30)
        return build(self, image, group)

    monkeypatch.setattr(Device, "build_message", build_together)
    with SplitClient(up.url, up.key, OWNER) as client, ThreadPoolExecutor() as pool:
        assert len(list(pool.map(client.ask, X[50:52]))) == 2
