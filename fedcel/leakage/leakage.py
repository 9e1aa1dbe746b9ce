"""Leak of an encoder, as numbers and in three lines of words."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from math import isfinite

from jaxtyping import Float
from torch import Tensor

from fedcel.leakage.linearised import LinearisedLeak
from fedcel.metrics import round_up

NOT_ESTIMATED = "How much of the picture a message tells is not estimated"
USELESS_BITS = 64
"""Bits that tell one image from 1.8e19, more than anyone has."""


@dataclass(frozen=True, repr=False, eq=False)
class Leakage:
    """Leak of one message of an encoder to the best possible attacker, about these images.

    Half widths are of 95 % intervals over the noise that was drawn, for these images: they say
    nothing of other images. `print` shows three lines in words, `to_dict` gives plain numbers.
    """

    information_bits: float
    """I(image; message) for an image drawn evenly from the candidates, in bits."""
    bits_beyond_label: float | None
    """I(image; message | label): what leaks about the image and not about its class. None without
    labels."""
    identification: float
    """Share of cases in which the likeliest of `identification_candidates` images is right."""
    certificate_bits: float | None
    """Upper bound on `information_bits`, whoever attacks; None where the law is the user's own."""
    certificate_beyond_label: float | None
    """The same for `bits_beyond_label`; None without labels too."""
    candidates: int
    """M, the images that the bits are about."""
    cap_bits: float
    """log2 M, all of it."""
    cap_beyond_label: float | None
    """Mean over images of log2(images of the same class), all that is beyond the label."""
    identification_candidates: int
    """Images among which the right one is picked."""
    identification_by_label: float | None
    """The same for a guess from the label only."""
    information_half_width: float
    beyond_label_half_width: float | None
    identification_half_width: float
    accuracy: float | None = None
    """The head's accuracy, where it was given."""
    verdict: str | None = None
    """Why the numbers mean nothing, where they do not."""
    population_bits: float | None = None
    """Upper limit of `information_bits` for images that nobody has seen: an approximate 95 % limit
    by Student's t, far too low where rare images carry the information; None without noise, or of
    fewer than 20 images."""
    population_bits_bernstein: float | None = None
    """The same with 95 % confidence for any number of images and any law of them; None without a
    known range."""
    population_beyond_label: float | None = None
    """The limit by Student's t for `bits_beyond_label`."""
    population_beyond_label_bernstein: float | None = None
    population_images: int | None = None
    """Images that the limits are computed of."""
    population_is_heavy_tailed: bool | None = None
    """Whether a few images carry most of the spread: Student's limits may be far too low then."""
    linearised: LinearisedLeak | None = None
    """How much of the picture a message tells, the encoder taken as linear; None where that is not
    known, or takes more than about a second: `measure_linearised` measures it then."""
    linearised_obstacle: str | None = None
    """What about the messages keeps `linearised` from being estimated, in a phrase; None where
    nothing does, or features are given in place of an encoder."""
    # Of single images, and so by keyword: `to_dict` leaves these out.
    information: Float[Tensor, " M"] = field(kw_only=True)
    """Bits of each image, mean over noise draws."""
    beyond: Float[Tensor, " M"] | None = field(kw_only=True)
    """Bits beyond the label of each image."""
    identified: Float[Tensor, " M"] = field(kw_only=True)
    """Chance that each image is identified."""

    def to_dict(self) -> dict[str, float | int | str | dict[str, float | int | str] | None]:
        """Give all numbers but those of single images.

        Returns:
            Numbers, words and None, which JSON can hold, by the names of the attributes.
        """
        names = (part.name for part in fields(self) if not part.kw_only)
        linearised = self.linearised and self.linearised.to_dict()
        return {name: getattr(self, name) for name in names} | {"linearised": linearised}

    def __repr__(self) -> str:
        """Show the five numbers that are asked for first."""
        names = ("bits_beyond_label", "information_bits", "identification", "certificate_bits")
        values = [f"{name}={format_number(getattr(self, name))}" for name in names]
        return f"Leakage({', '.join(values)}, candidates={self.candidates})"

    def __str__(self) -> str:
        """Describe leak, chance to pick the image, and the limits of both, a line each.

        Three lines on how much of the picture a message tells follow where that is known, or one
        that says why the messages do not allow it.
        """
        lines = [self._say_bits(), self._say_identification(), self._say_limits()]
        if self.linearised is not None:
            lines.append(str(self.linearised))
        elif self.linearised_obstacle is not None:
            lines.append(f"{NOT_ESTIMATED}: {self.linearised_obstacle}.")
        return "\n".join(lines)

    @property
    def linearised_bits(self) -> float | None:
        """Bits of the picture in a message, by the linearised channel; None without a gradient."""
        return None if self.linearised is None else self.linearised.bits

    @property
    def linearised_mse(self) -> float | None:
        """Squared error a pixel of the best reconstruction, by the linearised channel."""
        return None if self.linearised is None else self.linearised.mmse

    @property
    def fisher_per_pixel(self) -> float | None:
        """Fisher information per pixel, dFIL."""
        return None if self.linearised is None else self.linearised.dfil

    @property
    def fsinfo(self) -> float | None:
        """Fisher-approximated Shannon information, FSInfo, in nats per pixel."""
        return None if self.linearised is None else self.linearised.fsinfo

    @property
    def mse_bound(self) -> float | None:
        """Van Trees' lower bound on the squared error a pixel, for Gaussian images."""
        return None if self.linearised is None else self.linearised.bound

    @property
    def has_classes(self) -> bool:
        """Whether there are labels, and one of them occurs twice: else none has bits beyond it."""
        return bool(self.cap_beyond_label)

    def _say_bits(self) -> str:
        """Return what one message tells, of how much, and the bound."""
        information = (
            f"{self.information_bits:z.2f} ± {round_up(self.information_half_width, 2)} of "
            f"{self.cap_bits:.2f} bits about which image it is"
        )
        bounds, measured = [self.certificate_bits], [self.information_bits]
        if self.bits_beyond_label is None or self.beyond_label_half_width is None:
            words = f"One message tells the best possible attacker {information}"
        elif not self.has_classes:
            words = (
                f"One message tells the best possible attacker {information}; each label occurs "
                "once and names its image, so there are no bits beyond it: measure several images "
                "of a class"
            )
        else:
            words = (
                "Beyond its label, one message tells the best possible attacker "
                f"{self.bits_beyond_label:z.2f} ± {round_up(self.beyond_label_half_width, 2)} of "
                f"{self.cap_beyond_label:.2f} bits about the image; with the label, {information}"
            )
            bounds.insert(0, self.certificate_beyond_label)
            measured.insert(0, self.bits_beyond_label)
        known_bounds = [bound for bound in bounds if bound is not None]
        if known_bounds:
            words += (
                f" (the certificate: at most {' and '.join(f'{b:.2f}' for b in known_bounds)}, "
                "whoever attacks"
            )
            if any(bits > bound for bits, bound in zip(measured, bounds, strict=True) if bound):
                words += "; what was measured above it is chance in the noise"
            words += ")"
        return f"{self.verdict} {words}." if self.verdict else f"{words}."

    def _say_identification(self) -> str:
        """Return how often the right image is picked."""
        chance = 1 / self.identification_candidates
        by_label = self.identification_by_label if self.has_classes else None
        baseline = "" if by_label is None else f"one told nothing but the label, {by_label:.1%}, "
        return (
            f"Of {self.identification_candidates} images this attacker, who is not told the label, "
            f"picks the right one in {self.identification:.1%} ± "
            f"{round_up(100 * self.identification_half_width, 1)}% of all cases; {baseline}a blind "
            f"guess {chance:.1%}."
        )

    def _say_limits(self) -> str:
        """Return what does not follow from the numbers."""
        task = "a low leak of a network that has not learned its task is no privacy"
        if self.accuracy is not None and self.verdict is None:
            task = f"the accuracy that goes with it is {self.accuracy:.1%}"
        return (
            f"This holds for one message about one of these {self.candidates} images: messages of "
            f"one image with fresh noise add up, and {task}. {self._say_population()}"
        )

    def _say_population(self) -> str:
        """Return what other images leak at most, where it is known, and on what assumption."""
        if self.population_bits is None:
            return "Other images leak otherwise."
        student, safe = [self.population_bits], [self.population_bits_bernstein]
        if self.has_classes and self.population_beyond_label is not None:
            student.insert(0, self.population_beyond_label)
            safe.insert(0, self.population_beyond_label_bernstein)
        proven = [limit for limit in safe if limit is not None]
        limits = proven or student
        by_student = f"Student's t says {join_bits(student)}, if no rare image tells far more."
        if limits[-1] > USELESS_BITS:
            words = (
                "For other images of the population that they are drawn from, this measurement "
                "gives no limit."
            )
            if student[-1] <= USELESS_BITS:
                words += f" {by_student}"
        elif proven:
            words = (
                "Of the population that they are drawn from, one leaks at most "
                f"{join_bits(limits)} bits on average, with 95 % confidence, if the encoder was "
                f"not trained on them; {by_student}"
            )
        else:
            words = (
                "Of the population that they are drawn from, one leaks at most about "
                f"{join_bits(limits)} bits on average, if the encoder was not trained on them: an "
                "approximation by Student's t, which assumes that no rare image tells far more."
            )
        if self.population_is_heavy_tailed:
            words += (
                " Warning: a few of these images do, so rare ones may carry the information, and "
                "Student's limit may be far too low."
            )
        return words


def join_bits(limits: Sequence[float]) -> str:
    """Return bits beyond the label and of all, or only those of all."""
    return " and ".join(f"{limit:.2f}" for limit in limits)


def format_number(value: float | None) -> str:
    """Return a number as short as it is readable."""
    return str(value) if value is None or not isfinite(value) else f"{value:.4g}"
