"""Splits: disjoint, repeatable, free of test images elsewhere, refused when too small."""

import sys
from itertools import combinations
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fedcel.data import (
    Digits,
    Iid,
    Images,
    ImportedSource,
    Natural,
    SourceParts,
    Splits,
    load_splits,
    read_source,
)
from fedcel.errors import DataError, SettingsError
from fedcel.settings import DataSettings, parse_settings

SHARED = Path(__file__).parents[4] / "shared" / "data"
FASHION, FACES = SHARED / "fashion-mnist", SHARED / "att-faces"


def sets(splits: Splits) -> dict[str, tuple[Images, torch.Tensor]]:
    """Return every set of images with its positions in the source."""
    named_sets = {
        f"client {k}": (images, splits.indices.clients[k])
        for k, images in enumerate(splits.clients)
    }
    for name in ("validation", "auxiliary", "test"):
        named_sets[name] = (getattr(splits, name), getattr(splits.indices, name))
    return named_sets


def contents(images: Images) -> set[bytes]:
    return {image.numpy().tobytes() for image in images.x}


@pytest.mark.parametrize("seed", range(5))
def test_digits_are_dealt_without_overlap(seed: int) -> None:
    """All 1 797 images have one place, no image is in two sets, every class is everywhere."""
    splits = load_splits(DataSettings(), 8, seed)
    source = read_source(Digits()).train
    named_sets = sets(splits)
    everything = torch.cat([positions for _, positions in named_sets.values()])
    assert sorted(everything.tolist()) == list(range(1797)) and splits.dropped == 0
    for images, positions in named_sets.values():
        assert torch.equal(images.x, source.x[positions])
        assert torch.equal(images.y, source.y[positions])
    assert not any(
        contents(a) & contents(b) for (a, _), (b, _) in combinations(named_sets.values(), 2)
    )
    for name, size in (("validation", 150), ("auxiliary", 250), ("test", 400)):
        assert len(named_sets[name][0].y) == size
        assert named_sets[name][0].y.unique().tolist() == list(range(10))
    assert splits.shape == (1, 8, 8) and splits.classes == 10


def test_the_seed_decides_and_the_process_remembers() -> None:
    """Read anew the split is the same; the seed deals it out; equal calls share."""
    one, dealt = (load_splits(DataSettings(), 8, seed) for seed in (0, 1))
    for name in ("validation", "auxiliary", "test"):
        assert torch.equal(getattr(one.indices, name), getattr(dealt.indices, name))
    assert not torch.equal(one.indices.clients[0], dealt.indices.clients[0])
    assert load_splits(DataSettings(), 8, 0) is one
    again = load_splits.__wrapped__(DataSettings(), 8, 0)
    for name, (images, positions) in sets(one).items():
        assert torch.equal(images.x, sets(again)[name][0].x)
        assert torch.equal(positions, sets(again)[name][1])


def test_who_trains_does_not_move_the_targets() -> None:
    """Clients and partition change the holders, never validation, auxiliary and test."""
    one, other = (
        load_splits(DataSettings(), 8, 0),
        load_splits(DataSettings(source=Digits(), partition=Iid(), train=300), 3, 0),
    )
    for name in ("validation", "auxiliary", "test"):
        assert torch.equal(sets(one)[name][1], sets(other)[name][1])
    assert [len(images.y) for images in other.clients] == [100, 100, 100]


def own(
    monkeypatch: pytest.MonkeyPatch, name: str, train: Images, test: Images | None
) -> DataSettings:
    """Return small settings of a source that gives these parts."""
    module = ModuleType(name)
    vars(module)["source"] = lambda data: (train, test)
    monkeypatch.setitem(sys.modules, name, module)
    return DataSettings(
        source=ImportedSource(source=f"{name}:source"),
        partition=Iid(),
        validation=2,
        auxiliary=3,
        test=4,
    )


def numbered(start: int, count: int) -> Images:
    x = (torch.arange(start, start + count) / 1e4).reshape(-1, 1, 1, 1)
    return Images(x, torch.arange(count) % 2)


