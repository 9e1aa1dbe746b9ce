"""Mechanisms of private answers, and those of known law."""

from typing import Literal, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

PROTECTS = (
    "the input of one query, against whoever reads its answer; answers add up, and the images a "
    "model was trained on are not protected by this."
)

Unit = Literal["logits", "probabilities"]


@runtime_checkable
class Mechanism(Protocol):
    """A randomised answer: any two inputs x, x' have P(A | x) <= e^epsilon P(A | x') + delta."""

    @property
    def name(self) -> str:
        """The setting's word for it."""
        ...

    @property
    def epsilon(self) -> float:
        """Privacy loss of one answer, in nats."""
        ...

    @property
    def delta(self) -> float:
        """Chance by which that loss may be exceeded; 0 for pure privacy."""
        ...

    @property
    def protects(self) -> str:
        """Sentence that says what is protected against whom."""
        ...

    @property
    def unit(self) -> Unit:
        """Unit of an answer's values; probabilities may lie outside [0, 1]."""
        ...

    def answer(self, logits: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """Return one private answer a row, with noise of the system's secure generator.

        Args:
            logits: (B, C); each row is one answer. Built-in mechanisms take a NumPy array, too.

        Returns:
            Rows (B, C), of the kind that was given, in double precision; the top class of one is
            its label.

        Raises:
            ValueError: Logits are undefined, or of another number of classes.
        """
        ...


@runtime_checkable
class KnownLaw(Mechanism, Protocol):
    """A mechanism with a known distribution of answers, to which Bayes' rule applies."""

    @property
    def classes(self) -> int:
        """Values of an answer."""
        ...

    def answer_without_noise(self, logits: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """Return the answers if nothing were drawn.

        Args:
            logits: (B, C).

        Returns:
            Rows (B, C), in double precision.

        Raises:
            ValueError: Logits are undefined, or of another number of classes.
        """
        ...

    def log_density(
        self, answers: Float[Tensor, "Q C"], rows: Float[Tensor, "M C"]
    ) -> Float[Tensor, "Q M"]:
        """Return the log of each answer's density given each row, in nats.

        Args:
            answers: (Q, C), as `answer` gives them.
            rows: (M, C), as `answer_without_noise` gives them.

        Returns:
            Log-densities (Q, M) in double precision, up to one number for all pairs.
        """
        ...
