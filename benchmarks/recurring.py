"""Batch sizes of recurring jobs, replayed from published traces: our policy, the published one, grids, the default.

    python benchmarks/recurring.py [--seeds 20] [--first-seed 0] [--recurrences 100] [--tuned-on]
        [--workers 2] [--data DIR]

DIR/zeus_nsdi_train.csv holds the epochs to the target of several runs a batch size, DIR/zeus_nsdi_power.csv time and
power of an epoch by batch size and power limit. A run draws one of its size's epochs and costs 0.5 x energy + 0.5 x
highest limit x time; it is stopped at the end of the epoch that passes twice the least cost so far. A recurrence ends
when the target is reached: what was spent before counts. All see the same draws of a recurrence's first run.
Policies and grid search run each batch size at its cheapest power limit, as a sweep finds it; "default" runs the
authors' batch size at the highest limit; "full grid" tries every pair of size and limit once.
Regret: cost less that of the best size (by mean) in the same recurrence, in units of the best size's mean cost.
"within 2%": seeds whose believed best size at the end has a mean cost within 2% of the least. "after": most that the
recurrences past 2 x sizes together cost more than the default's in any seed, same units (negative: less in all seeds).
"peak": most that the recurrences so far together ever cost more than the default's, within the first 2 x sizes, in any
seed; "beyond": seeds in which they cost yet more than that later on, and in how many the mean costs of the sizes chosen
add up to more (the others were unlucky, not badly chosen). What can be reached at all: recurring_bound.py.

The policy and its prior were chosen on other jobs: those of --tuned-on (other targets of the same training runs, so not
independent of the nine shown without it) with seeds of their own, and made-up ones; how much is explored, on the nine
themselves: see RESULTS.md. Batch sizes and limits jointly: recurring_joint.py.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from energy_lightning.recurring import PowerObjective, choose_power_limit, learned, published
from energy_lightning.recurring.runs import CostRule, Outcome, View

ETA, BETA, MAX_TRIES, MAX_EPOCHS = 0.5, 2.0, 20, 1000.0
JOBS = [("cifar100", "adadelta", 0.6, 1024), ("squad", "adamw", 84.0, 32), ("librispeech", "adamw", 40.0, 192)]
# What prior and policy were chosen on: other targets of the same runs, replayed with the seeds from 1000 on.
TUNED_ON = [
    ("V100", "cifar100", "adadelta", 0.55, 1024),
    ("V100", "cifar100", "adadelta", 0.4, 1024),
    ("V100", "cifar100", "adadelta", 0.3, 1024),
    ("A40", "cifar100", "adadelta", 0.5, 1024),
    ("V100", "squad", "adamw", 84.5, 32),
    ("V100", "squad", "adamw", 83.5, 32),
    ("A40", "squad", "adamw", 83.0, 32),
    ("A40", "squad", "adamw", 84.5, 32),
    ("V100", "librispeech", "adamw", 45.0, 192),
    ("V100", "librispeech", "adamw", 55.0, 192),
    ("A40", "librispeech", "adamw", 50.0, 192),
    ("A40", "librispeech", "adamw", 45.0, 192),
]
OTHER_TARGETS = [("cifar100", "adadelta", 0.5, 1024), ("squad", "adamw", 83.0, 32), ("librispeech", "adamw", 50.0, 192)]
HELD_OUT = [(gpu, *job) for gpu, jobs in (("V100", JOBS), ("A40", JOBS), ("V100", OTHER_TARGETS)) for job in jobs]
Choose = Callable[[View, np.random.Generator], int]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A replayed job: per batch size the epoch's cost in J at the cheapest limit and the epochs seen (inf: missed)."""

    name: str
    batch_sizes: tuple[int, ...]
    default: int
    epoch_cost: np.ndarray
    epochs: list[np.ndarray]
    default_epoch_cost: float
    pairs: list[tuple[int, float]]

    def mean_cost(self) -> np.ndarray:
        """(sizes,) mean cost in J of a run to the target; a missed target as MAX_EPOCHS."""
        epochs = [np.minimum(seen, MAX_EPOCHS).mean() for seen in self.epochs]
        cost: np.ndarray = self.epoch_cost * np.array(epochs)
        return cost