def test_own_test_part_gives_the_test_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test from the test part, all else from the training part, numbered one after the other."""
    train, test = numbered(0, 30), numbered(50, 6)
    splits = load_splits(own(monkeypatch, "with_test", train, test), 5, 0)
    assert contents(splits.test) <= contents(test) and len(splits.test.y) == 4
    assert torch.equal(splits.test.x, test.x[splits.indices.test - 30])
    rest = [splits.validation, splits.auxiliary, *splits.clients]
    assert set().union(*map(contents, rest)) == contents(train)
    assert sum(len(images.y) for images in rest) == 30


@pytest.mark.parametrize("has_test", [True, False])
def test_copies_of_test_images_are_dropped(monkeypatch: pytest.MonkeyPatch, has_test: bool) -> None:
    """Images twice in the source: none is both a target and elsewhere; the count is kept."""
    x, y = numbered(0, 30)
    train = Images(torch.cat([x, x]), torch.cat([y, y]))
    test = Images(x, y) if has_test else None
    splits = load_splits(own(monkeypatch, f"copies_{has_test}", train, test), 5, 0)
    rest = [splits.validation, splits.auxiliary, *splits.clients]
    assert all(not contents(images) & contents(splits.test) for images in rest)
    left = sum(len(images.y) for images in rest)
    count = f"{splits.dropped} that equal a test image in every pixel are left out"
    assert splits.notes == (count,)
    assert splits.dropped > 0 and left + splits.dropped == (60 if has_test else 56)
    if has_test:
        assert splits.dropped == 8


def test_too_few_images_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers are named."""
    data = own(monkeypatch, "few", numbered(0, 30), numbered(50, 3))
    with pytest.raises(DataError, match=r"data\.test asks for 4 images, the source has 3"):
        load_splits(data, 2, 0)
    for keys, wanted in (({"train": 1398 - 400}, 1398), ({"auxiliary": 1247}, 1398)):
        with pytest.raises(DataError, match=f"asks for {wanted} images, the source has 1397"):
            load_splits(DataSettings(**keys), 8, 0)
    with pytest.raises(DataError, match="clients is 998"):
        load_splits(DataSettings(), 998, 0)
    assert (
        sum(len(images.y) for images in load_splits(DataSettings(train=997), 8, 0).clients) == 997
    )


@pytest.mark.parametrize(
    ("count", "tests", "sizes"),
    [
        (60, None, (12, 6, 10)),
        (8, None, (2, 2, 2)),
        (5000, None, (400, 150, 250)),
        (60, 7, (7, 6, 10)),
        (60, 900, (400, 6, 10)),
    ],
)
def test_sizes_by_the_number_of_images(
    monkeypatch: pytest.MonkeyPatch, count: int, tests: int | None, sizes: tuple[int, ...]
) -> None:
    """A fifth, a tenth and a sixth; two at least; no more than the defaults; all of a test part."""
    test = None if tests is None else numbered(5000, tests)
    data = own(monkeypatch, f"auto_{count}_{tests}", numbered(0, count), test)
    auto = {"validation": "auto", "auxiliary": "auto", "test": "auto"}
    splits = load_splits(data.model_copy(update=auto), 2, 0)
    assert tuple(len(part.y) for part in (splits.test, splits.validation, splits.auxiliary)) == (
        sizes
    )
    left = count - sum(sizes[tests is not None :])
    assert len(splits.training.y) == left
    assert splits.notes[0] == (
        f"{left} to train on, {sizes[1]} for validation, {sizes[2]} of the attacker, {sizes[0]} "
        "test images"
    )
    given = {"validation": sizes[1], "auxiliary": sizes[2], "test": sizes[0]}
    same = load_splits(data.model_copy(update=given), 2, 0)
    assert torch.equal(same.indices.test, splits.indices.test)
    assert same.notes == splits.notes[1:]


def test_sizes_without_the_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares are of the images that are left; a number beside them stays."""
    data = own(monkeypatch, "auto_people", people(0, 10), None)
    auto = {"validation": "auto", "test": "auto", "held_out_classes": 4}
    splits = load_splits(data.model_copy(update=auto), 2, 0)
    assert splits.test.y.bincount().tolist() == [2] * 6 and len(splits.validation.y) == 6
    assert len(splits.auxiliary.y) == 40


def test_a_class_without_training_images_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its one image is drawn for another part."""
    images = numbered(0, 30)
    for place in range(30):
        y = torch.where(torch.arange(30) == place, 2, images.y)
        data = own(monkeypatch, f"rare_{place}", Images(images.x, y), None)
        splits = load_splits(data, 2, 0)
        is_trained = bool((splits.training.y == 2).any())
        assert splits.notes == (
            () if is_trained else ("of 1 of 3 classes no image is left to train on",)
        )
        if not is_trained:
            return
    raise AssertionError("some image is no training image")


