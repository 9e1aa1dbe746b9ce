"""Sources: the embedded digits, a user's own object, and every refusal."""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits

from fedcel.data import Digits, Images, ImportedSource, read_source
from fedcel.errors import DataError, PluginError, SettingsError
from fedcel.settings import DataSettings, parse_settings

X = torch.tensor([0.0, 0.25, 0.5, 1.0]).reshape(4, 1, 1, 1)
Y = torch.tensor([0, 1, 0, 1])


def own(monkeypatch: pytest.MonkeyPatch, thing: object) -> ImportedSource:
    """Return settings whose source is `thing`, by import string."""
    module = ModuleType("own_images")
    vars(module)["thing"] = thing
    monkeypatch.setitem(sys.modules, "own_images", module)
    return ImportedSource(source="own_images:thing")


def test_digits_are_the_originals() -> None:
    """Sixteen grey levels, scaled to [0, 1], in their order."""
    train, test, classes, holders, notes, *_ = read_source(Digits())
    original = load_digits()
    assert test is None and holders is None and classes == 10 and notes == ()
    assert train.x.shape == (1797, 1, 8, 8) and train.x.dtype == torch.float32
    assert torch.equal(train.x[:, 0] * 16, torch.from_numpy(original.images).float())
    assert train.y.tolist() == original.target.tolist()
    assert train.x.min() == 0 and train.x.max() == 1


def test_own_source_gets_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import string is called with the settings group; its parts come back as they are."""
    asked: list[DataSettings] = []

    def source(data: DataSettings) -> tuple[Images, Images]:
        asked.append(data)
        return Images(X, Y), Images(X[:1], Y[:1])

    settings = own(monkeypatch, source)
    train, test, classes, *_ = read_source(settings)
    assert asked == [settings] and classes == 2
    assert test is not None and train.x is X and len(test.y) == 1


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (Images(X[:, 0], Y), None, "must be float32 or uint8 of shape"),
        (Images(X.double(), Y), None, "must be float32"),
        (Images(X[:0], Y[:0]), None, "N > 0"),
        (Images(X * 255, Y), None, r"pixels are in \[0.0, 255.0\]"),
        (Images(X - 1, Y), None, r"pixels are in \[-1.0, 0.0\]"),
        (Images(X * torch.nan, Y), None, "pixels of image 0 are NaN"),
        (Images(X, Y[:3]), None, "4 images but labels"),
        (Images(X, Y.float()), None, "must be int64"),
        (Images(X, Y - 1), None, "smallest label is -1"),
        (Images(X, Y * 2), None, r"\[1\] do not occur"),
        (Images(X, Y * 0), None, "at least two classes"),
        (Images(X, Y), Images(X, Y + 1), "must be in 0..1"),
        (Images(X, Y), Images(X, Y - 1), "must be in 0..1"),
        (Images(X, Y), Images(X.expand(4, 3, 1, 1), Y), "resize"),
        (Images(X, Y), Images(X * 2, Y), "test part: pixels"),
    ],
)
def test_broken_parts_are_refused(
    monkeypatch: pytest.MonkeyPatch, train: Images, test: Images | None, message: str
) -> None:
    """Each breach of the contract is named, with what is allowed."""
    with pytest.raises(DataError, match=message):
        read_source(own(monkeypatch, lambda data: (train, test)))


def test_own_source_may_name_holders(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third item comes back as it is; one of another length is refused."""
    source = read_source(own(monkeypatch, lambda data: (Images(X, Y), None, Y + 3)))
    assert source.holders is not None and source.holders.tolist() == [3, 4, 3, 4]
    with pytest.raises(DataError, match=r"holders are \(3,\), must be \(4,\)"):
        read_source(own(monkeypatch, lambda data: (Images(X, Y), None, Y[:3])))


def test_arrays_of_numpy_are_no_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source of one's own that gives them is told what to give."""
    arrays: Any = X.numpy(), Y.numpy()
    data = own(monkeypatch, lambda data: (Images(*arrays), None))
    with pytest.raises(DataError, match=r"images are ndarray.*torch\.as_tensor"):
        read_source(data)


def test_any_source_is_resized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training and test images; a constant image stays constant."""
    wide = Images(X.expand(4, 3, 5, 2), Y)
    settings = own(monkeypatch, lambda data: (wide, Images(X.expand(4, 1, 4, 4), Y)))
    train, test, _, _, notes, *_ = read_source(
        settings.model_copy(update={"size": 4, "grey": True})
    )
    assert notes == ("8 of 2 classes of 2x5 pixels, resized to 4x4", "8 colour taken as grey")
    assert test is not None and train.x.shape == test.x.shape == (4, 1, 4, 4)
    torch.testing.assert_close(train.x, test.x, rtol=0, atol=1e-6)


@pytest.mark.parametrize("key", ["path", "label-column", "holder-column", "grey"])
def test_keys_that_a_source_does_not_read_are_refused(key: str) -> None:
    """Digits are in no file, without colours and columns."""
    with pytest.raises(ValueError, match=f"data.{key} is of data.source .*'digits'"):
        DataSettings.model_validate({key: "x"})


@pytest.mark.parametrize(
    "answer",
    [
        None,
        Images(X, Y),
        (X, Y),
        (Images(X, Y), (X, Y)),
        (Images(X, Y), None, [0, 1, 0, 1]),
        (Images(X, Y), None, Y, Y),
    ],
)
def test_other_answers_are_refused(monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    """Only a pair of Images and Images or None is taken, and a tensor of holders beside."""
    with pytest.raises(DataError, match="must be a pair"):
        read_source(own(monkeypatch, lambda data: answer))


def test_unknown_sources_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A typo gets the nearest name, a wrong import string its wrong part."""
    with pytest.raises(SettingsError, match="nearest: 'digits'"):
        parse_settings({"data.source": "digit"})
    with pytest.raises(PluginError, match="no module"):
        read_source(ImportedSource(source="there_is.no_such:source"))
    with pytest.raises(DataError, match="cannot be called"):
        read_source(own(monkeypatch, 7))
