"""The command `membership`: tell which images federations were trained on."""

from pathlib import Path
from typing import Annotated

import typer

from fedcel.extras import require_extra
from sims.commands.options import Assignments, Jobs, Scenario, check_folder
from sims.overrides import parse_overrides

EXAMPLES = ("fedcel membership membership --out runs/members",)


def membership_command(
    scenario: Scenario,
    out: Annotated[
        Path,
        typer.Option(help="Folder of what is observed; a call goes on there.", show_default=False),
    ],
    assignments: Assignments = None,
    shadows: Annotated[
        int, typer.Option(help="Federations that the attacker trains, of each variant.")
    ] = 64,
    targets: Annotated[int, typer.Option(help="Federations that are attacked.")] = 16,
    jobs: Jobs = 1,
) -> None:
    """Tell members from other images: by messages, answers and uploads, with shadow federations."""
    require_extra("simulation")
    from sims.bench.membership import attack_membership

    check_folder(out)
    overrides = parse_overrides(assignments)
    text = attack_membership(
        scenario, out, shadows=shadows, targets=targets, jobs=jobs, overrides=overrides
    )
    print(text, end="")