def test_what_the_data_cannot_give_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six images make three parts of two and leave none to train on."""
    data = own(monkeypatch, "auto_few", numbered(0, 6), None)
    auto = {"validation": "auto", "auxiliary": "auto", "test": "auto"}
    with pytest.raises(DataError, match="asks for 5 images, the source has 4 other images"):
        load_splits(data.model_copy(update=auto), 1, 0)
    with pytest.raises(SettingsError, match="data.test is 'all', must be .*whole number.* 'auto'"):
        parse_settings({"data.test": "all"})
    with pytest.raises(SettingsError, match="data.test is 1, must be 2 or more, or 'auto'"):
        parse_settings({"data.test": 1})


def people(start: int, each: int) -> Images:
    """Return different images of ten classes; the pixel is 1000 * class + a number within it."""
    y = torch.arange(10).repeat_interleave(each)
    within = torch.arange(each).repeat(10) + start
    return Images(((1000 * y + within) / 1e4).float().reshape(-1, 1, 1, 1), y)


@pytest.mark.parametrize("has_test", [True, False])
def test_held_out_classes_are_the_attackers(
    monkeypatch: pytest.MonkeyPatch, has_test: bool
) -> None:
    """All images of three classes, of both parts, and no other; labels stay apart by class."""
    test = people(500, 4) if has_test else None
    data = own(monkeypatch, f"people_{has_test}", people(0, 9), test)
    data = data.model_copy(update={"held_out_classes": 3, "test": 14, "validation": 7})
    splits = load_splits(data, 2, 0)
    drawn = {name: images for name, (images, _) in sets(splits).items()}
    true = {name: (images.x.flatten() * 10 + 1e-4).long() for name, images in drawn.items()}
    strangers = set(true["auxiliary"].tolist())
    assert len(strangers) == 3 and splits.classes == 7
    assert len(true["auxiliary"]) == 3 * (13 if has_test else 9)
    for name, images in drawn.items():
        pairs = set(zip(true[name].tolist(), images.y.tolist(), strict=True))
        assert (name == "auxiliary") or not strangers & {one for one, _ in pairs}
        order = sorted(pairs)
        numbers = range(3) if name == "auxiliary" else range(7)
        assert name.startswith("client") or [number for _, number in order] == list(numbers)
    assert drawn["test"].y.bincount().tolist() == [2] * 7
    assert drawn["validation"].y.bincount().tolist() == [1] * 7
    assert splits.training.y.bincount().tolist() == [8 if has_test else 6] * 7
    both = torch.cat([people(0, 9).x, people(500, 4).x])
    for images, positions in sets(splits).values():
        assert torch.equal(images.x, both[positions])


def test_names_follow_the_classes_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without those that are held out; a coarser task has none."""
    train, module = people(0, 9), ModuleType("named")
    names = tuple("abcdefghij")
    vars(module)["source"] = lambda data: SourceParts(train, class_names=names)
    monkeypatch.setitem(sys.modules, "named", module)
    data = own(monkeypatch, "unnamed", train, None)
    data = data.model_copy(update={"source": ImportedSource(source="named:source")})
    assert load_splits(data, 2, 0).class_names == names
    splits = load_splits(data.model_copy(update={"held_out_classes": 3}), 2, 0)
    true = (splits.test.x.flatten() * 10 + 1e-4).long().tolist()
    for label, name in zip(splits.test.y.tolist(), true, strict=True):
        assert splits.class_names[label] == names[name]
    assert load_splits(data.model_copy(update={"labels": "parity"}), 2, 0).class_names == ()


def test_who_is_held_out_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another seed of training changes nobody; too many are refused."""
    data = own(monkeypatch, "drawn", people(0, 9), None)
    data = data.model_copy(update={"held_out_classes": 4})
    one, same = (load_splits(data, 2, seed) for seed in (0, 1))
    assert torch.equal(one.indices.auxiliary, same.indices.auxiliary)
    with pytest.raises(DataError, match=r"held-out-classes is 6, must be in 0\.\.5: of 10 classes"):
        load_splits(data.model_copy(update={"held_out_classes": 6}), 2, 0)
    with pytest.raises(
        DataError, match=r"data\.validation \+ data\.train asks for 53 images, the "
    ):
        load_splits(data.model_copy(update={"train": 51}), 2, 0)


@pytest.mark.parametrize(("has_test", "count", "left"), [(False, 56, 24), (True, 28, 33)])
def test_strangers_that_equal_a_target_are_dropped(
    monkeypatch: pytest.MonkeyPatch, has_test: bool, count: int, left: int
) -> None:
    """One picture in all classes, of both parts: the attacker gets none that is a target."""
    train, test = people(0, 9), people(500, 4)
    train.x[::9] = test.x[::4] = 0.5
    data = own(monkeypatch, f"equal_{has_test}", train, test if has_test else None)
    splits = load_splits(data.model_copy(update={"held_out_classes": 3, "test": count}), 1, 0)
    assert not contents(splits.auxiliary) & contents(splits.test)
    assert splits.dropped >= 3 and len(splits.auxiliary.y) == left


def test_natural_holders_reach_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of a holder, here one in five, stay together whatever was drawn away before."""
    train = people(0, 9)
    module = ModuleType("held")
    vars(module)["source"] = lambda data: (train, None, torch.arange(90) % 5)
    monkeypatch.setitem(sys.modules, "held", module)
    data = DataSettings(
        source=ImportedSource(source="held:source"),
        partition=Natural(),
        validation=2,
        auxiliary=3,
        test=4,
    )
    splits = load_splits(data, 5, 0)
    held = [set((positions % 5).tolist()) for positions in splits.indices.clients]
    assert sorted(map(tuple, held)) == [(0,), (1,), (2,), (3,), (4,)]
