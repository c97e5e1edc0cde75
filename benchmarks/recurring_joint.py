"""Batch size and power limit chosen jointly: ours against Zeus's own classes, replayed from published traces.

    python benchmarks/recurring_joint.py [--data DIR] [--seeds 20] [--recurrences 100]

As benchmarks/recurring.py, but nobody knows a batch size's cheapest power limit beforehand: the first run of a size
spends its first epoch on a sweep (each limit an equal share of it), later runs take the limit that was found. "Zeus":
PruningGTSBatchSizeOptimizer and JITPowerLimitOptimizer of zeus._legacy, unmodified, in the same replay with the same
draws. "ours": the learned policy over such runs, as JointOptimizer plays it. "ours, two steps": the limit of the
default batch size is kept for all sizes. Regret: cost less that of the best pair of size and limit in the same
recurrence, in units of its mean cost; "saved": median share of the default's cost (its batch size, highest limit).
"""

from __future__ import annotations

import argparse
import math
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from recurring import BETA, ETA, JOBS, MAX_EPOCHS, MAX_TRIES, Job, draws_of, load
from zeus._legacy.job import Job as ZeusJob
from zeus._legacy.policy.optimizer import JITPowerLimitOptimizer, PruningGTSBatchSizeOptimizer

from energy_lightning.recurring import CostRule, PowerObjective, choose_power_limit, learned
from energy_lightning.recurring.runs import Outcome, View


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Cost in J of an epoch of each batch size: limit in W -> cost; and the limit best for the default size."""

    epoch_cost: list[dict[float, float]]
    best_of_default_w: float

    def cheapest(self, arm: int) -> float:
        """The best limit of a size, as a sweep finds it."""
        return min(self.epoch_cost[arm], key=lambda limit_w: self.epoch_cost[arm][limit_w])


def limits_of(data: Path, gpu: str, dataset: str, optimizer: str, job: Job) -> Limits:
    """Epoch costs by limit, and choose_power_limit's choice for the default size."""
    power = pd.read_csv(data / "zeus_nsdi_power.csv")
    power = power[(power.gpu == gpu) & (power.dataset == dataset) & (power.optimizer == optimizer)]
    highest_w = float(power.power_limit_w.max())
    rule = CostRule(eta=ETA, max_power_w=highest_w)
    costs, sweeps = [], []
    for size in job.batch_sizes:
        rows = power[power.batch_size == size]
        sweep = list(zip(rows.power_limit_w, rows.time_per_epoch_s, rows.energy_per_epoch_j, strict=True))
        sweeps.append(sweep)
        costs.append({float(limit_w): rule(energy_j, time_s) for limit_w, time_s, energy_j in sweep})
    goal = PowerObjective(goal="cost", eta=ETA, max_power_w=highest_w)
    best = choose_power_limit(sweeps[job.default], goal, noise=0.0)
    return Limits(epoch_cost=costs, best_of_default_w=best.power_limit_w)


def run_of(arm: int, epochs: float, first: float, later: float, least: float | None) -> Outcome:
    """A run whose first epoch costs `first` and whose others `later`, stopped at the end of the one that passes."""
    most = MAX_EPOCHS
    if least is not None:
        most = min(MAX_EPOCHS, max(1.0, math.floor((BETA * least - first) / later) + 2))
    count = int(min(epochs, most))
    return Outcome(arm=arm, cost=first + (count - 1) * later, reached=epochs <= most, num_evaluations=count)


class Ours:
    """The learned policy; `fixed_w`: one limit for all sizes, None: each size's own."""

    def __init__(self, job: Job, seed: int, limits: Limits, fixed_w: float | None) -> None:
        self.job, self.limits, self.fixed_w = job, limits, fixed_w
        self.rng, self.outcomes = np.random.default_rng([seed, 1]), list[Outcome]()

    def suggest(self) -> tuple[int, float | None]:
        """Arm, and its limit if that is known."""
        view = View(batch_sizes=self.job.batch_sizes, default=self.job.default, outcomes=self.outcomes)
        arm = learned.suggest(view, self.rng)
        swept = {outcome.arm for outcome in self.outcomes}
        if self.fixed_w is not None:
            return arm, (self.fixed_w if swept else None)
        return arm, (self.limits.cheapest(arm) if arm in swept else None)

    def observe(self, outcome: Outcome) -> None:
        """A run is over."""
        self.outcomes.append(outcome)


