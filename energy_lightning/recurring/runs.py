"""What a recurring job remembers of its runs, and what a run cost (floor 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from energy_lightning.recurring.errors import RecurringError, StoreError, number

_MOST_J = 1e100  # what is more would make sums of squares overflow
MOST_WHOLE = 2**53  # SQLite and floats hold it exactly
UNKNOWN_POWER_W = 1.0  # as max_power_w: the limits of the GPUs together are not known (yet); no GPU has so low a one


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of the job. Energy over all GPUs of the job; None while it runs, and where it was not measured.

    `power_limit_w`: of one GPU, the one that the run settled on; None: it was left as it was, or is not known.
    `state` is "running", "done" or "dead" (its lease ran out before it reported). `num_evaluations`: how often the
    target was looked at during the run: validations, or epochs where there are none; None: not known. `lease_end_s`: of
    one that runs, the time (as time.time() tells it) from which on it is taken for dead, unless it is heard of before.
    """

    run_id: int
    batch_size: int
    state: str
    reached_target: bool = False
    energy_j: float | None = None
    time_s: float | None = None
    power_limit_w: float | None = None
    num_evaluations: int | None = None
    lease_end_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """What is believed of one batch size: mean cost in J with its standard deviation (NaN unknown), and its runs."""

    batch_size: int
    cost_j: float
    cost_sd_j: float
    num_runs: int
    num_reached: int
    num_running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRule:
    """Zeus's cost in J: eta x energy + (1 - eta) x max_power_w x time (You et al., NSDI 2023).

    `max_power_w` is the power limit of all GPUs of the job together, as energy is theirs together.
    """

    eta: float
    max_power_w: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "eta", number("eta", self.eta, "0.5"))
        object.__setattr__(self, "max_power_w", number("max_power_w", self.max_power_w, "250.0 (W)"))
        if not 0.0 <= self.eta <= 1.0:
            raise RecurringError(f"eta weighs energy against time and must be in [0, 1], got {self.eta}")
        if not 0.0 < self.max_power_w < math.inf:
            raise RecurringError(f"max_power_w must be positive and finite, got {self.max_power_w}: give GPUs x limit")

    @property
    def weights(self) -> tuple[float, float]:
        """Of energy in J, and of time in s."""
        return self.eta, (1.0 - self.eta) * self.max_power_w

    def __call__(self, energy_j: float, time_s: float) -> float:
        """Cost in J; raises RecurringError where energy or time is no number, negative, NaN, infinite or absurd."""
        energy_j, time_s = number("energy_j", energy_j, "1500.0 (J)"), number("time_s", time_s, "60.0 (s)")
        if not (0.0 <= energy_j < math.inf and 0.0 < time_s < math.inf):
            raise RecurringError(f"need 0 <= energy_j and 0 < time_s, both finite, got {energy_j} J and {time_s} s")
        of_energy, of_time = self.weights
        cost = of_energy * energy_j + of_time * time_s
        if not cost < _MOST_J:
            raise RecurringError(f"a run of {energy_j:g} J and {time_s:g} s costs {cost:g} J: no run does, check units")
        return cost

    def of(self, run: Run) -> float | None:
        """Cost in J of a finished run; None of one that runs, or whose energy counts and was not measured.

        One that missed the target costs as much as is known: the policies charge it with the run that must follow.
        StoreError for figures that no report has.
        """
        if run.time_s is None or (run.energy_j is None and run.reached_target and self.eta > 0.0):
            return None
        try:
            return self(0.0 if run.energy_j is None else run.energy_j, run.time_s)
        except RecurringError as error:
            raise StoreError(f"run {run.run_id} in the store: {error}; repair or move the file") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished run as the policies see it: `arm` is an index into the sorted batch sizes, `cost` in J.

    `num_evaluations` as in Run: a run that reached the target did so at the last of them.
    """

    arm: int
    cost: float
    reached: bool
    power_limit_w: float | None = None
    num_evaluations: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All a policy may look at: sorted batch sizes, the default's index, finished runs in order, arms now running.

    Of those that run some are `resting`: their runs died lately, and nothing new is to be learnt there now. Costs older
    than the last `window` finished runs are not believed any more.
    """

    batch_sizes: tuple[int, ...]
    default: int
    outcomes: Sequence[Outcome]
    running: frozenset[int] = frozenset()
    resting: frozenset[int] = frozenset()
    power_limit_w: float | None = None
    window: int | None = None

    def recent(self) -> View:
        """The same with only the last `window` finished runs."""
        return self if self.window is None else replace(self, outcomes=self.outcomes[-self.window :], window=None)

    def of(self, arm: int) -> list[Outcome]:
        """Finished runs of one arm, oldest first."""
        return [outcome for outcome in self.outcomes if outcome.arm == arm]

    def least_cost(self) -> float | None:
        """Least cost in J of a recent run that reached the target, None where there is none."""
        return min((outcome.cost for outcome in self.recent().outcomes if outcome.reached), default=None)

    def awake(self) -> View:
        """The same as if the arms that rest had never run to an end."""
        return replace(self, outcomes=[outcome for outcome in self.outcomes if outcome.arm not in self.resting])

    def never_reached(self) -> bool:
        """Whether every arm has been tried and none has reached the target."""
        tried = {outcome.arm for outcome in self.outcomes}
        return len(tried) == len(self.batch_sizes) and not any(outcome.reached for outcome in self.outcomes)
