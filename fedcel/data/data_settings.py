"""Settings of the data: where images come from, what is learned of them and who holds which."""

from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field

from fedcel.data import cifar, idx, image_folder, npz  # noqa: F401 - the kinds that they define
from fedcel.data.images import Images, Labels
from fedcel.data.partition import Dirichlet, Partition
from fedcel.data.source import Digits, Source
from fedcel.errors import DataError
from fedcel.settings_table import Options

ImageCount = Annotated[int, Field(ge=2)] | Literal["auto"]
"""Number of images, or a share of those that there are."""
OWN, PARITY = "own", "parity"
LEAST_IMAGES = 2
MOST_VALIDATION, MOST_AUXILIARY, MOST_TEST = 150, 250, 400
"""`auto` takes no more than the defaults do: what attacks cost grows with these numbers."""


class SplitSizes(NamedTuple):
    """Numbers of validation images, of images of the attacker, and of test images."""

    validation: int
    auxiliary: int
    test: int


class DataSettings(Options):
    """Source of images, their split and their partition."""

    source: Source = Digits()
    partition: Partition = Dirichlet()
    labels: str = Field(
        "own",
        description="The source's classes, their parity, or a label for each class, as 0,0,1.",
    )
    held_out_classes: int = Field(
        0, ge=0, description="Number of classes whose images only the attacker has."
    )
    train: int = Field(
        0, ge=0, description="Training images of all clients together; 0: all that remain."
    )
    validation: ImageCount = Field(
        MOST_VALIDATION,
        description="Validation images of the server; auto: a tenth, 150 at most.",
    )
    auxiliary: ImageCount = Field(
        MOST_AUXILIARY,
        description="Images of the attacker, unless data.held-out-classes gives them; auto: a "
        "sixth, 250 at most.",
    )
    test: ImageCount = Field(
        MOST_TEST,
        description="Test images, the targets of the attacks; auto: a fifth, or all of a test "
        "part, 400 at most.",
    )

    def map_labels(self, y: Labels, where: str) -> Labels:
        """Map labels of images to those of the task: the same, their parity, or as listed.

        DataError, which names `where`: the list is no list of classes, or has none for a label.
        """
        if self.labels == OWN:
            return y
        if self.labels == PARITY:
            return y % 2
        task = _read_task(self.labels)
        if int(y.max()) >= len(task):
            raise DataError(
                f"{where}: there is a label {int(y.max())}, data.labels {self.labels!r} has a "
                f"class for 0..{len(task) - 1}; list one for each label"
            )
        return torch.tensor(task)[y]

    def map_images(self, images: Images, where: str) -> Images:
        """Return the images with the labels of the task; DataError as `map_labels`."""
        return images._replace(y=self.map_labels(images.y, where))

    def count_task_classes(self, classes: int) -> int:
        """Count the classes of the task, of images of `classes` classes; see `map_labels`."""
        where = f"data.source {self.source.kind_name!r}"
        return int(self.map_labels(torch.arange(classes), where).max()) + 1

    def choose_sizes(self, training_count: int, test_count: int | None) -> SplitSizes:
        """Choose how many images each part takes, those that are `auto` by the number of images.

        A tenth, a sixth and a fifth of the training part, 2 images at least and 150, 250 and 400 at
        most. Of a test part, where the source has one, all images, 400 at most.
        """
        tests = training_count // 5 if test_count is None else test_count
        usual = (
            (self.validation, training_count // 10, MOST_VALIDATION),
            (self.auxiliary, training_count // 6, MOST_AUXILIARY),
            (self.test, tests, MOST_TEST),
        )
        return SplitSizes(
            *(
                max(LEAST_IMAGES, min(share, most)) if size == "auto" else size
                for size, share, most in usual
            )
        )


def _read_task(text: str) -> list[int]:
    """Return the class of each label; DataError unless they are 0..C-1, two or more."""
    words = [word.strip() for word in text.split(",")]
    if all(word.isdecimal() for word in words):
        task = [int(word) for word in words]
        if len(set(task)) > 1 and set(task) == set(range(max(task) + 1)):
            return task
    raise DataError(
        f"data.labels is {text!r}, must be {OWN!r}, {PARITY!r}, or a class for each label of the "
        "images, 0 to the last and each used, such as 0,0,1,1"
    )
