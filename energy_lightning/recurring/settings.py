"""The settings of a recurring job, checked (floor 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from energy_lightning.recurring import learned, published
from energy_lightning.recurring.runs import CostRule, RecurringError

POLICIES = {"learned": learned, "published": published}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """See BatchSizeOptimizer. `batch_sizes` ascending. Raises RecurringError for what cannot be."""

    batch_sizes: tuple[int, ...]
    default: int
    max_power_w: float
    eta: float = 0.5
    beta: float = 2.0
    policy: str = "learned"
    window: int | None = None
    lease_s: float = 6 * 3600.0

    def __post_init__(self) -> None:
        CostRule(eta=self.eta, max_power_w=self.max_power_w)
        if self.default not in self.batch_sizes:
            raise RecurringError(
                f"default {self.default} is none of the batch sizes {list(self.batch_sizes)}: add it, or choose one"
            )
        if not 1.0 < self.beta < math.inf:
            raise RecurringError(
                f"beta must be more than 1 and finite, got {self.beta}: 2.0 stops at twice the least cost"
            )
        if self.policy not in POLICIES:
            raise RecurringError(f"unknown policy {self.policy!r}; known: {', '.join(POLICIES)}")
        too_few = self.window is not None and self.window < len(self.batch_sizes)
        if too_few or not 0.0 < self.lease_s < math.inf:
            raise RecurringError(
                f"window must hold a run of each of {len(self.batch_sizes)} batch sizes and lease_s be positive, "
                f"got window={self.window}, lease_s={self.lease_s}"
            )

    @classmethod
    def parse(cls, batch_sizes: Sequence[int], **values: Any) -> JobSettings:
        """Sizes in any order, two or more different ones."""
        sizes = tuple(sorted(set(batch_sizes)))
        if len(sizes) < 2 or len(sizes) != len(batch_sizes) or sizes[0] < 1 or any(int(one) != one for one in sizes):
            raise RecurringError(f"need two or more different positive batch sizes, got {list(batch_sizes)}")
        return cls(batch_sizes=tuple(int(one) for one in sizes), **values)

    def with_max_power(self, max_power_w: float) -> JobSettings:
        """The same with another power limit."""
        return replace(self, max_power_w=max_power_w)

    @property
    def cost(self) -> CostRule:
        """What a run costs."""
        return CostRule(eta=self.eta, max_power_w=self.max_power_w)
