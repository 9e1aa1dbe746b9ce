"""How many images each part of a run takes, where the settings leave it to the data."""

from typing import Literal, NamedTuple

from fedcel.data.data_settings import DataSettings


class SplitSizes(NamedTuple):
    """Numbers of images.

    Attributes:
        validation: Images that the server chooses settings on.
        auxiliary: Images of the attacker.
        test: Test images.
    """

    validation: int
    auxiliary: int
    test: int


class AutoSize(NamedTuple):
    """A share of the images, one in `divisor`, and the most that it may come to."""

    divisor: int
    most: int

    def of(self, count: int) -> int:
        """Return the share of this many images, 2 at least."""
        return max(SMALLEST, min(count // self.divisor, self.most))


SMALLEST = 2
AUTO_VALIDATION = AutoSize(10, 150)
AUTO_AUXILIARY = AutoSize(6, 250)
AUTO_TEST = AutoSize(5, 400)
"""`auto` takes no more than the defaults do: what attacks cost grows with these numbers."""


def choose_sizes(data: DataSettings, training_count: int, test_count: int | None) -> SplitSizes:
    """Return the sizes that the settings give, those that are `auto` by the number of images.

    Args:
        data: The settings group `data`: `validation`, `auxiliary`, `test`.
        training_count: Images of the source's training part.
        test_count: Images of its test part, or None where it has none and test images are drawn
            from the training part.

    Returns:
        A tenth, a sixth and a fifth of the training part, 2 images at least and 150, 250 and 400 at
        most. Of a test part all images, 400 at most.
    """
    all_tests = AUTO_TEST._replace(divisor=1)
    auto_test = AUTO_TEST.of(training_count) if test_count is None else all_tests.of(test_count)
    return SplitSizes(
        _decide(data.validation, AUTO_VALIDATION.of(training_count)),
        _decide(data.auxiliary, AUTO_AUXILIARY.of(training_count)),
        _decide(data.test, auto_test),
    )


def _decide(size: int | Literal["auto"], automatic: int) -> int:
    """Return the number where the setting is one."""
    return automatic if size == "auto" else size
