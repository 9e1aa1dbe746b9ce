"""Hand a run's rounds, scores and pictures on to its trackers; what fails there ends nothing."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fedcel.errors import describe_unforeseen, shorten_text
from fedcel.files import read_json, read_tensors
from fedcel.runs import GUESSES_FILE, Event, EventCallback
from fedcel.settings import Settings, dump_settings, flatten_settings
from sims.progress import print_line
from sims.results.file_names import RESULT_FILE
from sims.tracking.pictures import draw_rows
from sims.tracking.round_pictures import RoundPictures
from sims.tracking.tracker import Tracker, TrackerFactory

PICTURES = 20
"""Rounds of a training of which pictures are made."""


class RunTracking:
    """The trackers of one run. Each that fails is told of once, and left out from then on."""

    def __init__(
        self, factories: Mapping[str, TrackerFactory], folder: Path, settings: Settings
    ) -> None:
        """Track a run.

        Args:
            factories: By name; each is called when the first round has ended.
            folder: The run's, which need not exist yet.
            settings: The run's.
        """
        self._waiting = dict(factories)
        self._trackers: dict[str, Tracker] = {}
        self._folder, self._settings = folder, settings
        self._pictures: RoundPictures | None = None
        self._pictures_fail = False
        self._number = 0

    def log_round(self, event: Event) -> None:
        """Hand on a round: its numbers, and in some rounds what an attacker makes of messages."""
        self._number = int(str(event["round"]))
        self._open_trackers()
        scores = dict(list_numbers(event))
        self._tell(lambda tracker: tracker.log_scores(scores, self._number))
        if self._number % math.ceil(self._settings.rounds / PICTURES) == 0:
            self._log_reconstructions()

    def log_result(self) -> None:
        """Hand on what the finished run is worth, and the exact attacker's guesses."""
        self._open_trackers()
        result = read_json(self._folder / RESULT_FILE)
        assert isinstance(result, dict)
        scores = {f"final/{key}": value for key, value in list_numbers(result)}
        self._tell(lambda tracker: tracker.log_scores(scores, self._number))
        try:
            tensors, _ = read_tensors(self._folder / GUESSES_FILE)
            picture = draw_rows([tensors["targets"], *tensors["guesses"].unbind(1)])
        except Exception as error:  # a source of a user's own has images of a form of its own
            print_failure("pictures of guesses", error)
            return
        name = "final/test images, and the exact attacker's guesses"
        self._tell(lambda tracker: tracker.log_picture(name, picture, self._number))

    def close(self, *, is_finished: bool) -> None:
        """Let the trackers write what is left."""
        self._tell(lambda tracker: tracker.close(is_finished=is_finished))

    def _open_trackers(self) -> None:
        settings = flatten_settings(dump_settings(self._settings))
        for name in list(self._waiting):
            factory = self._waiting.pop(name)
            try:
                self._trackers[name] = factory(self._folder, settings)
            except (Exception, SystemExit) as error:  # of another package, or a user's own
                print_failure(name, error)

    def _tell(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                act(tracker)
            except (Exception, SystemExit) as error:
                del self._trackers[name]
                print_failure(name, error)

    def _log_reconstructions(self) -> None:
        if not self._trackers or self._pictures_fail:
            return
        try:
            if self._pictures is None:
                self._pictures = RoundPictures(self._folder, self._settings)
            picture = self._pictures.draw(self._number)
        except Exception as error:  # a net or images of a user's own
            self._pictures_fail = True
            print_failure("pictures of rounds", error)
            return
        name = "validation images, and what kernel ridge rebuilds"
        self._tell(lambda tracker: tracker.log_picture(name, picture, self._number))


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
        What takes each round's event; None where there is no tracker.
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


def print_failure(name: str, error: Exception | SystemExit) -> None:
    """Say once that a tracker has failed."""
    reason = shorten_text(describe_unforeseen(error))
    print_line(f"--track {name} failed: {reason}; the run goes on without it")
