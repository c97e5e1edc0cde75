"""When a run of a recurring job is done."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from energy_lightning.recurring import RecurringError
from energy_lightning.recurring.errors import number


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The value of a metric at which a run is done."""

    monitor: str
    value: float
    mode: Literal["min", "max"]

    def __post_init__(self) -> None:
        if not isinstance(self.monitor, str) or not self.monitor:
            raise RecurringError(f"monitor must be the name of a logged metric, e.g. 'val_acc', got {self.monitor!r}")
        object.__setattr__(self, "value", number("target", self.value, "0.84"))
        if self.mode not in ("min", "max") or not math.isfinite(self.value):
            raise RecurringError(f"need mode 'min' or 'max' and a finite target, got {self.mode!r} and {self.value}")

    def reached(self, metrics: Mapping[str, Any]) -> bool:
        """Whether the metric is there; False while it was not logged."""
        metric = metrics.get(self.monitor)
        if metric is None:
            return False
        return float(metric) >= self.value if self.mode == "max" else float(metric) <= self.value

    def missing(self, metrics: Mapping[str, Any]) -> str | None:
        """In words, that the metric was not logged; None where it was."""
        if self.monitor in metrics:
            return None
        logged = ", ".join(sorted(str(name) for name in metrics)) or "none"
        return f"it never logged {self.monitor!r} (monitor); logged: {logged}"

    def doubt(self, metrics: Mapping[str, Any], num_evaluations: int | None) -> str | None:
        """In words, what is strange about a run that ends so: a metric of NaN, a target reached at the first look."""
        value = float(metrics.get(self.monitor, math.inf))
        if math.isnan(value):
            return (
                f"{self.monitor!r} was nan when the run ended, which is no target reached: see whether the training "
                "diverges at this batch size (learning rate, scaling), or the metric is wrong"
            )
        if num_evaluations != 1 or not self.reached(metrics):
            return None
        return (
            f"the first look at {self.monitor!r} ({value:.4g}) found the target reached "
            f"({self.value:g}, mode={self.mode!r}): see that both are right. If they are, look more often (e.g. "
            "val_check_interval), or what a run needs is hardly known"
        )
