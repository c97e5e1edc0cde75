"""Zeus's policy for recurring jobs as published (floor 1): two rounds of pruning, then Gaussian Thompson sampling.

Source: You, Chung, Chowdhury, "Zeus", NSDI 2023, sections 4.3 and 4.4. A pruning round tries the default, walks to
smaller sizes until one misses the target, then to larger ones likewise; those that reached it go into the next
round, which starts from the cheapest. A size whose runs die (View.resting) ends a walk as one that missed the target,
until it is tried again. Then each arm's mean reward (-cost) has a flat prior and the variance of its own
rewards. A sliding window concerns these rewards, not the pruning.
"""

from __future__ import annotations

import numpy as np

from energy_lightning.recurring.runs import View

PRUNING_ROUNDS = 2


def suggest(view: View, rng: np.random.Generator) -> int:
    """Index of the arm to run next. Jobs started while a pruning trial runs take the best arm known."""
    arms, start = list(range(len(view.batch_sizes))), view.default
    for round_index in range(PRUNING_ROUNDS):
        survivors, next_arm = _pruning_round(view, arms, start, round_index)
        if next_arm is not None:
            return next_arm if next_arm not in view.running else _cheapest(view, survivors or arms, view.default)
        if not survivors:
            return view.default
        arms, start = survivors, _cheapest(view, survivors, view.default)
    return _thompson(view, arms, rng)


def means(view: View) -> tuple[np.ndarray, np.ndarray]:
    """(arms,) mean cost in J and its standard error, NaN where unknown."""
    mean, error = (np.full(len(view.batch_sizes), np.nan) for _ in range(2))
    for arm in range(len(view.batch_sizes)):
        costs = [outcome.cost for outcome in view.recent().of(arm) or view.of(arm)]
        if any(outcome.reached for outcome in view.of(arm)):
            mean[arm], error[arm] = np.mean(costs), np.std(costs) / np.sqrt(len(costs))
    return mean, error


def _pruning_round(view: View, arms: list[int], start: int, index: int) -> tuple[list[int], int | None]:
    """Arms that reached the target in this round so far, and the arm to try next (None: the round is over)."""
    place = arms.index(start)
    survivors: list[int] = []
    for walk in (arms[place::-1], arms[place + 1 :]):
        for arm in walk:
            done = view.of(arm)
            if len(done) <= index:
                if arm in view.resting and arm != start:
                    break
                return sorted(survivors), arm
            if not done[index].reached:
                break
            survivors.append(arm)
    return sorted(survivors), None


def _cheapest(view: View, arms: list[int], default: int) -> int:
    costs = {arm: [run.cost for run in view.of(arm) if run.reached] for arm in arms}
    return min((arm for arm in arms if costs[arm]), key=lambda arm: min(costs[arm]), default=default)


def _thompson(view: View, arms: list[int], rng: np.random.Generator) -> int:
    recent = view.recent()
    costs = [np.array([run.cost for run in recent.of(arm) or view.of(arm)]) for arm in arms]
    drawn = [rng.normal(cost.mean(), cost.std() / np.sqrt(len(cost))) for cost in costs]
    return arms[int(np.argmin(drawn))]
