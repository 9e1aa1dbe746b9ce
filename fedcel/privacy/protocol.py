"""What every mechanism of private answers offers."""

from typing import Literal, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

PROTECTS = (
    "the input of one query, against whoever reads its answer; answers add up, and the images a "
    "model was trained on are not protected by this."
)


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
        """What is protected against whom, in one sentence."""
        ...

    @property
    def unit(self) -> Literal["logits", "probabilities"]:
        """What the values of an answer are; probabilities may lie outside [0, 1]."""
        ...

    def answer(self, logits: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """Return one private answer a row, with noise of the system's secure generator.

        Args:
            logits: (B, C); each row is one answer.

        Returns:
            Rows (B, C); the top class of one is its label.

        Raises:
            ValueError: Logits are undefined.
        """
        ...
