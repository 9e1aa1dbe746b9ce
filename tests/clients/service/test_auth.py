"""Keys: hashed at rest, expiring, revocable while the service runs."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clients.service import auth
from clients.service.problems import Kinds, ProblemError
from fedcel.errors import RunError, SettingsError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A place for keys."""
    return auth.key_table_path(tmp_path / "ledger.db")


def bearer(key: str) -> str:
    """Return the header that shows a key."""
    return f"Bearer {key}"


def refused(keys: auth.Keys, header: str | None) -> Kinds:
    """Return why a header is refused."""
    with pytest.raises(ProblemError) as caught:
        keys.find(header)
    return caught.value.kind


def test_a_key_names_its_client_and_is_not_in_the_file(path: Path) -> None:
    """Only its digest is kept."""
    key = auth.add_key(path, "phone", None, time.time())
    assert auth.Keys(path).find(bearer(key)).client == "phone"
    assert key.rsplit("_", 1)[1] not in path.read_text()
    assert len(key) >= 60


def test_wrong_keys_are_refused(path: Path) -> None:
    """Another secret under a known id, an unknown id, no key, another scheme, other bytes."""
    key = auth.add_key(path, "phone", None, time.time())
    keys = auth.Keys(path)
    last = "A" if key[-1] != "A" else "B"
    wrong = [key[:-1] + last, f"fedcel_{'0' * 16}_{key[-43:]}", key.upper(), "", "\x00\xff"]
    for header in [None, key, f"Basic {key}", *map(bearer, wrong)]:
        assert refused(keys, header) is Kinds.UNAUTHENTICATED


def test_a_key_expires(path: Path) -> None:
    """To the second."""
    fresh = auth.add_key(path, "phone", 1, time.time())
    old = auth.add_key(path, "phone", 1, time.time() - 86_401)
    keys = auth.Keys(path)
    assert keys.find(bearer(fresh)).client == "phone"
    assert refused(keys, bearer(old)) is Kinds.EXPIRED


def test_new_and_revoked_keys_need_no_restart(path: Path) -> None:
    """The same object sees both."""
    keys = auth.Keys(path)
    assert refused(keys, bearer("fedcel_x")) is Kinds.UNAUTHENTICATED
    key = auth.add_key(path, "phone", None, time.time())
    known = keys.find(bearer(key))
    auth.revoke_key(path, known.id)
    assert refused(keys, bearer(key)) is Kinds.UNAUTHENTICATED
    with pytest.raises(SettingsError, match="no key"):
        auth.revoke_key(path, known.id)


@pytest.mark.parametrize("client", ["", "a b", "../x", "a" * 65, ".x", "a:b"])
def test_a_name_that_is_none(path: Path, client: str) -> None:
    """No colon: it separates a client from its request ids in the ledger."""
    with pytest.raises(SettingsError, match="client is"):
        auth.add_key(path, client, None, time.time())
    assert not path.exists()


def test_changes_at_the_same_moment_lose_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three new keys are kept, a revoked one stays away, though reading takes long."""
    old = auth.add_key(path, "old", None, time.time()).split("_")[1]
    read = auth.read_keys

    def slowly(path: Path) -> list[auth.Entry]:
        found = read(path)
        time.sleep(0.1)
        return found

    monkeypatch.setattr(auth, "read_keys", slowly)
    with ThreadPoolExecutor() as pool:
        added = [pool.submit(auth.add_key, path, f"c{i}", None, time.time()) for i in range(3)]
        pool.submit(auth.revoke_key, path, old).result()
    ids = {future.result().split("_")[1] for future in added}
    assert {entry.id for entry in read(path)} == ids


def test_only_the_owner_reads_the_file(path: Path) -> None:
    """And locks it."""
    auth.add_key(path, "phone", None, time.time())
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
    assert len(list(path.parent.iterdir())) == 2


def test_a_damaged_file_is_said(path: Path) -> None:
    """Not taken for an empty one; what is advised helps."""
    path.write_text("{}")
    with pytest.raises(RunError, match="damaged: .* restore a backup, or remove it"):
        auth.read_keys(path)
    path.write_text('{"format": 2, "keys": []}')
    with pytest.raises(RunError, match="format is 2"):
        auth.read_keys(path)
    os.unlink(path)
    assert auth.read_keys(path) == []
