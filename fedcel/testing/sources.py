"""What every source of images must hold."""

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.data import SourceData, load_splits, read_source
from fedcel.settings import DataSettings

DISTINCT = 0.5  # share of the images that must differ from all others
SHARE = 8  # one image in so many is a test image, as many are validation and auxiliary ones


class SourceContract:
    """Name your subclass `TestMine`, define `settings`; pytest runs the rest.

    Set `learnable` to False where the images' class means do not tell the labels apart at all.
    """

    learnable = True

    def settings(self) -> DataSettings:
        """Return the group of settings that names your source."""
        raise NotImplementedError

    def found(self) -> SourceData:
        """Return what the source gives, after the checks of every run.

        These are: float32 images (N, C, H, W) in [0, 1], int64 labels 0..C-1 without a gap.
        """
        return read_source(self.settings())

    def test_it_is_repeatable(self) -> None:
        """Read twice it gives the same bits, and no global stream is used or moved."""
        before = torch.random.get_rng_state()
        first = self.found()
        assert torch.equal(torch.random.get_rng_state(), before)
        torch.rand(3)
        second = self.found()
        torch.random.set_rng_state(before)
        assert torch.equal(first.train.x, second.train.x)
        assert torch.equal(first.y, second.y)
        assert (first.test is None) == (second.test is None)
        if first.test is not None and second.test is not None:
            assert torch.equal(first.test.x, second.test.x)
        if first.holders is not None and second.holders is not None:
            assert torch.equal(first.holders, second.holders)

    def test_settings_are_obeyed(self) -> None:
        """Whatever the source, images come in the size that the settings ask for."""
        data = self.settings().model_copy(update={"size": 6})
        assert read_source(data).train.x.shape[2:] == (6, 6)

    def test_images_differ(self) -> None:
        """Half of them at least: a target that equals a training image is no target."""
        x = self.found().train.x
        assert len({image.numpy().tobytes() for image in x}) >= DISTINCT * len(x)

    def test_labels_belong_to_the_images(self) -> None:
        """The nearest class mean of one half is right of the other more often than a guess."""
        x, y = self.found().train
        classes, stream = int(y.max()) + 1, torch.Generator().manual_seed(1)
        flat, half = x.flatten(1), torch.randperm(len(y), generator=stream) % 2 == 0
        means = torch.stack([mean(flat[half & torch.eq(y, label)]) for label in range(classes)])
        told = torch.cdist(flat[~half], means).argmin(1)
        right = torch.eq(told, y[~half]).double().mean()
        most = y.bincount().max() / len(y)
        assert not self.learnable or right > min(1.2 * most, (1 + most) / 2)

    def test_holders_are_numbered(self) -> None:
        """Where images have holders: two or more, from 0, none of them without an image."""
        holders = self.found().holders
        if holders is not None:
            assert holders.min() == 0
            assert holders.bincount().all()
            assert holders.max() >= 1

    def test_a_run_can_be_dealt_from_it(self) -> None:
        """Clients, validation, auxiliary and test images are there, and no two sets overlap."""
        data, found = self.settings(), self.found()
        few = max(2, len(found.train.y) // SHARE)
        sizes = {"validation": few, "auxiliary": few, "train": 0}
        tests = few if found.test is None else min(few, len(found.test.y))
        splits = load_splits(
            data.model_copy(update={**sizes, "test": tests, "partition": "iid"}), 2, 0
        )
        parts = [*splits.indices.clients, *splits.indices[1:]]
        assert all(len(part) > 0 for part in parts)
        everyone = torch.cat(parts)
        assert len(torch.unique(everyone)) == len(everyone)


def mean(x: Float[Tensor, "n P"]) -> Float[Tensor, " P"]:
    """Return the mean image; far from all images where there is none."""
    return x.mean(0) if len(x) else torch.full_like(x.sum(0), 1e6)
