"""Settings of the data: where images come from and who holds which."""

from typing import Annotated, Literal

from pydantic import Field

from fedcel.options import Options, Positive

ImageCount = Annotated[int, Field(ge=2)] | Literal["auto"]
"""How many images: a number, or a share of those that there are."""
CLASS_SOURCES = ("digits", "idx", "cifar", "image-folder", "huggingface")
"""Sources whose labels are classes without an order, never bins of a number."""


class DataSettings(Options):
    """Where images come from and who holds which."""

    source: str = Field(
        "digits",
        description="digits, diabetes, idx, cifar, npz, image-folder, huggingface, or an import "
        "string.",
    )
    path: str = Field("none", description="Folder or file of the images, for sources that read.")
    repository: str = Field(
        "none", description="Data set on the Hugging Face Hub, in place of data.path."
    )
    label_column: str = Field(
        "none",
        description="Column of the labels, 'huggingface'; none: the only one of classes, else of "
        "whole numbers.",
    )
    holder_column: str = Field(
        "none", description="Column that names each image's holder, 'huggingface' and 'natural'."
    )
    size: int = Field(0, ge=0, description="Pixels a side to resize images to; 0: as they are.")
    grey: bool = Field(False, description="Whether colours are turned into their luminance.")
    labels: str = Field(
        "own",
        description="Task: own classes, parity (whether these are odd), or one for each: 0,0,1.",
    )
    seed: int = Field(
        0,
        ge=0,
        description="Seed of who is test, validation and auxiliary image; all seeds share it.",
    )
    held_out_classes: int = Field(
        0, ge=0, description="Classes whose images are all the attacker's, and nobody else's."
    )
    partition: Literal["iid", "dirichlet", "shards", "natural"] = Field(
        "dirichlet", description="How training images are dealt out to the clients."
    )
    alpha: Positive = Field(
        0.5, description="Dirichlet concentration; small values give each client few classes."
    )
    shards: int = Field(2, ge=1, description="Shards a client, for the partition 'shards'.")
    train: int = Field(0, ge=0, description="Training images of all clients together; 0: all left.")
    validation: ImageCount = Field(
        150, description="Images the server chooses settings on; auto: a tenth, 150 at most."
    )
    auxiliary: ImageCount = Field(
        250,
        description="Images of the attacker, unless data.held-out-classes gives them; auto: a "
        "sixth, 250 at most.",
    )
    test: ImageCount = Field(
        400,
        description="Test images, the targets of the attacks; auto: a fifth, or all of a test "
        "part, 400 at most.",
    )
