"""Devices go on with a new model version, after they measured its encoder; never before."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from clients.device import AsyncSplitClient, ImageOwner, SplitClient
from clients.device.conversation import check_successor
from clients.device.device import Device
from clients.service import load_served
from clients.service.model_offer import ModelOffer, build_model_card
from clients.service.service import Reload
from clients.service_messages import ModelCard
from fedcel.errors import LeakError, LeakLimitError, ModelVersionError, ServiceError
from fedcel.nets import SplitNet
from fedcel.runs import calibrate_answers
from tests.clients.serving import Running, made_run, running, wait_until

SETTINGS = {
    "privacy.epsilon": 1e4,
    "privacy.budget": 1e6,
    "privacy.mechanism": "laplace",
    "privacy.clip": 50.0,
}
FIRST = made_run(**SETTINGS, **{"net.noise": 2.0})
X, Y = FIRST.splits.test
OWNER = ImageOwner(X[:100], Y[:100])


def make_offer(seed: int, **changes: object) -> ModelOffer:
    """Return a model version of its own; the offer of a new run at the same price."""
    run = made_run(seed=seed, **SETTINGS | {"net.noise": 2.0} | changes)
    model = load_served(run)
    mechanism = run.settings.privacy.build(model.classes)
    return ModelOffer(model, mechanism, calibrate_answers(run, mechanism))


@dataclass
class Versions:
    """A service whose model is replaced at once, without a grace."""

    up: Running
    next_offers: list[ModelOffer]

    def replace_model(self, offer: ModelOffer) -> None:
        """Serve an offer alone."""
        replaced = self.up.model.version
        self.next_offers.append(offer)
        self.up.service.request_reload()
        wait_until(lambda: self.up.model.version == offer.model.version)
        wait_until(lambda: replaced not in self.up.service.versions)

    def count_requests(self, route: str, status: int = 200) -> int:
        value = self.up.service.metrics.registry.get_sample_value(
            "fedcel_requests_total", {"route": route, "status": str(status)}
        )
        return int(value or 0)


@pytest.fixture
def versions(tmp_path: Path) -> Iterator[Versions]:
    offers: list[ModelOffer] = []
    with running(tmp_path, FIRST, reload=Reload(offers.pop, 0.0)) as up:
        yield Versions(up, offers)


@dataclass
class CountingOwner:
    """Measures as an owner does, and notes for which models."""

    owner: ImageOwner
    measured: list[str] = field(default_factory=list)
    encoder: None = None

    def build_device(self, card: ModelCard, net: SplitNet) -> Device:
        self.measured.append(card.model)
        return self.owner.build_device(card, net)


def test_a_device_goes_on_with_the_new_version_in_the_same_question(versions: Versions) -> None:
    """What was sent before still counts, and both messages of the image are of one group."""
    owner = CountingOwner(OWNER)
    with SplitClient(versions.up.url, versions.up.key, owner, renew_encoder=True) as client:
        assert client.ask(X[0]).is_fresh
        before = client.device
        offer = make_offer(1)
        versions.replace_model(offer)
        answer = client.ask(X[1])
        assert client.card.model == offer.model.version == owner.measured[1]
        assert client.card == build_model_card(offer) and len(owner.measured) == 2
        expected = 2 * before.leak.upper + client.device.leak.upper  # one message was refused
        assert answer.leaked_bits == pytest.approx(expected) and len(client.device.sent) == 3
        assert answer.group and (answer.group.basis, answer.group.messages) == ("encoded-anew", 2)
        assert "earlier encoder" in str(answer.group)
        again = client.ask(X[1])
        assert torch.equal(again.values, answer.values) and not again.is_fresh
        assert client.device.key == before.key and len(client.device.sent) == 3
    assert versions.count_requests("/v1/query", 409) == 1


def test_the_limits_of_all_messages_hold_across_versions(versions: Versions) -> None:
    """Two messages are allowed; the new version is not a new beginning."""
    with SplitClient(versions.up.url, versions.up.key, OWNER, renew_encoder=True) as client:
        leak = client.device.leak._replace(bits=0.6)
        device = replace(client.device, leak=leak)
        client.device = device
        client.ask(X[0])
        versions.replace_model(make_offer(1))
        grouped = CountingOwner(replace(OWNER, total_limit=2 * leak.upper))
        client._builder = grouped
        with pytest.raises(LeakLimitError, match="number 3"):
            client.ask(X[1])
    assert versions.count_requests("/v1/query") == 1


def test_without_being_asked_for_it_a_device_stays_with_its_encoder(versions: Versions) -> None:
    """The error has a type of its own, and says which model is served."""
    with SplitClient(versions.up.url, versions.up.key, OWNER) as client:
        versions.replace_model(make_offer(1))
        with pytest.raises(ModelVersionError, match=f"409.*{versions.up.model.version}"):
            client.ask(X[0])
    assert versions.count_requests("/v1/encoder") == 1


def test_a_new_encoder_that_leaks_is_refused_and_stays_refused(versions: Versions) -> None:
    """Nothing is encoded with it; it is neither fetched nor measured a second time."""
    owner = CountingOwner(OWNER)
    with SplitClient(versions.up.url, versions.up.key, owner, renew_encoder=True) as client:
        first = client.device
        versions.replace_model(make_offer(1, **{"net.noise": 0.01}))
        with pytest.raises(LeakError, match="one message of this encoder leaks up to"):
            client.ask(X[0])
        with pytest.raises(LeakError, match=f"{versions.up.model.version}: one message"):
            client.ask(X[1])
        assert client.device is first and len(owner.measured) == 2
        assert len(client.device.sent) == 1  # the second image stayed here
        assert versions.count_requests("/v1/encoder") == 2
        assert versions.count_requests("/v1/query") == 0
        versions.replace_model(make_offer(2))
        assert client.ask(X[2]).is_fresh and len(owner.measured) == 3


def test_a_version_that_comes_back_is_asked_again(versions: Versions) -> None:
    """After its replacement was refused; without a new measurement, or a message in between."""
    owner = CountingOwner(OWNER)

    async def scene() -> None:
        connecting = AsyncSplitClient.connect(
            versions.up.url, versions.up.key, owner, renew_encoder=True
        )
        async with await connecting as client:
            first = client.device
            await asyncio.to_thread(versions.replace_model, leaking)
            for image in X[:2]:
                with pytest.raises(LeakError):
                    await client.ask(image)
            await asyncio.to_thread(versions.replace_model, offer)
            assert (await client.ask(X[2])).is_fresh and (await client.ask(X[3])).is_fresh
            assert client.device is first and len(client.device.sent) == 3

    leaking = make_offer(1, **{"net.noise": 0.01})
    offer = versions.up.service.offer
    asyncio.run(scene())
    with SplitClient(versions.up.url, versions.up.key, owner, renew_encoder=True) as client:
        first = client.device
        versions.replace_model(leaking)
        with pytest.raises(LeakError):
            client.ask(X[0])
        versions.replace_model(offer)
        assert client.ask(X[4]).is_fresh and client.device is first
    assert len(owner.measured) == 4 and versions.count_requests("/v1/query", 409) == 2


def test_many_threads_fetch_and_measure_a_version_once(versions: Versions) -> None:
    """Each of their questions is answered by the new version."""
    owner = CountingOwner(OWNER)
    with SplitClient(versions.up.url, versions.up.key, owner, renew_encoder=True) as client:
        versions.replace_model(make_offer(1))
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(client.ask, X[:8]))
    assert all(answer.is_fresh for answer in answers) and len(owner.measured) == 2
    assert versions.count_requests("/v1/encoder") == 2
    assert versions.count_requests("/v1/query") == 8


def test_many_tasks_fetch_and_measure_a_version_once(versions: Versions) -> None:
    """The same in an event loop."""
    owner = CountingOwner(OWNER)

    async def scene() -> list[bool]:
        connecting = AsyncSplitClient.connect(
            versions.up.url, versions.up.key, owner, renew_encoder=True
        )
        async with await connecting as client:
            await asyncio.to_thread(versions.replace_model, make_offer(1))
            answers = await asyncio.gather(*(client.ask(x) for x in X[:8]))
            assert client.card.model == versions.up.model.version == client.card.model
            await asyncio.to_thread(versions.replace_model, make_offer(2, **{"net.noise": 0.01}))
            with pytest.raises(LeakError, match="leaks up to"):
                await client.ask(X[9])
            return [answer.is_fresh for answer in answers]

    assert asyncio.run(scene()) == [True] * 8
    assert len(owner.measured) == 3 and versions.count_requests("/v1/encoder") == 3


def test_a_second_change_during_a_question_is_told(
    versions: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One renewal a question: it does not run after a service that changes for ever."""
    with SplitClient(versions.up.url, versions.up.key, OWNER, renew_encoder=True) as client:
        measure = client._measure

        def measure_slowly(*arguments: object) -> object:
            version = measure(*arguments)  # type: ignore[arg-type]
            versions.replace_model(make_offer(2))
            return version

        monkeypatch.setattr(client, "_measure", measure_slowly)
        versions.replace_model(make_offer(1))
        with pytest.raises(ModelVersionError):
            client.ask(X[0])
    assert versions.count_requests("/v1/encoder") == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "ask again later"),
        ({"model": "0" * 32, "shape": [3, 8, 8]}, "connect anew to ask it"),
        ({"model": "0" * 32, "classes": 11}, "11 classes"),
        ({"model": "0" * 32, "delta": 0.5}, "delta 0.5.*connect anew to pay"),
    ],
)
def test_a_version_that_an_asker_has_to_be_told_of_is_refused(
    changes: dict[str, object], message: str
) -> None:
    """Other images, other classes, a higher price, or no other version at all."""
    card = build_model_card(make_offer(0))
    with pytest.raises(ServiceError, match=message):
        check_successor(card, card.model_copy(update=changes))
    price = card.price.model_copy(update={"answer": card.price.answer / 2})
    cheaper = card.model_copy(update={"model": "0" * 32, "price": price})
    check_successor(card, cheaper)
    with pytest.raises(ServiceError, match="connect anew to pay"):
        check_successor(cheaper, card)


def test_a_version_that_costs_more_is_not_paid_unasked(versions: Versions) -> None:
    """Its encoder is not even fetched."""
    with SplitClient(versions.up.url, versions.up.key, OWNER, renew_encoder=True) as client:
        versions.replace_model(make_offer(1, **{"privacy.epsilon": 2e4}))
        with pytest.raises(ServiceError, match="epsilon 20000 .* so far 10000 "):
            client.ask(X[0])
    assert versions.count_requests("/v1/encoder") == 1
