"""Messages of device and service in JSON, as the OpenAPI document states them.

Both sides import it, so that a device needs no library of the service's.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

QUERY_PATH = "/v1/query"
READ_PATHS = ("/v1/model", "/v1/encoder", "/v1/budget")
REQUEST_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{7,63}$"
VERSION_PATTERN = r"^[0-9a-f]{32}$"
MAX_VALUE = 1e6
"""Largest absolute value of a message; a bounded encoder with noise sends far less."""
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
"""Hosts to which keys and messages may travel in clear: they stay on this machine."""


class StrictModel(BaseModel, frozen=True, extra="forbid"):
    """Unknown keys are refused."""


class Answer(StrictModel, allow_inf_nan=False):
    """A private answer; repeats of a message get the same one and pay nothing."""

    unit: Literal["logits", "probabilities"] = Field(description="What the values are.")
    label: int = Field(description="The most probable class.")
    values: list[float] = Field(description="One a class, as the mechanism perturbed them.")
    probabilities: list[Annotated[float, Field(ge=0, le=1)]] = Field(
        description="Each class's probability given the values; all classes are equally frequent."
    )
    entropy: float | None = Field(None, description="Perturbed predictive entropy, nats.")
    information: float | None = Field(None, description="Perturbed BALD, nats.")
    fresh: bool = Field(description="Whether it was drawn, and paid, for this request.")
    remaining: float = Field(alias="left", description="Epsilon that the client has left.")


class Budget(StrictModel):
    """A client's account, in epsilon."""

    client: str
    granted: float
    spent: float
    remaining: float = Field(alias="left")
    delta: float = Field(description="Deltas of its answers added up.")


class PriceCard(StrictModel):
    """Epsilon per answer."""

    answer: float
    uncertainty: float = Field(description="Paid on top, where uncertainty is asked for.")


class EncoderCard(StrictModel):
    """Address, digest and size of the device's half."""

    url: str
    sha256: str
    bytes: int


class LeakCard(StrictModel):
    """Leak of one message of the served encoder beyond the label, as the run measured it."""

    bits: float = Field(description="Bits that it tells the best attacker about a test image.")
    unseen: float | None = Field(
        None,
        description="Bits that it tells anyone about an unseen image, on average and at most, by "
        "Student's t: an approximation that assumes that no rare image tells far more; none "
        "without noise.",
    )
    unseen_bernstein: float | None = Field(
        None,
        description="The same with this confidence, whatever the images, by the empirical "
        "Bernstein inequality; none where the features have no known range.",
    )
    confidence: float | None = None
    images: int | None = Field(None, description="Images that the limits are computed of.")


class ExpectedCard(StrictModel):
    """Worth of private answers on the run's test images, as the service claims."""

    accuracy: float = Field(description="Share of private answers that are right.")
    half_width: float = Field(description="Half the width of its 95 % interval.")
    images: int = Field(description="Test images that it was measured on.")
    without_privacy: float = Field(description="Accuracy of the model's own answers.")
    guess: float = Field(description="Accuracy of a guess: one over the number of classes.")
    ece: float = Field(description="Expected calibration error of the probabilities.")


class ModelCard(StrictModel):
    """Facts that a device has to know before it asks."""

    model: str = Field(description="Model version: the digest of all tensors that are served.")
    shape: list[int] = Field(description="Channels, height, width of an image.")
    features: int = Field(description="D, values in a message.")
    classes: int
    samples: int = Field(description="Sampled heads over which an answer is averaged.")
    sigma: float = Field(description="Standard deviation of the noise that a device adds.")
    dropout: float = Field(description="Chance that a device replaces a value by 0.")
    largest: float = Field(description="Largest absolute value of a message.")
    mechanism: str
    clip: float | None = Field(None, description="Size of the clip of logits, where there is one.")
    clip_kind: str | None = Field(None, description="Kind of that clip.")
    epsilon: float
    delta: float
    price: PriceCard
    encoder: EncoderCard
    leak: LeakCard | None = Field(None, description="As the run measured it, where it did.")
    expected: ExpectedCard | None = Field(
        None, description="What its private answers are worth, by mechanism and epsilon above."
    )


class ProblemBody(BaseModel):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    remaining: float | None = Field(None, alias="left")