def load(data: Path, gpu: str, dataset: str, optimizer: str, target: float, default: int) -> Job:
    """The job of these columns; batch sizes that both files know."""
    train = pd.read_csv(data / "zeus_nsdi_train.csv")
    power = pd.read_csv(data / "zeus_nsdi_power.csv")
    train = train[(train.dataset == dataset) & (train.optimizer == optimizer) & (train.target_metric == target)]
    power = power[(power.gpu == gpu) & (power.dataset == dataset) & (power.optimizer == optimizer)]
    sizes = sorted(set(train.batch_size) & set(power.batch_size))
    highest_w = float(power.power_limit_w.max())
    rule = CostRule(eta=ETA, max_power_w=highest_w)
    goal = PowerObjective(goal="cost", eta=ETA, max_power_w=highest_w)
    cheapest, pairs = [], []
    for arm, size in enumerate(sizes):
        rows = power[power.batch_size == size]
        sweep = list(zip(rows.power_limit_w, rows.time_per_epoch_s, rows.energy_per_epoch_j, strict=True))
        best = choose_power_limit(sweep, goal, noise=0.0)
        cheapest.append(rule(best.energy_j, best.time_s))
        pairs += [(arm, rule(energy_j, time_s)) for _, time_s, energy_j in sweep]
    untuned = power[(power.batch_size == default) & (power.power_limit_w == highest_w)].iloc[0]
    reached = train.target_epoch.where(train.reached_target == 1, math.inf)
    return Job(
        name=f"{dataset} {target:g}, {gpu}",
        batch_sizes=tuple(sizes),
        default=sizes.index(default),
        epoch_cost=np.array(cheapest),
        epochs=[reached[train.batch_size == size].to_numpy(float) for size in sizes],
        default_epoch_cost=rule(untuned.energy_per_epoch_j, untuned.time_per_epoch_s),
        pairs=pairs,
    )


def one_run(arm: int, epochs: float, epoch_cost: float, least: float | None) -> Outcome:
    """A run that may be stopped at the end of the epoch that passes BETA x the least cost so far."""
    limit = MAX_EPOCHS if least is None else min(MAX_EPOCHS, math.floor(BETA * least / epoch_cost) + 1)
    count = int(min(epochs, limit))
    return Outcome(arm=arm, cost=count * epoch_cost, reached=epochs <= limit, num_evaluations=count)


def replay(job: Job, choose: Choose, draws: np.ndarray, seed: int) -> tuple[np.ndarray, list[int], View]:
    """(recurrences,) cost in J, arms of the runs that ended them, and what was seen.

    draws: (recurrences, sizes), which epochs a first run takes.
    """
    rng = np.random.default_rng([seed, 1])
    outcomes: list[Outcome] = []
    spent, arms = [], []
    for draw in draws:
        cost = 0.0
        for attempt in range(MAX_TRIES):
            view = View(batch_sizes=job.batch_sizes, default=job.default, outcomes=outcomes)
            arm = choose(view, rng)
            epochs = job.epochs[arm][draw[arm]] if attempt == 0 else rng.choice(job.epochs[arm])
            outcomes.append(one_run(arm, epochs, job.epoch_cost[arm], view.least_cost()))
            cost += outcomes[-1].cost
            if outcomes[-1].reached:
                break
        spent.append(cost)
        arms.append(outcomes[-1].arm)
    return np.array(spent), arms, View(batch_sizes=job.batch_sizes, default=job.default, outcomes=outcomes)


def grid(view: View, _: np.random.Generator) -> int:
    """Every size once, then the cheapest for ever."""
    arms = range(len(view.batch_sizes))
    untried = next((arm for arm in arms if not view.of(arm)), None)
    costs = [min((run.cost for run in view.of(arm) if run.reached), default=math.inf) for arm in arms]
    return int(np.argmin(costs)) if untried is None else untried


def full_grid(job: Job, draws: np.ndarray) -> np.ndarray:
    """(recurrences,) cost in J of trying every pair of size and limit once, then the cheapest for ever."""
    seen: list[Outcome] = []
    spent = np.zeros(len(draws))
    for index, draw in enumerate(draws):
        while True:
            reached = [(run.cost, pair) for pair, run in enumerate(seen) if run.reached]
            pair = len(seen) if len(seen) < len(job.pairs) else min(reached)[1]
            arm, epoch_cost = job.pairs[pair]
            run = one_run(arm, job.epochs[arm][draw[arm]], epoch_cost, min(reached)[0] if reached else None)
            if len(seen) == len(job.pairs):
                run = Outcome(arm=arm, cost=job.epochs[arm][draw[arm]] * epoch_cost, reached=True)  # never stopped
            else:
                seen.append(run)
            spent[index] += run.cost
            if run.reached:
                break
    return spent


