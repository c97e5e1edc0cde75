"""The learning rate that goes with another batch size (floor 1)."""

from __future__ import annotations

import math
from collections.abc import Callable

from energy_lightning.recurring.errors import RecurringError

RULES: dict[str, Callable[[float], float]] = {"linear": float, "sqrt": math.sqrt, "none": lambda ratio: 1.0}


def scaled_learning_rate(learning_rate: float, *, batch_size: int, default: int, rule: str = "sqrt") -> float:
    """`learning_rate` of batch size `default`, scaled to `batch_size`.

    "linear" is usual with SGD (Goyal et al., 2017, arXiv 1706.02677), "sqrt" with Adam and its kin (Krizhevsky, 2014,
    arXiv 1404.5997). Raises RecurringError on an unknown rule or sizes and rates that are not positive and finite.
    """
    if rule not in list(RULES):
        raise RecurringError(f"unknown learning-rate rule {rule!r}; known: {', '.join(RULES)}")
    if not (0.0 < learning_rate < math.inf and batch_size >= 1 and default >= 1):
        raise RecurringError(
            f"need a positive rate and sizes of 1 or more, got rate {learning_rate}, sizes {batch_size}, {default}"
        )
    return learning_rate * RULES[rule](batch_size / default)
