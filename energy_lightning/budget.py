"""What a user is willing to give for less energy (floor 0); import it from `energy_lightning.types`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from energy_lightning.errors import BudgetError

BudgetKind = Literal["max_throughput", "max_slowdown", "deadline", "energy_budget", "min_energy"]


@dataclass(frozen=True, slots=True)
class Budget:
    """What the user is willing to give.

    kinds and their `value`:
        max_throughput   none: the fastest plan (the least energy among equals).
        max_slowdown     fraction >= 0 over plain execution at maximum frequency (0.05: 5%): least energy within.
        deadline         s per iteration: least energy within.
        energy_budget    J per iteration per GPU: fastest within.
        min_energy       none: the least energy.
    """

    kind: BudgetKind = "max_slowdown"
    value: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(BudgetKind):
            raise BudgetError(f"unknown budget {self.kind!r}; known: {', '.join(get_args(BudgetKind))}")
        if self.kind in ("max_throughput", "min_energy"):
            if self.value is not None:
                raise BudgetError(f"budget {self.kind} takes no value, got {self.value!r}")
            return
        value = 0.0 if self.kind == "max_slowdown" and self.value is None else self.value
        unit = {"max_slowdown": "a fraction", "deadline": "seconds per iteration"}.get(
            self.kind, "joules per iteration and GPU"
        )
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise BudgetError(f"budget {self.kind} needs a number ({unit}), got {value!r}")
        bound = ">= 0" if self.kind == "max_slowdown" else "> 0"
        if not (math.isfinite(value) and (value > 0 or (self.kind == "max_slowdown" and value == 0))):
            raise BudgetError(f"budget {self.kind} needs a finite number {bound} ({unit}), got {value!r}")
        object.__setattr__(self, "value", float(value))

    @classmethod
    def parse(cls, budget: Budget | str | Mapping[str, Any] | None) -> Budget:
        """From a Budget, a name ("min_energy"), a mapping ({"max_slowdown": 0.05}), or None (the default).

        A string may carry its value after "=": "max_slowdown=0.05".
        """
        if budget is None:
            return cls()
        if isinstance(budget, Budget):
            return budget
        if isinstance(budget, str):
            kind, _, text = budget.partition("=")
            try:
                value = float(text) if text else None
            except ValueError as error:
                raise BudgetError(f"budget {budget!r}: {text!r} is not a number") from error
            return cls(cast("BudgetKind", kind.strip()), value)  # checked in __post_init__
        if isinstance(budget, Mapping) and len(budget) == 1:
            ((kind, value),) = budget.items()
            return cls(cast("BudgetKind", kind), value)
        raise BudgetError(f"cannot read a budget from {budget!r}; write e.g. 'min_energy' or {{'max_slowdown': 0.05}}")

    def __str__(self) -> str:
        return self.kind if self.value is None else f"{self.kind}={self.value:g}"
