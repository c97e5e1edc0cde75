"""The learning rate that goes with another batch size (floor 1)."""

from __future__ import annotations

import math
from collections.abc import Callable

from energy_lightning.recurring.errors import RecurringError, positive, whole

RULES: dict[str, Callable[[float], float]] = {"linear": float, "sqrt": math.sqrt, "none": lambda ratio: 1.0}


def scaled_learning_rate(learning_rate: float, *, batch_size: int, default: int, rule: str = "sqrt") -> float:
    """`learning_rate` of batch size `default`, scaled to `batch_size`.

    "linear" is usual with SGD (Goyal et al., 2017, arXiv 1706.02677), "sqrt" with Adam and its kin (Krizhevsky, 2014,
    arXiv 1404.5997). Raises RecurringError on an unknown rule or sizes and rates that are not positive and finite.
    """
    if rule not in list(RULES):
        raise RecurringError(f"unknown learning-rate rule {rule!r}; known: {', '.join(RULES)}")
    rate = positive("learning_rate", learning_rate, "0.1")
    ratio = whole("batch_size", batch_size, least=1) / whole("default", default, least=1)
    return rate * RULES[rule](ratio)