def draws_of(job: Job, seed: int, recurrences: int) -> np.ndarray:
    """(recurrences, sizes) index of the epochs that a first run of each size takes."""
    rng = np.random.default_rng(seed)
    return np.column_stack([rng.integers(0, len(seen), recurrences) for seen in job.epochs])


def believed_best(view: View, mean: np.ndarray) -> int:
    """As BatchSizeOptimizer.best: the cheapest in the mean of the sizes that have reached the target."""
    return min({outcome.arm for outcome in view.outcomes if outcome.reached}, key=lambda arm: float(mean[arm]))


def compare(job: Job, seeds: Sequence[int], recurrences: int) -> list[str]:
    """One Markdown row a method."""
    mean = job.mean_cost()
    best = int(np.argmin(mean))
    regret: dict[str, list[float]] = {}
    after: dict[str, list[float]] = {}
    peak: dict[str, list[tuple[float, bool]]] = {}
    start = min(2 * len(job.batch_sizes), recurrences)
    usual = job.default_epoch_cost * mean[job.default] / job.epoch_cost[job.default]
    good: dict[str, int] = {}
    unwise: dict[str, int] = {}
    for seed in seeds:
        draws = draws_of(job, seed, recurrences)
        optimum = job.epoch_cost[best] * job.epochs[best][draws[:, best]]
        default = job.default_epoch_cost * np.minimum(job.epochs[job.default][draws[:, job.default]], MAX_EPOCHS)
        costs = {"default": default, "full grid": full_grid(job, draws)}
        believed: dict[str, int] = {"default": job.default}
        chosen = {"default": np.zeros(recurrences)}
        for name, choose, means in (
            ("grid", grid, None),
            ("published", published.suggest, published.means),
            ("ours", learned.suggest, learned.means),
        ):
            costs[name], arms, view = replay(job, choose, draws, seed)
            chosen[name] = (mean[arms] - usual).cumsum()
            rng = np.random.default_rng(0)
            believed[name] = grid(view, rng) if means is None else believed_best(view, means(view)[0])
        for name, cost in costs.items():
            regret.setdefault(name, []).append(float((cost - optimum).sum() / mean[best]))
            more = (cost - default).cumsum() / mean[best]
            after.setdefault(name, []).append(float(more[-1] - more[start - 1]))
            peak.setdefault(name, []).append((max(0.0, float(more[:start].max())), later_is_more(more, start)))
            if name in believed:
                unwise[name] = unwise.get(name, 0) + int(later_is_more(chosen[name], start))
                good[name] = good.get(name, 0) + int(mean[believed[name]] <= 1.02 * mean[best])
    rows = []
    for name in regret:
        beyond = f"{sum(later for _, later in peak[name])}, {unwise.get(name, '-')}"
        ends = f"{max(after[name]):.2f} | {max(early for early, _ in peak[name]):.2f} | {beyond}"
        rows.append(f"{_row(job, name, regret[name], regret['published'], good.get(name))} | {ends} |")
    return rows


def later_is_more(sums: np.ndarray, start: int) -> bool:
    """Whether running sums ever pass what they had reached before `start` (0 at least)."""
    later = float(sums[start:].max(initial=-math.inf))
    return later > max(0.0, float(sums[:start].max())) + 1e-9


def _row(job: Job, name: str, own: Sequence[float], peer: Sequence[float], good: int | None) -> str:
    share = f"{100 * np.median(own) / np.median(peer):.0f}"
    kept = "-" if good is None else f"{good}/{len(own)}"
    spread = f"{np.median(own):.2f} ({min(own):.2f} to {max(own):.2f})"
    return f"| {job.name} | {name} | {spread} | {share} | {kept}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=None, help="default: 0, and 1000 with --tuned-on")
    parser.add_argument("--recurrences", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--tuned-on", action="store_true", help="the jobs that the policy was chosen on")
    arguments = parser.parse_args()
    print("| job | method | regret, median (range) | of published, % | within 2% | after | peak | beyond |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    first, chosen = (1000, TUNED_ON) if arguments.tuned_on else (0, HELD_OUT)
    jobs = [load(arguments.data, *job) for job in chosen]
    begin = first if arguments.first_seed is None else arguments.first_seed
    seeds = range(begin, begin + arguments.seeds)
    with ProcessPoolExecutor(arguments.workers) as pool:
        for rows in pool.map(partial(compare, seeds=seeds, recurrences=arguments.recurrences), jobs):
            print("\n".join(rows), flush=True)


if __name__ == "__main__":
    main()
