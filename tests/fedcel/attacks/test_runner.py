"""Which attacks run, and what they report."""

from dataclasses import dataclass, replace

import pytest
import torch

from fedcel.attacks import Decoder
from fedcel.attacks.observation import Observation, SmashedData
from fedcel.attacks.runner import ATTACKS, find, run
from fedcel.data.images import Images
from fedcel.errors import DataError, PluginError, SettingsError
from fedcel.nets import build
from fedcel.settings_groups import Attack, Net
from fedcel.testing.attacks import LinearObservation, digits

SCORES = ["mse", "psnr", "ssim", "identification-1", "identification-5", "label-accuracy"]
ANCHORS = ["mean-mse", "oracle-mse", "seconds"]
KEYS = ["attack", "observation", "knowledge", "seed", "budget", *SCORES, *ANCHORS]
QUICK = Attack(names="decoder", seeds=2, budget=0.02, candidates=20)


def smashed(sigma: float = 0.1) -> SmashedData:
    """Return the smashed data of an untrained network for digits."""
    net = build(Net(noise=sigma), (1, 8, 8), 10, torch.Generator().manual_seed(3))
    return SmashedData(net)


def go(how: Attack, *seen: Observation, seed: int = 1) -> tuple[list[dict[str, object]], dict]:  # type: ignore[type-arg]
    """Run on the contract's digits."""
    return run(seen, how, *digits(), seed, lambda line: None)


def without_seconds(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return rows without what no two runs share."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_one_row_a_seed_with_the_keys_of_the_file() -> None:
    """All attacks on both surfaces; pictures of the first 12 targets."""
    how = QUICK.model_copy(update={"names": "optimal, decoder, logit-inversion"})
    answers = LinearObservation("private-logits", grants=frozenset())
    rows, pictures = go(how, smashed(), answers)
    scored = [row for row in rows if "mse" in row]
    assert [(row["attack"], row["seed"]) for row in scored] == [
        ("decoder", 0), ("decoder", 1), ("logit-inversion", 0), ("logit-inversion", 1),
    ]  # fmt: skip
    assert all(list(row) == KEYS for row in scored)
    best = [row for row in rows if "bits-beyond-label" in row]
    assert [row["seed"] for row in best] == [0, 1]
    assert all(row["candidates"] == 60 for row in best)
    assert {name: tuple(p.shape) for name, p in pictures.items()} == dict.fromkeys(
        ["targets", "class-mean", "decoder", "logit-inversion"], (12, 1, 8, 8)
    )


def test_repeatable_and_seeds_differ() -> None:
    """The same seed, the same rows; another attack seed or run seed, other rows."""
    (first, one), (again, two), (other, _) = (go(QUICK, smashed(), seed=s) for s in (1, 1, 2))
    assert without_seconds(first) == without_seconds(again)
    assert torch.equal(one["decoder"], two["decoder"])
    assert first[0]["mse"] != first[1]["mse"]
    assert first[0]["mse"] != other[0]["mse"]


class Fading(Decoder):
    """An attack that gets worse from seed to seed: grey, then white."""

    shades = (0.3, 1.0)

    def reconstruct(self, *args: object, **kwargs: object) -> torch.Tensor:
        """Return the next shade."""
        shade, *left = self.shades
        object.__setattr__(self, "shades", left)
        return torch.full((60, 1, 8, 8), shade)


def test_pictures_are_of_the_best_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kept reconstructions are those of the row with the lowest error, here the first."""
    monkeypatch.setitem(ATTACKS, "fading", Fading)
    rows, pictures = go(QUICK.model_copy(update={"names": "fading"}), smashed())
    assert float(str(rows[0]["mse"])) < float(str(rows[1]["mse"]))
    assert (pictures["decoder"] == 0.3).all()


def test_attack_seeds_have_their_own_stream() -> None:
    """Where the observation is always the same, the attack's own chances still differ."""
    rows, _ = go(QUICK, smashed(0.0))
    assert rows[0]["mse"] != rows[1]["mse"]


@dataclass(frozen=True)
class Greedy(Decoder):
    """An attack that needs more than anyone grants."""

    needs: frozenset[str] = frozenset({"update", "mean"})


class Shifted(Decoder):
    """An attack whose pictures are out of range."""

    def reconstruct(self, *args: object, **kwargs: object) -> torch.Tensor:
        """Return too bright pictures."""
        return torch.full((60, 1, 8, 8), 1.5)


def test_skipped_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grants missing, a surface missing, a law unknown: a row says which."""
    monkeypatch.setitem(ATTACKS, "greedy", Greedy)
    how = QUICK.model_copy(update={"names": "greedy,logit-inversion"})
    rows, pictures = go(how, smashed())
    assert [row["skipped"] for row in rows] == [
        "needs update, which is not granted",
        "nothing here is observed as 'private-logits'",
    ]
    assert list(pictures) == ["targets", "class-mean"]
    closed = replace(LinearObservation("private-logits"), grants=frozenset())
    (row,), _ = go(QUICK.model_copy(update={"names": "optimal"}), closed)
    assert row["skipped"] == "needs log-prob, granted nowhere"


def test_no_noise_leaks_everything() -> None:
    """Sigma 0 is no reason to skip the optimal attacker: all bits are reported."""
    how = QUICK.model_copy(update={"names": "optimal", "seeds": 1})
    (row,), _ = go(how, smashed(0.0))
    assert row["information-bits"] == pytest.approx(row["information-cap"])
    assert row["identification-optimal"] == 1


def test_names_are_checked_first() -> None:
    """A typo is refused with the nearest name before anything is trained."""
    with pytest.raises(SettingsError, match="did you mean 'decoder'"):
        go(QUICK.model_copy(update={"names": "decoder,decodr"}), smashed())
    with pytest.raises(PluginError, match="is no attack"):
        find("fedcel.seeding:generator")
    assert find("fedcel.attacks.decoder:Decoder").name == "decoder"


def test_bad_pictures_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's attack must keep to [0, 1]."""
    monkeypatch.setitem(ATTACKS, "shifted", Shifted)
    with pytest.raises(PluginError, match=r"pixels in \[1.5, 1.5\]"):
        go(QUICK.model_copy(update={"names": "shifted"}), smashed())


def test_targets_must_be_unseen() -> None:
    """An attacker who holds a target would be scored on his memory."""
    known, targets = digits()
    both = Images(torch.cat([known.x, targets.x[:2]]), torch.cat([known.y, targets.y[:2]]))
    with pytest.raises(DataError, match="2 of 60 targets"):
        run([smashed()], QUICK, both, targets, 1, lambda line: None)
