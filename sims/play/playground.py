"""Answers to the page: an image, its message, what attackers and servers make of it."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fedcel.data import PICTURE_CHANGES, decode_pictures, to_floats
from fedcel.errors import DataError, RunError, SettingsError
from fedcel.leakage import MEASURE_NAMES, MEASURE_WORDS
from fedcel.runs import run_folder
from sims.play.attackers import Background
from sims.play.column import (
    Column,
    Look,
    describe_column,
    encode_pixels,
    find_label,
    prepare_column,
)
from sims.play.noise_levels import FACTORS, MESSAGE_COUNTS, NoiseLevel
from sims.play.private_account import EPSILONS, PrivateAccount
from sims.report.book import read_book
from sims.report.figures import choose_looks
from sims.report.summary import Summary

MAX_COLUMNS = 4
"""Encoders side by side, where nobody says which."""
GALLERY = 12
"""Test images to pick with a click; the others by their number."""
MAX_EXAMPLES = 12
"""Classes that are shown by an image each; more would be too small to see."""
MAX_DRAWN = 64  # pixels a side up to which an image of one channel is drawn by hand
MARKERS = dict(zip("osD^vPX*", "●■◆▲▼✚✖★", strict=True))
"""Matplotlib's markers as letters."""

ShowStep = Callable[[float, float, str], None]


class Request(BaseModel):
    """Question of the page: a test image by its number, or pixels of one's own."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=lambda name: name.replace("_", "-"),
        allow_inf_nan=False,
    )

    test: int | None = Field(None, description="Number of a test image.")
    pixels: list[Any] | None = Field(None, description="Of one's own, (C, H, W), in [0, 1].")
    label: int | None = Field(None, description="What one's own image shows; none: as the model.")
    factor: float = Field(1.0, description="Of the noise that each network was trained with.")
    messages: int = Field(1, description="How many are sent.")
    seed: int = Field(0, ge=0, lt=2**31, description="Draws the noise.")
    epsilon: float = Field(4.0, description="Price of a private answer.")


@dataclass(frozen=True)
class Picked:
    """The image of a request, and its place among the candidates; M for one's own."""

    image: Float[Tensor, "C H W"]
    position: int
    label: int
    is_label_assumed: bool


