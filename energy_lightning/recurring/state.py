"""What a recurring job has saved so far (floor 1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from energy_lightning.recurring.runs import CostRule, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """What recurrences cost, against as many runs with the default batch size.

    A recurrence is over when a run reaches the target; runs that missed it count with the next that does. Energy over
    all GPUs.

    Attributes:
        num_recurrences: runs that reached the target.
        energy_j, time_s, cost_j: of all finished runs together, up to the last that reached the target; energy None
            where that of one which reached it was not measured. Those that missed it (out of memory, say) count with
            the energy that is known of them.
        default_energy_j, default_time_s, default_cost_j: the mean run of the default that reached the target, so many
            times.
        saved_cost_j: (num_recurrences,) saved so far after each recurrence, negative while exploring has not paid.
    """

    num_recurrences: int
    energy_j: float | None
    time_s: float
    cost_j: float
    default_energy_j: float | None
    default_time_s: float
    default_cost_j: float
    saved_cost_j: tuple[float, ...]


def savings(runs: Iterable[Run], default: int, cost: CostRule) -> Savings | None:
    """Of finished runs in the order they reported; None where no run of the default has reached the target yet."""
    done = [run for run in runs if cost.of(run) is not None]
    figures = np.array([(run.energy_j or 0.0, run.time_s, cost.of(run)) for run in done], dtype=float).reshape(-1, 3)
    reached = np.array([run.reached_target for run in done], dtype=bool)
    usual = figures[reached & np.array([run.batch_size == default for run in done], dtype=bool)]
    if not usual.size:
        return None
    spent, ends = figures.cumsum(axis=0), np.flatnonzero(reached)
    measured = all(run.energy_j is not None for run in done if run.reached_target)
    mean, total = usual.mean(axis=0), spent[ends[-1]]
    saved = [float(number * mean[2] - spent[end, 2]) for number, end in enumerate(ends, start=1)]
    expected = mean * len(ends)
    return Savings(
        num_recurrences=len(ends),
        energy_j=float(total[0]) if measured else None,
        time_s=float(total[1]),
        cost_j=float(total[2]),
        default_energy_j=float(expected[0]) if measured else None,
        default_time_s=float(expected[1]),
        default_cost_j=float(expected[2]),
        saved_cost_j=tuple(saved),
    )
