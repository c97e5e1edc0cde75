"""What 100 recurrences can tell at all about the best batch size, in the replay of benchmarks/recurring.py.

    python benchmarks/recurring_bound.py [--data DIR] [--trials 2000] [--recurrences 100]

Nobody walks, prunes or minds regret here, and all are told what no policy knows:
"two sizes": told which are the best size and the cheapest of those more than 2% dearer; all runs go to these two, in
the split that serves best, and the lesser mean is taken. What treats sizes alike and knows nothing of their curve
cannot be expected to do better.
"halving": told which sizes cost within 15% of the best; sequential halving (Karnin, Koren and Somekh, ICML 2013), a
standard method for the best of several with a fixed number of runs, on these alone. "its regret": what that costs, in
units of the best size's mean cost. Both: % of trials that end within 2% of the least mean cost.
"runs needed": that no method can do with fewer on average, however it chooses them, and be right within 2% in 95% of
cases in every job whose sizes each take one of two neighbouring numbers of epochs, by chances that are not known (the
bound of Garivier and Kaufmann, COLT 2016; with several right answers, of Degenne and Koolen, NeurIPS 2019). "-": sizes
take other numbers too. Who is right with fewer runs has believed in something besides them, as in a smooth curve.
"unlucky": % of trials in which a job that runs every size twice, and from then on the best size other than the default,
passes later on what it cost more than the default's configuration within these first 2 x sizes recurrences.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from recurring import HELD_OUT, MAX_EPOCHS, Job, draws_of, later_is_more, load
from scipy.optimize import linprog
from scipy.special import rel_entr

NEAR, TOLERANCE = 1.15, 1.02
_FAR = 1.25  # sizes that are dearer are told apart by a run or two


def costs_of(job: Job, arm: int, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Runs of a size, none stopped, in units of the best size's mean cost."""
    drawn: np.ndarray = rng.choice(np.minimum(job.epochs[arm], MAX_EPOCHS), shape)
    return drawn * job.epoch_cost[arm] / job.mean_cost().min()


