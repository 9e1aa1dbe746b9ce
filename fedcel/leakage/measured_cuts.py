"""Cuts of a model, measured: limits on them, the best that meets these, and the nearest."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from math import inf, isfinite
from typing import NamedTuple

from torch import nn

from fedcel.errors import SettingsError
from fedcel.leakage.leakage import Leakage
from fedcel.leakage.linearised import LinearisedLeak

VALUE_BYTES = {"float32": 4, "float16": 2, "int8": 1}
"""Bytes of a value by its type."""
ANSWER = "answer alone"
"""Stands in the place of a layer where the device computes everything and sends the class."""
LARGE_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, kw_only=True)
class CutLimits:
    """Limits that a cut has to meet; None: there is none.

    Raises:
        SettingsError: A limit can be met by no cut, or two say the same in different units.
    """

    max_loss: float | int = 1.0
    """Points of accuracy that the noise may cost."""
    max_bits: float | int | None = None
    """Bits beyond the label that one message may tell: the linearised and the exact ones."""
    min_mse: float | int | None = None
    """Squared error a pixel that the best reconstruction must have, by the linearised channel."""
    max_macs: float | int | None = None
    """Multiplications with an addition on the device, for one image."""
    max_bytes: float | int | None = None
    """Bytes of one message in float32."""

    def __post_init__(self) -> None:
        """Refuse limits that make no sense."""
        if not 0 <= self.max_loss < 100:
            raise SettingsError(
                f"max-loss is {self.max_loss:g}, must be points of accuracy, 0 or more and below "
                "100; try 1"
            )
        for part in fields(self)[1:]:
            value, name = getattr(self, part.name), part.name.replace("_", "-")
            if value is not None and not 0 < value < inf:
                raise SettingsError(f"{name} is {value:g}, must be finite and above 0")
        if self.max_bits is not None and self.min_mse is not None:
            raise SettingsError(
                f"max-bits is {self.max_bits:g} and min-mse is {self.min_mse:g}: both limit the "
                "leak; give one of them"
            )

    def list_limits(self) -> list[tuple[str, float]]:
        """List the limits that there are.

        Returns:
            Each attribute's name and value.
        """
        values = ((part.name, getattr(self, part.name)) for part in fields(self))
        return [(name, value) for name, value in values if value is not None]

    @property
    def has_leak(self) -> bool:
        """Whether the leak is limited."""
        return self.max_bits is not None or self.min_mse is not None


@dataclass(frozen=True, kw_only=True)
class MeasuredCut:
    """A cut of a model with the most noise that the accuracy allows: its cost and its leak."""

    layer: str
    """Layer whose output is sent; `answer alone`: the class is."""
    encoder: nn.Module = field(repr=False)
    """The device's half, without a normalisation of the images."""
    head: nn.Module = field(repr=False)
    """The rest, from features in their own shape to logits."""
    shape: tuple[int, ...]
    features: int
    """Values of a message, D."""
    macs: int
    """Multiplications with an addition on the device, of matrix products and convolutions."""
    parameters: int
    """Of the device's half."""
    milliseconds: float
    """Time of the device's half for one image, on this machine."""
    rms: float
    """Root mean square of the features."""
    noise: float
    """Standard deviation of the noise, in units of the features; 0: any costs too much accuracy."""
    noise_for_leak: float | None = None
    """Least noise that meets the limit of the leak; None: no limit, or no noise does."""
    accuracy: float
    """With the noise, in [0, 1]."""
    loss: float
    """Points of accuracy that the noise costs."""
    loss_half_width: float
    """Of a 95 % interval over images."""
    leak: Leakage
    """Exact bits of the given images, and limits for unseen ones."""
    linearised: LinearisedLeak | None = None
    """Leak of the linearised channel, an estimate that does not saturate; None without noise."""

    @property
    def is_answer(self) -> bool:
        """Whether the answer is sent in place of features."""
        return self.layer == ANSWER

    @property
    def bytes(self) -> int:
        """Bytes of one message: features in float32, or the number of a class."""
        return max(self.bytes_by_type.values())

    @property
    def bytes_by_type(self) -> dict[str, int]:
        """Bytes of one message by the type of its values; the number of a class has one only."""
        if self.is_answer:
            return {"int8": self.features}
        return {name: size * self.features for name, size in VALUE_BYTES.items()}

    @property
    def leak_bits(self) -> float:
        """Bits by which cuts are compared: of the linearised channel; of the answer, the exact."""
        if self.linearised is not None:
            return self.linearised.bits
        return self.exact_bits if self.is_answer else inf

    @property
    def exact_bits(self) -> float:
        """Exact bits of the given images: beyond the label where there are labels."""
        beyond = self.leak.bits_beyond_label
        return self.leak.information_bits if beyond is None else beyond

    def to_dict(self) -> dict[str, object]:
        """Give all numbers.

        Returns:
            What JSON can hold, by the names of the attributes.
        """
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        numbers = {name: v for name, v in values.items() if not isinstance(v, nn.Module)}
        linearised = self.linearised and self.linearised.to_dict()
        return numbers | {"leak": self.leak.to_dict(), "linearised": linearised}

    def describe(self, unit: str) -> str:
        """Describe leak and cost in a phrase."""
        exact = f"{round(self.exact_bits, 9) + 0:.3g} exact"
        if self.linearised is not None:
            bits = f"{format_large(self.leak_bits)} linearised {unit}, {exact} ones of these images"
        else:
            bits = f"{exact} {unit}" if isfinite(self.leak_bits) else "everything leaks"
        size = f"a message of {format_large(self.bytes)} byte{'s' * (self.bytes > 1)}"
        return f"{bits}, {size}, {format_large(self.macs)} operations on the device"


