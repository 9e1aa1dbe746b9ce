"""Contract of sources of images."""

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.data import DataSettings, Iid, SourceData, load_splits, read_source
from fedcel.seeding import make_twice

MIN_DISTINCT_SHARE = 0.5  # of the images, which must differ from all others
IMAGES_PER_TEST_IMAGE = 8  # and as many per validation or auxiliary image


class SourceContract:
    """Tests that a source of images must pass.

    Name your subclass `TestMine`, define `settings`; pytest runs the rest.

    Attributes:
        learnable: False where the images' class means do not tell the labels apart at all.
    """

    learnable = True

    def settings(self) -> DataSettings:
        """Make the settings group `data` that names your source.

        Returns:
            The settings.
        """
        raise NotImplementedError

    def read(self) -> SourceData:
        """Read the source with the checks of every run.

        Returns:
            float32 images (N, C, H, W) in [0, 1], int64 labels 0..C-1 without a gap.
        """
        return read_source(self.settings().source)

    def test_it_gives_the_same_images_again(self) -> None:
        """Read twice it gives the same bits, and no global stream is used or moved."""
        first, second = make_twice(self.read)
        assert torch.equal(first.train.x, second.train.x)
        assert torch.equal(first.y, second.y)
        assert (first.test is None) == (second.test is None)
        if first.test is not None and second.test is not None:
            assert torch.equal(first.test.x, second.test.x)
        if first.holders is not None and second.holders is not None:
            assert torch.equal(first.holders, second.holders)

    def test_settings_are_obeyed(self) -> None:
        """Images come in the size that the settings ask for."""
        source = self.settings().source
        if "size" in type(source).model_fields:
            sized = source.model_copy(update={"size": 6})
            assert read_source(sized).train.x.shape[2:] == (6, 6)

    def test_images_differ(self) -> None:
        """Half of them at least: a target that equals a training image is no target."""
        x = self.read().train.x
        assert len({image.numpy().tobytes() for image in x}) >= MIN_DISTINCT_SHARE * len(x)

    def test_labels_belong_to_the_images(self) -> None:
        """The nearest class mean of one half is right of the other more often than a guess."""
        x, y = self.read().train
        classes, stream = int(y.max()) + 1, torch.Generator().manual_seed(1)
        flat, half = x.flatten(1), torch.randperm(len(y), generator=stream) % 2 == 0
        means = torch.stack(
            [mean_image(flat[half & torch.eq(y, label)]) for label in range(classes)]
        )
        nearest = torch.cdist(flat[~half], means).argmin(1)
        accuracy = torch.eq(nearest, y[~half]).double().mean()
        guess = y.bincount().max() / len(y)
        assert not self.learnable or accuracy > min(1.2 * guess, (1 + guess) / 2)

    def test_holders_are_numbered(self) -> None:
        """Holders, if there are any, are two or more, from 0, none of them without an image."""
        holders = self.read().holders
        if holders is not None:
            assert holders.min() == 0
            assert holders.bincount().all()
            assert holders.max() >= 1

    def test_a_run_can_be_dealt_from_it(self) -> None:
        """Clients, validation, auxiliary and test images are there, and no two sets overlap."""
        data, source = self.settings(), self.read()
        few = max(2, len(source.train.y) // IMAGES_PER_TEST_IMAGE)
        sizes = {"validation": few, "auxiliary": few, "train": 0}
        tests = few if source.test is None else min(few, len(source.test.y))
        splits = load_splits(
            data.model_copy(update={**sizes, "test": tests, "partition": Iid()}), 2, 0
        )
        parts = [*splits.indices.clients, *splits.indices[1:]]
        assert all(len(part) > 0 for part in parts)
        positions = torch.cat(parts)
        assert len(torch.unique(positions)) == len(positions)


def mean_image(x: Float[Tensor, "n P"]) -> Float[Tensor, " P"]:
    """Return the mean image; far from all images where there is none."""
    return x.mean(0) if len(x) else torch.full_like(x.sum(0), 1e6)