@dataclass(frozen=True)
class Playground:
    """Encoders next to each other, all of them of the same images; undefended ones first."""

    title: str
    columns: tuple[Column, ...]
    private_accounts: tuple[PrivateAccount, ...]
    background: Background
    note: str = ""
    """Encoders that are left out."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return channels, height and width of an image."""
        channels, height, width = self.columns[0].candidates.x.shape[1:]
        return channels, height, width

    @property
    def is_drawable(self) -> bool:
        """Whether an image may be drawn by hand: small, in one channel."""
        return self.shape[0] == 1 and max(self.shape) <= MAX_DRAWN

    @property
    def classes(self) -> int:
        """Return the number of classes."""
        return self.columns[0].run.splits.classes

    def describe(self) -> dict[str, Any]:
        """Return what the page has to know before anything is asked."""
        x, y = self.columns[0].candidates
        return {
            "title": self.title,
            "note": self.note,
            "shape": list(self.shape),
            "classes": self.classes,
            "names": list(self.columns[0].run.splits.class_names),
            "is-drawable": self.is_drawable,
            "candidates": len(y),
            "factors": list(FACTORS),
            "messages": list(MESSAGE_COUNTS),
            "epsilons": list(EPSILONS),
            "columns": [
                {
                    **column.look._asdict(),
                    "mechanism": account.privacy.mechanism,
                    "budget": account.budget,
                    "noise": column.net.cut.sigma,
                    "dropout": column.net.cut.dropout,
                    "is-noise-learned": column.net.noise_scale is not None,
                    "range": [float(column.features.min()), float(column.features.max())],
                }
                for column, account in zip(self.columns, self.private_accounts, strict=True)
            ],
            "gallery": [
                {"pixels": encode_pixels(image), "label": int(label)}
                for image, label in zip(x[:GALLERY], y[:GALLERY], strict=True)
            ],
            "examples": self._draw_examples(),
            "measure-words": {
                MEASURE_NAMES[key]: MEASURE_WORDS[key] for key in ("dfil", "fsinfo", "bound")
            },
        }

    def look(self, request: Request) -> dict[str, Any]:
        """Return all that changes with a request; DataError or SettingsError on a bad one."""
        picked, level = self._pick(request), read_level(request)
        return {
            "image": {
                "pixels": encode_pixels(picked.image),
                "values": [round(value, 3) for value in picked.image.flatten().tolist()]
                if self.is_drawable
                else [],
                "test": picked.position if picked.position < self._count else None,
                "label": picked.label,
                "is-label-assumed": picked.is_label_assumed,
            },
            "columns": [
                describe_column(
                    column,
                    picked.image,
                    picked.position,
                    picked.label,
                    level=level,
                    seed=request.seed,
                )
                for column in self.columns
            ],
        }

    def ask(self, request: Request) -> list[dict[str, Any]]:
        """Return each column's private answer to the first message that `look` shows."""
        picked, level = self._pick(request), read_level(request)
        if request.epsilon not in EPSILONS:
            raise SettingsError(f"epsilon is {request.epsilon:g}, must be one of {join(EPSILONS)}")
        answers = []
        for column, account in zip(self.columns, self.private_accounts, strict=True):
            sent = column.send(picked.image, picked.position, level, seed=request.seed)
            answers.append(account.ask(sent.messages[:1], request.epsilon))
        return answers

    def start_again(self) -> None:
        """Fill all budgets."""
        for account in self.private_accounts:
            account.start_again()

    def close(self) -> None:
        """Close all ledgers, and end what learns in the background."""
        self.background.close()
        for account in self.private_accounts:
            account.close()

    def read_picture(self, data: bytes) -> dict[str, Any]:
        """Return the pixels of a picture's file, and what was done to make it one of these images.

        It is resized and made grey as a folder of pictures is before training. DataError where it
        cannot be read, or must not be resized as these images are no squares.
        """
        channels, height, width = self.shape
        size = height if height == width else 0
        files = [("The picture", BytesIO(data))]
        pixels, tally = decode_pictures(files, 1, size=size, grey=channels == 1)
        x = to_floats(pixels)
        changes = [
            PICTURE_CHANGES[name] for name in tally.changes if name != "grey" or channels == 3
        ]
        if x.shape[1] == 1 and channels == 3:
            x = x.expand(-1, 3, -1, -1)
        if tuple(x.shape[1:]) != self.shape:
            raise DataError(
                f"The picture is of shape {tuple(x.shape[1:])}, must be {self.shape}: channels, "
                "rows, columns; resize it first, or draw"
            )
        if tally.largest != (width, height):
            columns, rows = tally.largest
            changes.insert(0, f"{columns}x{rows} pixels, resized to {width}x{height}")
        return {"pixels": x[0].tolist(), "note": "; ".join(changes)}

    def _draw_examples(self) -> list[str | None]:
        """Return one test image of each class, None where there is none; [] for many classes."""
        if self.classes > MAX_EXAMPLES:
            return []
        x, y = self.columns[0].candidates
        places = [(y == label).nonzero() for label in range(self.classes)]
        return [encode_pixels(x[int(place[0])]) if len(place) else None for place in places]

    @property
    def _count(self) -> int:
        return len(self.columns[0].candidates.y)

    def _pick(self, request: Request) -> Picked:
        """Return the image of a request."""
        if (request.test is None) == (request.pixels is None):
            raise DataError("give `test`, the number of a test image, or `pixels`; not both")
        if request.test is not None:
            if not 0 <= request.test < self._count:
                raise DataError(f"test is {request.test}, must be from 0 to {self._count - 1}")
            if request.label is not None:
                raise DataError(
                    f"label is {request.label}: a test image has its own; leave it out, or give "
                    "`pixels`"
                )
            x, y = self.columns[0].candidates
            return Picked(x[request.test], request.test, int(y[request.test]), False)
        image = read_pixels(request.pixels, self.shape)
        label = request.label
        if label is not None and not 0 <= label < self.classes:
            raise DataError(f"label is {label}, must be from 0 to {self.classes - 1}")
        assumed = find_label(self.columns[0], image) if label is None else label
        return Picked(image, self._count, assumed, label is None)


