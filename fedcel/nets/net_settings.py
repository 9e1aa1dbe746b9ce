"""Settings of the split network."""

from typing import Literal

from pydantic import Field

from fedcel.options import Options


class NetSettings(Options):
    """The split network."""

    name: str = Field("mlp", description="mlp, cnn, strided, vgg11, or 'package.module:object'.")
    features: int = Field(64, ge=1, description="Values of the smashed data, D.")
    width: int = Field(128, ge=1, description="Hidden width; 'vgg11': channels of its 2nd block.")
    cut_after: int = Field(2, ge=2, le=3, description="Blocks of 'vgg11' before the cut.")
    head_width: int = Field(0, ge=0, description="Hidden width of the head; 0: a linear head.")
    head: Literal["classes", "gaussian", "heteroscedastic"] = Field(
        "classes",
        description="Logits of classes, or of a number's bins by a Gaussian of one sd or many.",
    )
    bound: Literal["sigmoid", "norm", "none"] = Field(
        "sigmoid", description="How smashed data are kept bounded; 'none' only for study."
    )
    seed: int = Field(
        0, ge=0, description="Seed of the first parameters beside `seed`: members of an ensemble."
    )
    noise: float = Field(
        0.3, ge=0, allow_inf_nan=False, description="Sigma of the Gaussian noise at the cut."
    )
    noise_shape: Literal["auto", "one", "feature", "image"] = Field(
        "auto",
        description="Noise: one sd for all, or learned by feature, or by image too; "
        "auto: by defence.",
    )
    noise_limit: float = Field(
        8.0,
        gt=1,
        allow_inf_nan=False,
        description="A learned sd is sigma times this at most, and sigma over this at least.",
    )

    @property
    def is_bounded(self) -> bool:
        """Whether features are known to have |z|^2 <= D: a user's net bounds them as it likes."""
        return self.bound != "none" and ":" not in self.name
