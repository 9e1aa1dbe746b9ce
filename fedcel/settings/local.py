"""What clients and the server do in a round, and which models are kept."""

from typing import Annotated, Literal

from pydantic import Field

from fedcel.options import Off, Options, Positive, part_name, part_words

SAMPLERS = ("langevin",)


class LocalSettings(Options):
    """What a client does in a round."""

    sampler: Annotated[str, part_name(SAMPLERS), part_words(SAMPLERS)] = Field(
        "langevin", description="How a client steps: langevin, or an import string."
    )
    steps: int = Field(20, ge=1, description="Steps a client takes in a round.")
    batch_size: int = Field(32, ge=1, description="Images a step; at most what the client holds.")
    balance: bool = Field(
        False, description="Draw batches with equally many images of each class that a client has."
    )
    augment: Literal["none", "affine", "affine-flip"] = Field(
        "none", description="Small random turns, scalings and shifts of training images; mirrored."
    )
    rate: Positive = Field(1.0, description="Step size eta at the start.")
    schedule: Literal["cosine", "constant", "decay"] = Field(
        "cosine",
        description="eta: cosine or power law (decay) until burn-in ends, or constant.",
    )
    rate_end: float = Field(
        0.05, gt=0, le=1, description="Eta at the end of the cosine, as a share of local.rate."
    )
    at_once: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="Clients that the engine local trains at once at most; auto: chosen."
    )
    clip: Positive | Off = Field(
        "none", description="Largest L2 norm of a step's gradient; clipping changes the target."
    )
    control: Literal["none", "fresh"] = Field(
        "none", description="fresh: a control variate against drift in sampling, at each model."
    )