class Zeus:
    """The classes of Zeus's publication."""

    def __init__(self, job: Job, seed: int, limits: Limits) -> None:
        self.sizes, self.limits = job.batch_sizes, limits
        self.zeus_job = ZeusJob("data", "net", "opt", 1.0, 1000, default_bs=job.batch_sizes[job.default])
        self.batch = PruningGTSBatchSizeOptimizer(seed=seed, verbose=False)
        self.batch.register_job(self.zeus_job, list(job.batch_sizes))
        self.power = JITPowerLimitOptimizer(verbose=False)

    def suggest(self) -> tuple[int, float | None]:
        """Arm, and its limit if that is known."""
        size = self.batch.predict(self.zeus_job)
        limit_w, arm = self.power.predict(self.zeus_job, size), self.sizes.index(size)
        if limit_w is None:
            for tried_w, cost in self.limits.epoch_cost[arm].items():
                self.power.observe(self.zeus_job, size, tried_w, cost)
        return arm, limit_w

    def observe(self, outcome: Outcome) -> None:
        """A run is over."""
        self.batch.observe(self.zeus_job, self.sizes[outcome.arm], outcome.cost, outcome.reached)


def replay(job: Job, limits: Limits, policy: Ours | Zeus, draws: np.ndarray, seed: int) -> np.ndarray:
    """(recurrences,) cost in J, sweeps and missed runs included."""
    rng, spent, least = np.random.default_rng([seed, 2]), [], None
    for draw in draws:
        cost = 0.0
        for attempt in range(MAX_TRIES):
            arm, limit_w = policy.suggest()
            epochs = job.epochs[arm][draw[arm]] if attempt == 0 else rng.choice(job.epochs[arm])
            costs = limits.epoch_cost[arm]
            fixed = isinstance(policy, Ours) and policy.fixed_w is not None
            later = costs[limits.best_of_default_w if fixed else limits.cheapest(arm)]
            first = later if limit_w is not None else float(np.mean(list(costs.values())))
            outcome = run_of(arm, epochs, first, later, least)
            policy.observe(outcome)
            cost += outcome.cost
            if outcome.reached:
                least = outcome.cost if least is None else min(least, outcome.cost)
                break
        spent.append(cost)
    return np.array(spent)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--recurrences", type=int, default=100)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="zeus")  # arms whose costs do not vary
    print("| job | method | regret, median (range) | of Zeus, % | saved, % |")
    print("| --- | --- | ---: | ---: | ---: |")
    for gpu in ("V100", "A40"):
        for dataset, optimizer, target, default in JOBS:
            job = load(arguments.data, gpu, dataset, optimizer, target, default)
            limits = limits_of(arguments.data, gpu, dataset, optimizer, job)
            print("\n".join(compare(job, limits, arguments.seeds, arguments.recurrences)), flush=True)


def compare(job: Job, limits: Limits, seeds: int, recurrences: int) -> list[str]:
    """One Markdown row a method."""
    mean, best = job.mean_cost(), int(np.argmin(job.mean_cost()))
    regret: dict[str, list[float]] = {}
    saved: dict[str, list[float]] = {}
    for seed in range(seeds):
        draws = draws_of(job, seed, recurrences)
        optimum = (job.epoch_cost[best] * job.epochs[best][draws[:, best]]).sum()
        default = (job.default_epoch_cost * job.epochs[job.default][draws[:, job.default]]).sum()
        policies: dict[str, Ours | Zeus] = {
            "Zeus": Zeus(job, seed, limits),
            "ours": Ours(job, seed, limits, None),
            "ours, two steps": Ours(job, seed, limits, limits.best_of_default_w),
        }
        totals = {name: float(replay(job, limits, policy, draws, seed).sum()) for name, policy in policies.items()}
        for name, total in {"default": float(default), **totals}.items():
            regret.setdefault(name, []).append((total - optimum) / mean[best])
            saved.setdefault(name, []).append(100.0 * (1.0 - total / default))
    rows = []
    for name, own in regret.items():
        share = f"{100 * np.median(own) / np.median(regret['Zeus']):.0f}"
        spread = f"{np.median(own):.2f} ({min(own):.2f} to {max(own):.2f})"
        rows.append(f"| {job.name} | {name} | {spread} | {share} | {np.median(saved[name]):.1f} |")
    return rows


if __name__ == "__main__":
    main()