def two_sizes(job: Job, trials: int, recurrences: int, rng: np.random.Generator) -> float:
    """Share of trials, see above."""
    mean = job.mean_cost() / job.mean_cost().min()
    best, rival = int(np.argmin(mean)), int(np.argmin(np.where(mean > TOLERANCE, mean, np.inf)))
    splits = [recurrences * tenths // 10 for tenths in range(1, 10)]

    def share(runs: int) -> float:
        own = costs_of(job, best, (trials, runs), rng).mean(axis=1)
        other = costs_of(job, rival, (trials, recurrences - runs), rng).mean(axis=1)
        return float((own < other).mean() + 0.5 * (own == other).mean())

    return max(share(runs) for runs in splits)


def halving(job: Job, trials: int, recurrences: int, rng: np.random.Generator) -> tuple[float, float]:
    """Share of trials and mean regret, see above."""
    mean = job.mean_cost() / job.mean_cost().min()
    near = np.flatnonzero(mean <= NEAR)
    num_rounds = max(1, math.ceil(math.log2(len(near))))
    hits, regret = 0, 0.0
    for _ in range(trials):
        alive, seen = list(near), {arm: np.empty(0) for arm in near}
        for _ in range(num_rounds):
            runs = max(1, recurrences // (len(alive) * num_rounds))
            for arm in alive:
                seen[arm] = np.concatenate([seen[arm], costs_of(job, int(arm), (runs,), rng)])
                regret += runs * (mean[arm] - 1.0)
            alive = sorted(rng.permutation(alive), key=lambda arm: seen[arm].mean())[: max(1, len(alive) // 2)]
        hits += int(mean[alive[0]] <= TOLERANCE)
    return hits / trials, regret / trials


def runs_needed(job: Job, wrong: float = 0.05) -> float:
    """See above. NaN where it is not known."""
    mean = job.mean_cost() / job.mean_cost().min()
    near = np.flatnonzero(mean <= _FAR)
    fewest = np.array([job.epochs[arm].min() for arm in near])
    if any(set(job.epochs[arm] - least) - {0.0, 1.0} for arm, least in zip(near, fewest, strict=True)):
        return math.nan
    cost = job.epoch_cost[near] / job.mean_cost().min()
    chance = mean[near] / cost - fewest  # of the epoch more
    rates = [_evidence_rate(arm, cost, fewest, chance) for arm in np.flatnonzero(mean[near] <= TOLERANCE)]
    return float(_information(1.0 - wrong, np.array(wrong)) / max(rates))


def _evidence_rate(
    arm: int, cost: NDArray[np.float64], fewest: NDArray[np.float64], chance: NDArray[np.float64]
) -> float:
    """Most information a run, by the best shares of the arms in the runs, against all jobs in which `arm` is wrong.

    In the nearest of these it and one rival have other chances. A linear program over shares and information.
    """
    own = np.linspace(chance[arm], 1.0, 401)
    rows = []
    for rival in set(range(len(cost))) - {arm}:
        rivals = np.minimum(cost[arm] * (fewest[arm] + own) / (TOLERANCE * cost[rival]) - fewest[rival], chance[rival])
        possible = rivals >= 0.0
        row = np.zeros((int(possible.sum()), len(cost) + 1))
        row[:, arm] = -_information(chance[arm], own[possible])
        row[:, rival] = -_information(chance[rival], rivals[possible])
        rows.append(row)
    bounds = np.vstack(rows)
    bounds[:, -1] = 1.0
    shares = np.ones((1, len(cost) + 1))
    shares[0, -1] = 0.0
    objective = np.zeros(len(cost) + 1)
    objective[-1] = -1.0
    found = linprog(objective, A_ub=bounds, b_ub=np.zeros(len(bounds)), A_eq=shares, b_eq=[1.0])
    return float(-found.fun)


def _information(chance: float, other: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,) Kullback-Leibler divergence of a coin of `chance` from (n,) others."""
    other = np.clip(other, 1e-12, 1.0 - 1e-12)
    divergence: NDArray[np.float64] = rel_entr(chance, other) + rel_entr(1.0 - chance, 1.0 - other)
    return divergence


def unlucky(job: Job, trials: int, recurrences: int) -> float:
    """Share of trials, see above."""
    mean, sizes = job.mean_cost(), len(job.batch_sizes)
    other = int(np.argmin(np.where(np.arange(sizes) == job.default, np.inf, mean)))
    arms = np.array([*range(sizes), *range(sizes), *[other] * (recurrences - 2 * sizes)])
    passed = 0
    for seed in range(trials):
        draws = draws_of(job, seed, recurrences)
        epochs = np.array([job.epochs[arm][draw[arm]] for arm, draw in zip(arms, draws, strict=True)])
        usual = job.default_epoch_cost * np.minimum(job.epochs[job.default][draws[:, job.default]], MAX_EPOCHS)
        more = job.epoch_cost[arms] * np.minimum(epochs, MAX_EPOCHS) - usual
        passed += later_is_more(more.cumsum() / mean.min(), 2 * sizes)
    return passed / trials


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--recurrences", type=int, default=100)
    arguments = parser.parse_args()
    print("| job | two sizes, % | halving, % | its regret | runs needed | unlucky, % |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for where in HELD_OUT:
        job, rng = load(arguments.data, *where), np.random.default_rng(0)
        most = two_sizes(job, arguments.trials, arguments.recurrences, rng)
        share, regret = halving(job, arguments.trials, arguments.recurrences, rng)
        luck = unlucky(job, arguments.trials, arguments.recurrences)
        needed = runs_needed(job)
        runs = "-" if math.isnan(needed) else f"{needed:.0f}"
        columns = f"{100 * most:.1f} | {100 * share:.1f} | {regret:.2f} | {runs} | {100 * luck:.1f}"
        print(f"| {job.name} | {columns} |", flush=True)


if __name__ == "__main__":
    main()