class Excess(NamedTuple):
    """A limit that a cut misses.

    Attributes:
        words: The cut's number, and the limit.
        factor: By how much it misses the limit, above 1.
    """

    words: str
    factor: float


@dataclass(frozen=True, kw_only=True)
class CutComparison:
    """Cuts of a model, measured with the same images; `print` shows the recommendation."""

    cuts: Sequence[MeasuredCut]
    """From the first layer to the last."""
    answer: MeasuredCut
    """The whole model on the device, which sends the class that it answers."""
    limits: CutLimits
    accuracy: float
    """Of the model without noise, in [0, 1]; 1 where it is held to its own answers."""
    is_label_accuracy: bool
    """Whether accuracy is of the labels; else it is agreement with the model without noise."""
    has_classes: bool
    """Whether bits are those beyond the label."""
    images: int
    """Images that were measured."""
    prior_mse: float
    """Squared error a pixel of who gets no message and knows the label."""

    @property
    def unit(self) -> str:
        """Unit of the leak, in words."""
        return "bits beyond the label" if self.has_classes else "bits about the image"

    @property
    def accuracy_name(self) -> str:
        """Name of what is called accuracy, in a word."""
        return "accuracy" if self.is_label_accuracy else "agreement"

    @property
    def accuracy_words(self) -> str:
        """The same in a phrase."""
        without = " with the answers without noise"
        return self.accuracy_name + ("" if self.is_label_accuracy else without)

    @property
    def accuracy_sentence(self) -> str:
        """Sentence on right answers without noise, or on what stands in the place of labels."""
        if self.is_label_accuracy:
            return f"Without noise the model is right in {self.accuracy:.1%} of cases."
        return (
            "There are no labels that the model knows, so agreement with its answers without noise "
            "stands in the place of accuracy."
        )

    def list_excesses(self, cut: MeasuredCut) -> list[Excess]:
        """List the limits that a cut misses.

        Args:
            cut: One of the cuts, or the answer.

        Returns:
            Each limit that it misses, in words, with the factor by which it does.
        """
        limits, bits = self.limits, max(cut.leak_bits, cut.exact_bits)
        linearised = cut.linearised
        mse = 0.0 if linearised is None else linearised.mmse
        mse = self.prior_mse if cut.is_answer else mse
        no_noise = not (cut.noise or cut.is_answer)
        points = f"{limits.max_loss:g} point{'s' * (limits.max_loss != 1)}"
        loss = f"any noise costs more than {points} of {self.accuracy_words}"
        macs = f"{format_large(cut.macs)} operations"
        size = f"{format_large(cut.bytes)} bytes a message"
        pairs = (
            (f"{format_large(bits)} {self.unit}, at most", bits, limits.max_bits),
            (f"{macs}, at most", cut.macs, limits.max_macs),
            (f"{size}, at most", cut.bytes, limits.max_bytes),
            (f"a squared error of {mse:.3g}, at least", -mse, limits.min_mse and -limits.min_mse),
        )
        missed = [
            Excess(
                f"{words} {format_large(abs(limit))} is allowed",
                value / limit if limit > 0 else limit / value if value else inf,
            )
            for words, value, limit in pairs
            if limit is not None and value > limit
        ]
        return [Excess(loss, inf), *missed] if no_noise else missed

    @property
    def recommended(self) -> MeasuredCut | None:
        """Cut that meets all limits, None where none does.

        Of several it is the one with the fewest operations on the device where the leak is limited,
        else the one that leaks least.
        """
        allowed = [cut for cut in self.cuts if not self.list_excesses(cut)]
        if self.limits.has_leak:
            return min(allowed, key=lambda cut: (cut.macs, cut.bytes, cut.leak_bits), default=None)
        return min(allowed, key=lambda cut: (cut.leak_bits, cut.macs, cut.bytes), default=None)

    @property
    def nearest(self) -> MeasuredCut:
        """Cut that misses its worst limit by the smallest factor."""
        return min(
            self.cuts,
            key=lambda cut: (
                max((excess.factor for excess in self.list_excesses(cut)), default=1.0),
                cut.leak_bits,
            ),
        )

    @property
    def pareto(self) -> list[MeasuredCut]:
        """Cuts, and the answer, for which no other leaks less at no more operations."""
        points = [*self.cuts, self.answer]
        return [
            cut
            for cut in points
            if not any(
                (other.leak_bits, other.macs) != (cut.leak_bits, cut.macs)
                and other.leak_bits <= cut.leak_bits
                and other.macs <= cut.macs
                for other in points
            )
        ]

    @property
    def sentence(self) -> str:
        """Recommendation, or the statement that no cut meets the limits and the nearest one."""
        cut = self.recommended
        if cut is None:
            cut = self.nearest
            missed = "; ".join(excess.words for excess in self.list_excesses(cut))
            words = f"None of {len(self.cuts)} cuts meets the limits; {cut.layer} comes nearest"
            words += f": {missed}"
        else:
            words = (
                f"Cut at {cut.layer} and add noise of standard deviation {cut.noise:.3g} "
                f"({cut.noise / cut.rms:.2g} times the features' root mean square), which costs "
                f"{cut.loss:.1f} ± {cut.loss_half_width:.1f} points of {self.accuracy_words} on "
                f"these {self.images} images: {cut.describe(self.unit)}"
            )
        answer = self.answer
        is_better = answer.exact_bits < cut.exact_bits or self.recommended is None
        if not is_better or self.list_excesses(answer):
            return f"{words}."
        claim = "tells less" if self.recommended else "meets them"
        return (
            f"{words}. The answer alone, where the device may compute it, {claim}: "
            f"{answer.describe(self.unit)}."
        )

    def __str__(self) -> str:
        """Return the recommendation."""
        return self.sentence


def format_large(value: float | int) -> str:
    """Format a number with three digits, and a letter for thousands, millions or billions.

    Args:
        value: The number, such as bytes or operations.

    Returns:
        Such as `4.1 k`.
    """
    for unit, letter in LARGE_UNITS:
        if value >= unit:
            return f"{value / unit:.3g} {letter}"
    return f"{value:.3g}"
