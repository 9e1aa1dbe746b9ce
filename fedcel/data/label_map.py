"""What of an image's class is to be learned: all of it, or a coarser task."""

import torch

from fedcel.data.data_settings import DataSettings
from fedcel.data.images import Images, Labels
from fedcel.errors import DataError

OWN, PARITY = "own", "parity"


def map_labels(y: Labels, data: DataSettings, where: str) -> Labels:
    """Return the labels of the task that `data.labels` names, of the labels of the images.

    Args:
        y: Labels of the images, (N,).
        data: The settings group `data`.
        where: What an error names.

    Returns:
        The labels themselves, whether they are odd, or what is listed for each.

    Raises:
        DataError: The list is no list of classes, or has none for a label.
    """
    if data.labels == OWN:
        return y
    if data.labels == PARITY:
        return y % 2
    task = read_task(data.labels)
    if int(y.max()) >= len(task):
        raise DataError(
            f"{where}: there is a label {int(y.max())}, data.labels {data.labels!r} has a class "
            f"for 0..{len(task) - 1}; list one for each label"
        )
    return torch.tensor(task)[y]


def count_task_classes(classes: int, data: DataSettings) -> int:
    """Return how many classes the task has, of images of so many; DataError as `map_labels`."""
    return int(map_labels(torch.arange(classes), data, f"data.source {data.source!r}").max()) + 1


def map_images(images: Images, data: DataSettings, where: str) -> Images:
    """Return the images with the labels of the task; DataError as `map_labels`."""
    return images._replace(y=map_labels(images.y, data, where))


def read_task(text: str) -> list[int]:
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
