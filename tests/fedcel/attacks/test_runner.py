"""Which attacks run, what they report, and what one that fails costs."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from fedcel.attacks import Anchors, AttackListener, Decoder, compute_anchors
from fedcel.attacks.attack import OtherClasses
from fedcel.attacks.registry import ATTACKS, parse_attacks
from fedcel.attacks.runner import AttackOutcome, run_attacks
from fedcel.data.images import Images
from fedcel.errors import DataError, PluginError, SettingsError
from fedcel.leakage import Observation, SmashedData
from fedcel.nets import Mlp
from fedcel.nets.build_net import build_net
from fedcel.settings import AttackSettings
from fedcel.testing.attacks import LinearObservation, load_digit_targets
from tests.fedcel.seeded import seeded

SCORES = ["mse", "psnr", "ssim", "identification-1", "identification-5", "label-accuracy"]
ANCHORS = ["mean-mse", "oracle-mse", "seconds", "learning-curve"]
COUNTS = ["targets", "identification-candidates"]
KEYS = ["attack", "observation", "knowledge", "seed", "budget", *COUNTS, *SCORES, *ANCHORS]
QUICK = AttackSettings(names="decoder", seeds=2, budget=0.02)


def smashed(sigma: float = 0.1) -> SmashedData:
    """Return the smashed data of an untrained network for digits."""
    net = build_net(Mlp(noise=sigma), (1, 8, 8), 10, seeded(3))
    return SmashedData(net)


def go(
    how: AttackSettings, *seen: Observation, seed: int = 1
) -> tuple[list[dict[str, object]], dict]:
    """Run on the contract's digits."""
    attacked = run_attacks(seen, how, *load_digit_targets(), seed=seed)
    return [row.to_json() for row in attacked.rows], attacked.pictures


def attack(
    how: AttackSettings, auxiliary: Images, targets: Images, anchors: Anchors | None = None
) -> AttackOutcome:
    """Attack the smashed data with these images."""
    return run_attacks([smashed()], how, auxiliary, targets, seed=1, anchors=anchors)


