"""An attack that fails: what it costs, and what ends the whole call."""

from dataclasses import dataclass

import pytest
import torch

from fedcel.attacks import Decoder
from fedcel.attacks.registry import ATTACKS
from fedcel.attacks.runner import run_attacks
from fedcel.data.images import Images
from fedcel.errors import DataError, ServiceError
from fedcel.leakage import Observation, SmashedData
from fedcel.nets import Mlp
from fedcel.nets.build_net import build_net
from fedcel.settings import AttackSettings
from fedcel.testing.attacks import LinearObservation, load_digit_targets

QUICK = AttackSettings(names="decoder", seeds=2, budget=0.02)


def smashed() -> SmashedData:
    """Return the smashed data of an untrained network for digits."""
    return SmashedData(build_net(Mlp(), (1, 8, 8), 10, torch.Generator().manual_seed(3)))


def go(
    how: AttackSettings, *seen: Observation
) -> tuple[list[dict[str, object]], dict[str, torch.Tensor]]:
    """Run on the contract's digits."""
    attacked = run_attacks(seen, how, *load_digit_targets(), seed=1)
    return [row.to_json() for row in attacked.rows], attacked.pictures


class Breaking(Decoder):
    """An attack that breaks on its first seed, and finds grey images on the next."""

    calls = 0

    def reconstruct(self, *args: object, **kwargs: object) -> torch.Tensor:
        """Raise once."""
        type(self).calls += 1
        if type(self).calls == 1:
            raise RuntimeError("shapes\n  do not fit")
        return torch.full((60, 1, 8, 8), 0.5)


def test_an_attack_that_breaks_costs_its_own_row_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rows are there, its own says why, a warning says where."""
    monkeypatch.setitem(ATTACKS, "breaking", Breaking)
    how = QUICK.model_copy(update={"names": "breaking,decoder"})
    with pytest.warns(
        UserWarning, match=r"seed 0 failed with RuntimeError: .*test_failures.py, line"
    ):
        rows, pictures = go(how, smashed())
    assert rows[0] == {
        "attack": "decoder",
        "observation": "smashed-data",
        "knowledge": "held-out",
        "seed": 0,
        "skipped": "failed with RuntimeError: shapes do not fit",
    }
    assert [("mse" in row, row["seed"]) for row in rows[1:]] == [(True, 1), (True, 0), (True, 1)]
    assert "decoder" in pictures


class Lawless(SmashedData):
    """Messages whose law breaks."""

    def log_prob(self, observed: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Raise."""
        raise ArithmeticError("no law")


def test_an_observation_that_breaks_costs_its_own_row_only() -> None:
    """Of the optimal attacker too."""
    how = QUICK.model_copy(update={"names": "optimal,decoder", "seeds": 1})
    with pytest.warns(UserWarning, match="optimal on smashed-data, seed 0 failed with Arith"):
        rows, _ = go(how, Lawless(smashed().net))
    assert rows[0]["skipped"] == "failed with ArithmeticError: no law"
    assert "mse" in rows[1]


@dataclass(frozen=True)
class Wrong(Decoder):
    """An attack whose pictures are none."""

    name: str = "wrong"
    made: torch.Tensor | None = None

    def reconstruct(self, *args: object, **kwargs: object) -> torch.Tensor:
        """Return them."""
        assert self.made is not None
        return self.made


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (torch.full((60, 1, 8, 8), 1.5), "pixels in [1.5, 1.5], must be in [0, 1]"),
        (torch.full((60, 1, 8, 8), torch.nan), "pixels in [nan, nan], must be in [0, 1]"),
        (torch.zeros(59, 1, 8, 8), "(59, 1, 8, 8), must be (60, 1, 8, 8)"),
    ],
)
def test_bad_pictures_cost_their_own_row_only(
    monkeypatch: pytest.MonkeyPatch, wrong: torch.Tensor, said: str
) -> None:
    """One image in [0, 1] for each target, or a row that says what came; what was done stays."""
    monkeypatch.setitem(ATTACKS, "wrong", lambda: Wrong(made=wrong))
    how = QUICK.model_copy(update={"names": "decoder,wrong", "seeds": 1})
    with pytest.warns(UserWarning, match="wrong on smashed-data, seed 0 failed with ValueError"):
        (good, bad), pictures = go(how, smashed())
    assert "mse" in good and "decoder" in pictures and "wrong" not in pictures
    assert bad["skipped"] == f"failed with ValueError: attack 'wrong' returned {said}"


def test_what_the_user_must_mend_ends_the_call() -> None:
    """An attacker with a single image: no row hides that."""
    known, targets = load_digit_targets()
    one = Images(known.x[:1], known.y[:1])
    with pytest.raises(DataError, match=r"raise data\.auxiliary"):
        run_attacks(
            [smashed()],
            QUICK,
            one,
            targets,
            seed=1,
            population=known,
        )


class Closing(LinearObservation):
    """A service that goes away after its first answers, those to the targets."""

    asked = 0

    def sample(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Answer once."""
        object.__setattr__(self, "asked", self.asked + 1)
        if self.asked > 1:
            raise ServiceError("no connection")
        return super().sample(images, generator)


def test_a_service_that_says_no_costs_its_own_row_only() -> None:
    """What was found before is kept: it was paid for."""
    how = QUICK.model_copy(update={"names": "decoder,logit-inversion", "seeds": 1})
    with pytest.warns(UserWarning, match="seed 0 failed with ServiceError"):
        rows, _ = go(how, smashed(), Closing("private-logits", grants=frozenset()))
    assert "mse" in rows[0]
    assert rows[1]["skipped"] == "failed with ServiceError: no connection"