def read_pixels(values: object, shape: tuple[int, int, int]) -> Float[Tensor, "C H W"]:
    """Return an image of one's own; DataError where it is none of this shape in [0, 1]."""
    try:
        image = torch.tensor(values, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise DataError(
            f"pixels are no table of numbers; must be of shape {shape}: channels, rows, columns"
        ) from None
    if tuple(image.shape) != shape:
        raise DataError(
            f"pixels are of shape {tuple(image.shape)}, must be {shape}: channels, rows, columns"
        )
    if not image.isfinite().all():
        raise DataError("pixels hold NaN or infinity, must be finite numbers in [0, 1]")
    low, high = float(image.min()), float(image.max())
    if not 0 <= low <= high <= 1:
        raise DataError(f"pixels are in [{low:g}, {high:g}], must be in [0, 1]; divide by 255")
    return image


def read_level(request: Request) -> NoiseLevel:
    """Return how much noise a request asks for; SettingsError where no slider stands there."""
    near = [factor for factor in FACTORS if math.isclose(factor, request.factor, rel_tol=1e-3)]
    if not near:
        raise SettingsError(f"factor is {request.factor:g}, must be one of {join(FACTORS)}")
    if request.messages not in MESSAGE_COUNTS:
        raise SettingsError(f"messages is {request.messages}, must be {join(MESSAGE_COUNTS)}")
    return NoiseLevel(near[0], request.messages)


def join(numbers: Sequence[float]) -> str:
    """Return numbers as a list in words."""
    return ", ".join(f"{number:.3g}" for number in numbers)


def open_playground(
    folder: Path,
    ledgers: Path,
    show_step: ShowStep,
    variants: Sequence[str] = (),
) -> Playground:
    """Read a run or a bench; attackers learn the messages of its encoders in the background.

    `ledgers` is a folder for the accounts of private answers; `variants` are names of a bench's,
    none: the first `MAX_COLUMNS`. RunError where a run is missing, unfinished or damaged, or the
    runs have other test images; SettingsError where a variant is not there.
    """
    show_step(0, 0, "reading the runs")
    book = read_book(folder)
    summaries = book.summaries
    looks = choose_looks(summaries)
    chosen, left_out = choose_summaries(summaries, variants)
    steps, background = len(chosen), Background()
    try:
        columns = list[Column]()
        private_accounts = list[PrivateAccount]()
        for number, summary in enumerate(chosen):
            place = folder / summary.row.run
            look = looks[summary.variant]
            show_step(number, steps, f"{summary.label}: encoding the candidates")
            run = run_folder.read_run(place)
            if columns and not torch.equal(columns[0].run.splits.test.x, run.splits.test.x):
                raise RunError(
                    f"{place} has other test images than {columns[0].run.folder}; show it alone: "
                    f"fedcel play {place}"
                )
            marker = MARKERS.get(look["marker"], "●")
            columns.append(
                prepare_column(run, Look(summary.label, look["color"], marker), background)
            )
            private_accounts.append(PrivateAccount(run, ledgers / str(number)))
        note = ""
        if left_out:
            names = ", ".join(summary.label for summary in left_out)
            note = f"Not shown: {names}; name what to show with --variant."
        playground = Playground(
            book.title, tuple(columns), tuple(private_accounts), background, note
        )
        show_step(steps, steps, "trying it once")
        warm_up(playground)
    except BaseException:  # else the process would wait for all that was to be learned
        background.close()
        raise
    return playground


def choose_summaries(
    summaries: Sequence[Summary], variants: Sequence[str]
) -> tuple[list[Summary], list[Summary]]:
    """Return what is shown and what is left out; SettingsError where a name is not there."""
    for name in variants:
        if name not in {label for s in summaries for label in (s.variant, s.label)}:
            allowed = ", ".join(dict.fromkeys(s.variant for s in summaries))
            raise SettingsError(f"--variant is {name!r}, must be one of {allowed}")
    ordered = sorted(summaries, key=lambda s: not s.row.undefended)
    if variants:
        return [s for s in ordered if {s.variant, s.label} & {*variants}], []
    return ordered[:MAX_COLUMNS], ordered[MAX_COLUMNS:]


def warm_up(playground: Playground) -> None:
    """Compute one change of each kind: what is first used is first loaded."""
    with suppress(DataError):
        playground.look(Request(test=0))
        blank = torch.zeros(playground.shape).tolist()
        playground.look(Request(pixels=blank, messages=64))