def without_seconds(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return rows without what no two runs share."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_each_seed_of_each_attack_is_told() -> None:
    """How many attacks are done before each, and all of them at the end."""
    told: list[tuple[float, int, str]] = []
    how = asks("optimal,kernel-ridge", 2)
    run_attacks(
        [smashed()],
        how,
        *load_digit_targets(),
        seed=1,
        listener=AttackListener(begin_seed=lambda *place: told.append(place)),
    )
    assert told == [
        (0.0, 2, "optimal, seed 0"),
        (0.5, 2, "optimal, seed 1"),
        (1.0, 2, "kernel-ridge, seed 0"),
        (1.5, 2, "kernel-ridge, seed 1"),
        (2, 2, "writing"),
    ]


def test_one_row_a_seed_with_the_keys_of_the_file() -> None:
    """All attacks on both surfaces; pictures of the first 12 targets."""
    how = asks("optimal, decoder, logit-inversion", 2)
    answers = LinearObservation("private-logits", grants=frozenset())
    rows, pictures = go(how, smashed(), answers)
    scored = [row for row in rows if "mse" in row]
    assert [(row["attack"], row["seed"]) for row in scored] == [
        ("decoder", 0), ("decoder", 1), ("logit-inversion", 0), ("logit-inversion", 1),
    ]  # fmt: skip
    assert all(row.keys() == {*KEYS} for row in scored)
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


class Scripted(Decoder):
    """An attack that answers each call in turn with an image in one shade, images, or an error."""

    def __init__(self, *answers: float | torch.Tensor | Exception, **fields: Any) -> None:
        vars(self).update(fields)
        self.answers, self.given = list[Any](answers), list[Any]()

    def reconstruct(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return or raise the next answer; the last one stays."""
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.given[:] = args
        if isinstance(answer, Exception):
            raise answer
        shape = (len(args[2]), 1, 8, 8)
        return answer if isinstance(answer, torch.Tensor) else torch.full(shape, answer)


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scripted]:
    """Return what makes a scripted attack known by the name `scripted`."""

    def make(*answers: float | torch.Tensor | Exception, **fields: Any) -> Scripted:
        attack = Scripted(*answers, **fields)
        monkeypatch.setitem(ATTACKS, "scripted", lambda: attack)
        return attack

    return make


def asks(names: str, seeds: int = 1, **more: Any) -> AttackSettings:
    """Return quick settings of these attacks."""
    return QUICK.model_copy(update={"names": names, "seeds": seeds, **more})


def test_pictures_are_of_the_best_seed(register: Callable[..., Scripted]) -> None:
    """The kept reconstructions are those of the row with the lowest error, here the first."""
    register(0.3, 1.0)
    rows, pictures = go(asks("scripted", 2), smashed())
    assert float(str(rows[0]["mse"])) < float(str(rows[1]["mse"]))
    assert (pictures["decoder"] == 0.3).all()


def test_attack_seeds_have_their_own_stream() -> None:
    """Where the observation is always the same, the attack's own chances still differ."""
    rows, _ = go(QUICK, smashed(0.0))
    assert rows[0]["mse"] != rows[1]["mse"]


def test_skipped_with_a_reason(register: Callable[..., Scripted]) -> None:
    """Grants missing, a surface missing, a law unknown: a row says which."""
    register(0.5, needs=frozenset({"update", "mean"}))
    rows, pictures = go(asks("scripted,logit-inversion", 2), smashed())
    assert [row["skipped"] for row in rows] == [
        "needs update, which is not granted",
        "nothing here is observed as 'private-logits'",
    ]
    assert list(pictures) == ["targets", "class-mean"]
    closed = replace(LinearObservation("private-logits"), grants=frozenset())
    (row,), _ = go(asks("optimal", 2), closed)
    assert row["skipped"] == "needs log-prob, granted nowhere"


def test_attackers_images_of_other_classes() -> None:
    """No label is compared; the anchors need images of the targets' classes."""
    known, targets = load_digit_targets()
    how = asks("decoder")
    other = OtherClasses(known.x, known.y.flip(0))
    (row,), pictures, _ = attack(how, other, targets, anchors=compute_anchors([known]))
    assert row.to_json().keys() == {*KEYS} - {"label-accuracy"}
    _, plain, _ = attack(how, known, targets, anchors=compute_anchors([known]))
    assert all(map(torch.equal, pictures.values(), plain.values()))
    with pytest.raises(DataError, match="pass those of the training images"):
        attack(how, other, targets)


def test_no_noise_leaks_everything() -> None:
    """Sigma 0 is no reason to skip the optimal attacker: all bits are reported."""
    (row,), _ = go(asks("optimal"), smashed(0.0))
    assert row["information-bits"] == pytest.approx(row["information-cap"])
    assert row["identification-optimal"] == 1


def test_repeats() -> None:
    """Both kinds of attacker on 4 messages each: rows say so, and four tell more than one."""
    rows, pictures = go(asks("optimal,optimal*4,decoder*4"), smashed(1.0))
    assert [(row["attack"], row["observation"]) for row in rows] == [
        ("optimal", "smashed-data"),
        ("optimal", "smashed-data*4"),
        ("decoder*4", "smashed-data*4"),
    ]
    one, four = (float(str(row["information-bits"])) for row in rows[:2])
    assert four > 2 * one > 0
    assert "decoder*4" in pictures


def test_attacks_get_no_targets(register: Callable[..., Scripted]) -> None:
    """The attacker's images, the observed vectors, and nothing that holds a target's pixels."""
    given = register(0.5).given
    known, targets = load_digit_targets()
    go(asks("scripted"), smashed())
    assert given[1] is known
    tensors = [item for item in [*known, *given] if isinstance(item, torch.Tensor)]
    seen = {row.numpy().tobytes() for item in tensors for row in item}
    assert not any(image.numpy().tobytes() in seen for image in targets.x)


def test_only_the_first_targets(register: Callable[..., Scripted]) -> None:
    """Searches that take long are scored on a few; the optimal attacker sees all."""
    register(0.5)
    (best, row), pictures = go(asks("optimal,scripted", targets=7), smashed())
    assert row["targets"] == 7
    assert best["candidates"] == 60
    assert {name: len(shown) for name, shown in pictures.items()} == {
        "targets": 7, "class-mean": 7, "decoder": 7,
    }  # fmt: skip


def test_names_are_checked_first() -> None:
    """A typo is refused with the nearest name before anything is trained."""
    with pytest.raises(SettingsError, match="did you mean 'decoder'"):
        go(asks("decoder,decodr", 2), smashed())
    with pytest.raises(PluginError, match="is no attack"):
        parse_attacks("fedcel.torch_state:make_generator")
    (named,) = parse_attacks("fedcel.attacks.decoder:Decoder")
    assert named.attack and named.name == "decoder"


@dataclass(frozen=True)
class Paid(LinearObservation):
    """Answers of which each is counted."""

    asked: list[int] = field(default_factory=lambda: [0])

    @property
    def paid(self) -> int:
        return self.asked[0]

    def sample(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        self.asked[0] += len(images)
        return super().sample(images, generator)


def test_rows_say_what_was_asked_where_it_is_paid() -> None:
    """The answers to 60 targets, and 16 to each of 250 own images; nothing where it is free."""
    seen = Paid("private-logits", grants=frozenset())
    how = asks("decoder,logit-inversion", 2)
    rows, _ = go(how, smashed(), seen)
    assert [row.get("queries") for row in rows] == [None, None, 60 + 16 * 250, 60 + 16 * 250]


def test_targets_must_be_unseen() -> None:
    """An attacker who holds a target would be scored on his memory."""
    known, targets = load_digit_targets()
    both = Images(torch.cat([known.x, targets.x[:2]]), torch.cat([known.y, targets.y[:2]]))
    with pytest.raises(DataError, match="2 of 60 targets"):
        attack(QUICK, both, targets)
    nearly = Images((both.x + 1 / 255).clamp(0, 1), both.y)
    with pytest.warns(UserWarning, match=r"^2 of 60 targets are an own image .* to a grey level"):
        attack(QUICK, nearly, targets)


def test_an_attack_that_breaks_costs_its_own_row_only(register: Callable[..., Scripted]) -> None:
    """The other rows are there, its own says why, a warning says where."""
    register(RuntimeError("shapes\n  do not fit"), 0.5)
    with pytest.warns(
        UserWarning, match=r"seed 0 failed with RuntimeError: .*test_runner.py, line"
    ):
        rows, pictures = go(asks("scripted,decoder", 2), smashed())
    assert rows[0] == {
        "attack": "decoder",
        "observation": "smashed-data",
        "knowledge": "held-out",
        "seed": 0,
        "skipped": "failed with RuntimeError: shapes do not fit",
    }
    assert [("mse" in row, row["seed"]) for row in rows[1:]] == [(True, 1), (True, 0), (True, 1)]
    assert "decoder" in pictures


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (torch.full((60, 1, 8, 8), 1.5), "pixels in [1.5, 1.5], must be in [0, 1]"),
        (torch.full((60, 1, 8, 8), torch.nan), "pixels in [nan, nan], must be in [0, 1]"),
        (torch.zeros(59, 1, 8, 8), "(59, 1, 8, 8), must be (60, 1, 8, 8)"),
    ],
)
def test_bad_pictures_cost_their_own_row_only(
    register: Callable[..., Scripted], wrong: torch.Tensor, said: str
) -> None:
    """One image in [0, 1] for each target, or a row that says what came; what was done stays."""
    register(wrong, name="wrong")
    with pytest.warns(UserWarning, match="wrong on smashed-data, seed 0 failed with ValueError"):
        (good, bad), pictures = go(asks("decoder,scripted"), smashed())
    assert "mse" in good and "decoder" in pictures and "wrong" not in pictures
    assert bad["skipped"] == f"failed with ValueError: attack 'wrong' returned {said}"


def test_what_the_user_must_mend_ends_the_call() -> None:
    """An attacker with a single image: no row hides that."""
    known, targets = load_digit_targets()
    one = Images(known.x[:1], known.y[:1])
    with pytest.raises(DataError, match=r"raise data\.auxiliary"):
        attack(QUICK, one, targets, anchors=compute_anchors([known]))
