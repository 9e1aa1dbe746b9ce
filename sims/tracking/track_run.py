"""Hand a run's rounds, scores and a picture on to its trackers; what fails there ends nothing."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from jaxtyping import Float
from torch import Tensor

from fedcel.errors import describe_unforeseen, shorten_text
from fedcel.files import read_json, read_tensors
from fedcel.runs import GUESSES_FILE, Event, EventCallback
from fedcel.settings import Settings, dump_settings, flatten_settings
from sims.progress import print_line
from sims.report.reconstruction_strips import Strip, make_grid
from sims.results.file_names import RESULT_FILE
from sims.tracking.tracker import Picture, Tracker, TrackerFactory

BACKGROUND = 255


class RunTracking:
    """The trackers of one run. Each that fails is told of once, and left out from then on."""

    def __init__(
        self, factories: Mapping[str, TrackerFactory], folder: Path, settings: Settings
    ) -> None:
        """Track a run; trackers are made when the first round has ended."""
        self._waiting = dict(factories)
        self._trackers: dict[str, Tracker] = {}
        self._folder, self._settings = folder, settings
        self._failed = set[str]()
        self._number = 0

    def log_round(self, event: Event) -> None:
        """Hand on the numbers of a round."""
        self._number = int(str(event["round"]))
        self._log_scores(dict(list_numbers(event)))

    def log_result(self) -> None:
        """Hand on what the finished run is worth, and the exact attacker's guesses."""
        result = read_json(self._folder / RESULT_FILE)
        assert isinstance(result, dict)
        self._log_scores({f"final/{key}": value for key, value in list_numbers(result)})

        with self._guard("pictures of guesses"):  # images of a user's own may have other forms
            tensors, _ = read_tensors(self._folder / GUESSES_FILE)
            picture = draw_rows([tensors["targets"], *tensors["guesses"].unbind(1)])
            name = "final/test images, and the exact attacker's guesses"
            self._tell(lambda tracker: tracker.log_picture(name, picture, self._number))

    def close(self, *, is_finished: bool) -> None:
        """Let the trackers write what is left."""
        self._tell(lambda tracker: tracker.close(is_finished=is_finished))

    def _log_scores(self, scores: Mapping[str, float]) -> None:
        settings = flatten_settings(dump_settings(self._settings))
        for name in list(self._waiting):
            factory = self._waiting.pop(name)
            with self._guard(name):
                self._trackers[name] = factory(self._folder, settings)
        self._tell(lambda tracker: tracker.log_scores(scores, self._number))

    def _tell(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in self._trackers.items():
            if name not in self._failed:
                with self._guard(name):
                    act(tracker)

    @contextmanager
    def _guard(self, name: str) -> Iterator[None]:
        """Report a failure of another package, or of a user's own part, and note it."""
        try:
            yield
        except (Exception, SystemExit) as error:
            self._failed.add(name)
            reason = shorten_text(describe_unforeseen(error))
            print_line(f"--track {name} failed: {reason}; the run goes on without it")


def draw_rows(rows: Sequence[Float[Tensor, "N C H W"]]) -> Picture:
    """Return rows of images in [0, 1] below one another, small images enlarged, on white."""
    grid = make_grid([Strip("", "", row.clamp(0, 1).numpy()) for row in rows])
    opacity = grid[..., 3:].astype(np.float64) / 255
    blended = grid[..., :3] * opacity + BACKGROUND * (1 - opacity)
    return np.ascontiguousarray(blended.round().astype(np.uint8))


@contextmanager
def track_run(
    factories: Mapping[str, TrackerFactory], folder: Path, settings: Settings
) -> Iterator[EventCallback | None]:
    """Track the run that is trained within the block.

    Args:
        factories: Of the trackers, by name.
        folder: The run's, which need not exist yet.
        settings: The run's.

    Yields:
        Callback for each round's event; None where there is no tracker.
    """
    if not factories:
        yield None
        return
    tracking = RunTracking(factories, folder, settings)
    is_finished = False
    try:
        yield tracking.log_round
        tracking.log_result()
        is_finished = True
    finally:
        tracking.close(is_finished=is_finished)


def list_numbers(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the finite numbers of an object, those of objects in it as `outer/inner`."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from list_numbers(value, f"{name}/")
        elif isinstance(value, bool) or not isinstance(value, int | float) or name == "round":
            continue
        elif math.isfinite(value):
            yield name, float(value)
