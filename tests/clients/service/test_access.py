"""Keys: hashed at rest, expiring, revocable while the service runs; and how often they ask."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.service import access
from clients.service.access import KeyStore, RateLimiter, StoredKey, add_key
from clients.service.problems import ProblemError, ProblemKind
from fedcel.errors import RunError, SettingsError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return access.key_table_path(tmp_path / "ledger.db")


def bearer(key: str) -> str:
    return f"Bearer {key}"


def refused(keys: KeyStore, header: str | None) -> ProblemKind:
    with pytest.raises(ProblemError) as caught:
        keys.authenticate(header)
    return caught.value.kind


def test_a_key_names_its_client_and_is_not_in_the_file(path: Path) -> None:
    """Only its digest is kept."""
    key = add_key(path, "phone", None, time.time())
    assert KeyStore(path).authenticate(bearer(key)).client == "phone"
    assert key.rsplit("_", 1)[1] not in path.read_text()
    assert len(key) >= 60


def test_wrong_keys_are_refused(path: Path) -> None:
    """Another secret under a known id, an unknown id, no key, another scheme, other bytes."""
    key = add_key(path, "phone", None, time.time())
    keys = KeyStore(path)
    last = "A" if key[-1] != "A" else "B"
    wrong = [key[:-1] + last, f"fedcel_{'0' * 16}_{key[-43:]}", key.upper(), "", "\x00\xff"]
    for header in [None, key, f"Basic {key}", *map(bearer, wrong)]:
        assert refused(keys, header) is ProblemKind.UNAUTHENTICATED


def test_a_key_expires(path: Path) -> None:
    fresh = add_key(path, "phone", 1, time.time())
    old = add_key(path, "phone", 1, time.time() - 86_401)
    keys = KeyStore(path)
    assert keys.authenticate(bearer(fresh)).client == "phone"
    assert refused(keys, bearer(old)) is ProblemKind.EXPIRED


def test_new_and_revoked_keys_need_no_restart(path: Path) -> None:
    """The same object sees both."""
    keys = KeyStore(path)
    assert refused(keys, bearer("fedcel_x")) is ProblemKind.UNAUTHENTICATED
    key = add_key(path, "phone", None, time.time())
    key_id = keys.authenticate(bearer(key)).id
    access.remove_key(path, key_id)
    assert refused(keys, bearer(key)) is ProblemKind.UNAUTHENTICATED
    with pytest.raises(SettingsError, match="no key"):
        access.remove_key(path, key_id)


@pytest.mark.parametrize("client", ["", "a b", "../x", "a" * 65, ".x", "a:b"])
def test_a_name_that_is_none(path: Path, client: str) -> None:
    """No colon: it separates a client from its request ids in the ledger."""
    with pytest.raises(SettingsError, match="client is"):
        add_key(path, client, None, time.time())
    assert not path.exists()


def test_changes_at_the_same_moment_lose_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three new keys are kept, a revoked one stays away, though reading takes long."""
    old = add_key(path, "old", None, time.time()).split("_")[1]
    read = access.read_keys

    def slowly(path: Path) -> list[StoredKey]:
        keys = read(path)
        time.sleep(0.1)
        return keys

    monkeypatch.setattr(access, "read_keys", slowly)
    with ThreadPoolExecutor() as pool:
        added = [pool.submit(add_key, path, f"c{i}", None, time.time()) for i in range(3)]
        pool.submit(access.remove_key, path, old).result()
    ids = {future.result().split("_")[1] for future in added}
    assert {key.id for key in read(path)} == ids


def test_only_the_owner_reads_the_file(path: Path) -> None:
    add_key(path, "phone", None, time.time())
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
    assert len(list(path.parent.iterdir())) == 2


def test_a_damaged_file_is_said(path: Path) -> None:
    """Not taken for an empty one; what is advised helps."""
    path.write_text("{}")
    with pytest.raises(RunError, match="damaged: .* restore a backup, or remove it"):
        access.read_keys(path)
    path.write_text('{"format": 2, "keys": []}')
    with pytest.raises(RunError, match="format is 2"):
        access.read_keys(path)
    os.unlink(path)
    assert access.read_keys(path) == []


def test_a_burst_of_twice_the_rate_then_the_rate() -> None:
    """10 a second: 20 at once, the next after .1 s, another client at once."""
    now = [0.0]
    limiter = RateLimiter(10.0, lambda: now[0])
    assert [limiter.take_token("a") for _ in range(20)] == [0] * 20
    assert abs(limiter.take_token("a") - 0.1) < 1e-9
    assert limiter.take_token("b") == 0
    now[0] = 0.1
    assert limiter.take_token("a") == 0
    assert limiter.take_token("a") > 0


@given(st.floats(0.1, 100), st.lists(st.floats(0, 1), min_size=1, max_size=200))
def test_never_more_than_the_rate_and_the_burst(rate: float, gaps: list[float]) -> None:
    """Over any time T at most max(1, 2 rate) + rate T pass."""
    now = [0.0]
    limiter = RateLimiter(rate, lambda: now[0])
    passed = 0
    for gap in gaps:
        now[0] += gap
        passed += limiter.take_token("a") == 0
    assert passed <= max(1.0, 2 * rate) + rate * sum(gaps) + 1e-6
