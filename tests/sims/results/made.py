"""Rows of bench.json without a bench."""

from sims.results.records import BenchRow, CellAttack


def attack(name: str, mse: float | None, **more: object) -> CellAttack:
    """Return the scores of one attack on 400 targets, the right one among a hundred."""
    how = {"observation": "smashed-data", "knowledge": "held-out", "budget": 1.0, "targets": 400}
    return CellAttack.model_validate({"attack": name, "mse": mse, **how, **more})


def make_row(
    variant: str = "v",
    strength: float | None = None,
    *attacks: CellAttack,
    accuracy: float | None = 0.5,
    bits: float | None = 1.0,
    seed: int = 0,
    **more: object,
) -> BenchRow:
    """Return a row of bench.json; what is called `none` is undefended, `swept` anchored."""
    row: dict[str, object] = {"variant": variant, "strength": strength, "seed": seed}
    row |= {"accuracy": accuracy, "bits-beyond-label": bits, "attacks": attacks}
    row |= {"undefended": variant == "none", "anchored": variant == "swept"}
    return BenchRow.model_validate({**row, "run": f"runs/{variant}-{strength}-{seed}", **more})
