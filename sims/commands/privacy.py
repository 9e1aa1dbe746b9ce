"""The command `privacy`: what every mechanism, clip and epsilon makes of a run's answers."""

from typing import Annotated

import typer

from fedcel.errors import SettingsError
from fedcel.extras import require_extra
from sims.commands.options import RunFolder, option, parse_numbers

EXAMPLES = (
    "fedcel privacy RUN",
    "fedcel privacy RUN --accuracy-loss 5 --epsilons 2,4,6 --clips 1",
)


def privacy_command(
    run: RunFolder,
    *,
    accuracy_loss: Annotated[
        float,
        typer.Option(metavar="POINTS", help="Largest loss of accuracy, in points."),
    ] = 2.0,
    epsilons: Annotated[
        str,
        option(
            metavar="NUMBERS",
            help="Epsilons per answer; default: 0.5 to 8, the run's, and the smallest at which "
            "label-only stays within --accuracy-loss.",
        ),
    ] = "",
    clips: Annotated[
        str, typer.Option(metavar="NUMBERS", help="Sizes of the clips `l1` and `clamp`.")
    ] = "1,8",
) -> None:
    """Compare private mechanisms: accuracy, calibration, time; name the cheapest within a loss.

    Options are chosen on the run's validation images and reported on its test images.
    """
    require_extra("privacy")
    from sims.answers import describe_answers

    if not 0 < accuracy_loss < 100:
        raise SettingsError(
            f"--accuracy-loss is {accuracy_loss:g}, must be above 0 and below 100 points; try 2"
        )
    sizes = parse_numbers("--clips", clips, above=0)
    if not sizes:
        raise SettingsError("--clips is '', must be numbers above 0, such as 1,8")
    print(
        describe_answers(
            run,
            accuracy_loss / 100,
            epsilons=parse_numbers("--epsilons", epsilons, above=0),
            clips=sizes,
        )
    )
