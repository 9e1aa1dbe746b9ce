"""Growth of a loss's weight during training."""


def ramp_weight(
    step: int | float,
    steps: int | float,
    *,
    warm_up: int | float = 5,
    ramp: int | float = 0.6,
    end: int | float = 1.0,
) -> float:
    """Compute by how much a loss counts at a step: 0, then a linear ramp, then constant.

    Switched on at full weight from the start, a conditional entropy loss pulls classes together
    before they are apart. The unit of a step is yours: rounds, epochs or batches.

    Example:
        >>> weight = 1.0 * fedcel.ramp_weight(epoch, epochs, warm_up=5)
        >>> loss = cross_entropy(head(z + noise), y) + weight * cel(z, y)

    Args:
        step: The step, from 1 (or 0) on.
        steps: All steps of the training.
        warm_up: Steps in which the loss does not act.
        ramp: Fraction of the steps at which the weight is largest, in [0, 1].
        end: Its largest value.

    Returns:
        The factor, in [0, end].

    Raises:
        ValueError: `ramp` is not in [0, 1], or a number is negative.
    """
    if not 0 <= ramp <= 1:
        raise ValueError(f"ramp is {ramp}, must be in [0, 1]: a fraction of the steps")
    if min(step, steps, warm_up, end) < 0:
        raise ValueError(
            f"step is {step}, steps {steps}, warm_up {warm_up}, end {end}; all must be at least 0"
        )
    last = ramp * steps
    if step <= warm_up:
        return 0.0
    if step >= last:
        return float(end)
    return end * (step - warm_up) / (last - warm_up)
