"""Beliefs from runs that tell how many evaluations they took (floor 1): a run costs so many times one evaluation.

Cost is split as in Zeus (You et al., NSDI 2023, section 4.1), where a power limit changes one factor only: the cost up
to one evaluation (validation, epoch) is nearly exact after one run, the number of them is a small whole one and often
the same in every run of a size. Taken for a continuous cost this looks like certainty, or like a jump by a quarter; as
a quantity rounded up (`rounded`) it says how near to the edge a size is, and its neighbours say it too. So equal runs
of one size are no proof that another's are equal, and a rare extra evaluation moves a belief by what it is worth.
A run whose number is not known, or counts evaluations that have been made rarer or finer since, tells what it cost.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from energy_lightning.recurring.beliefs import Beliefs, Curve, Floats, Pooled, limits_of, octaves_of, strays
from energy_lightning.recurring.number_curve import NumberPrior, beliefs_of_number
from energy_lightning.recurring.rounded import Seen
from energy_lightning.recurring.runs import View

_LEAST_J = float(np.finfo(float).tiny)
_MOST = 36.0  # log of more evaluations than any run takes
_RARER = float(np.log(1.6))  # evaluations that cost so much more, in runs that do not, were made rarer


def _cost_curve() -> Curve:
    return Curve(level=2.0, slope=0.25, smooth=0.5, length_octaves=4.0, rough=0.015)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountPrior:
    """Standard deviations of logarithms: see benchmarks/RESULTS.md for on what they were chosen.

    `one`: the cost of one evaluation over batch sizes; `jitter`: its deviation between runs of a size, which counts
    for `jitter_runs` of them; `limit_shift`, `limit_arm`: what another power limit changes in it, for all sizes alike
    and for each; `missed_runs`: runs that the prior chance of a miss, none, counts for.
    """

    number: NumberPrior = field(default_factory=NumberPrior)
    one: Curve = field(default_factory=_cost_curve)
    jitter: float = 0.01
    jitter_runs: float = 4.0
    limit_shift: float = 0.3
    limit_arm: float = 0.05
    missed_runs: float = 2.0


def counted(view: View) -> bool:
    """Whether a run of the view tells its number, without which its cost cannot be split."""
    return any(outcome.num_evaluations is not None for outcome in view.outcomes)


def beliefs(view: View, prior: CountPrior) -> Beliefs:
    """From finished runs, of which one at least tells its number of evaluations."""
    told = runs_told(view)
    one, one_covariance, jitter = _cost_of_one(view, told, prior)
    number = beliefs_of_number(_seen(view, told, one, prior.number), octaves_of(view), prior.number)
    split = Beliefs(
        expected=one + 0.5 * jitter + number.expected,  # costs are log-normal about their median
        covariance=one_covariance + number.covariance,
        noise=number.noise + jitter,
    )
    expected, covariance = _with_costs_alone(view, told, split, prior)
    chance, doubt = _chance_of_a_miss(view, prior)
    return Beliefs(
        expected=expected + 2.0 * chance,  # stopped at twice the least cost, and the job runs again
        covariance=covariance + np.diag(4.0 * doubt + 1e-12),
        noise=split.noise,
    )


def runs_told(view: View) -> list[int]:
    """Indices of the runs whose numbers count, oldest first: those since evaluations were last made rarer or finer.

    That shows where two runs of a size cost alike, but one took far more evaluations. Seen only once a size that ran
    before is run again, and not where evaluations were made less than 1.6 times as rare.
    """
    newest: dict[tuple[int, float | None], tuple[float, float]] = {}
    told: list[int] = []
    for index, outcome in reversed(list(enumerate(view.outcomes))):
        if outcome.num_evaluations is None:
            continue
        if outcome.reached:
            cost = float(np.log(max(outcome.cost, _LEAST_J)))
            one = cost - float(np.log(outcome.num_evaluations))
            later, later_one = newest.setdefault((outcome.arm, outcome.power_limit_w), (cost, one))
            if abs(one - later_one) > max(_RARER, 2.0 * abs(cost - later)):
                break
        told.append(index)
    return told[::-1]


def _with_costs_alone(view: View, told: list[int], split: Beliefs, prior: CountPrior) -> tuple[Floats, Floats]:
    """Mean (a,) and covariance (a, a) of the log of the expected cost, once runs whose numbers do not count are seen.

    They say what they cost together, each about `split`. Another limit than the one asked for shifts them once more.
    """
    counting, outcomes = set(told), view.outcomes
    alone = [index for index, outcome in enumerate(outcomes) if outcome.reached and index not in counting]
    if not alone:
        return split.expected, split.covariance
    limits = limits_of(view)
    arm = np.array([outcomes[index].arm for index in alone])
    y = np.log([max(outcomes[index].cost, _LEAST_J) for index in alone]) + (0.5 * split.noise - split.expected)[arm]
    pooled = Pooled.of(arm, limits[alone], y, split.noise[arm])
    across = split.covariance[pooled.arm]
    among = across[:, pooled.arm]
    shift = prior.limit_shift**2 + prior.limit_arm**2 * np.equal.outer(pooled.arm, pooled.arm)
    other = (pooled.limit != limits[-1])[:, None] * np.equal.outer(pooled.limit, pooled.limit)
    moved, covariance = pooled.on_gaussian(split.covariance, across, among + 2.0 * shift * other)
    return split.expected + moved, covariance


def _chance_of_a_miss(view: View, prior: CountPrior) -> tuple[Floats, Floats]:
    """(a,) chance that a run misses the target, and its variance.

    A size that never reached it and once broke off before it had cost what a run needs (out of memory, say) is sure to.
    """
    least = view.least_cost() or 0.0
    runs, missed, broken = (np.zeros(len(view.batch_sizes)) for _ in range(3))
    for outcome in view.outcomes:
        runs[outcome.arm] += 1.0
        missed[outcome.arm] += not outcome.reached
        broken[outcome.arm] += not outcome.reached and outcome.cost < least
    chance = missed / (runs + prior.missed_runs)
    doubt = chance * (1.0 - chance) / (runs + prior.missed_runs)
    hopeless = (missed == runs) & (broken > 0.0)
    return np.where(hopeless, 1.0, chance), np.where(hopeless, 0.0, doubt)


def _cost_of_one(view: View, told: list[int], prior: CountPrior) -> tuple[Floats, Floats, float]:
    """Mean (a,) and covariance (a, a) of e under the view's power limit, and its variance between runs."""
    outcomes = [view.outcomes[index] for index in told]
    arm = np.array([outcome.arm for outcome in outcomes])
    # a missed run stopped somewhere before its next evaluation
    late = np.array([0.0 if outcome.reached else 0.5 for outcome in outcomes])
    number = np.array([outcome.num_evaluations for outcome in outcomes], float) + late
    cost = np.maximum([outcome.cost for outcome in outcomes], _LEAST_J)
    y = np.log(cost) - np.log(number)
    limits = limits_of(view)
    limit, now = limits[told], int(limits[-1])
    _, squares, freedom = strays((arm + len(view.batch_sizes) * limit) * 2 + (late > 0.0), y)
    jitter = float((prior.jitter_runs * prior.jitter**2 + squares.sum()) / (prior.jitter_runs + freedom.sum()))
    shared, centre = prior.one.covariance(octaves_of(view)), y.mean()
    special = prior.limit_shift**2 + prior.limit_arm**2 * np.eye(len(shared))
    pooled = Pooled.of(arm, limit, y - centre, jitter + (0.6 * late / number) ** 2)
    mean, covariance = pooled.on_curve(shared, special, now)
    return centre + mean, covariance, jitter


def _seen(view: View, told: list[int], one: Floats, prior: NumberPrior) -> Seen:
    """Equal runs together; a miss whose number does not count got through as many as fit into its cost."""
    rows: Counter[tuple[int, int, bool]] = Counter()
    counting = set(told)
    for index, outcome in enumerate(view.outcomes):
        number = outcome.num_evaluations if index in counting else None
        if number is None and not outcome.reached:
            number = int(np.exp(np.clip(np.log(max(outcome.cost, _LEAST_J)) - one[outcome.arm], -1.0, _MOST)))
        if number:
            rows[outcome.arm, number, outcome.reached] += 1
    arm, numbers, reached = (np.array(column) for column in zip(*rows, strict=True))
    times = np.array(list(rows.values()), float)
    return Seen.of(arm, numbers.astype(float), reached, times, prior.spreads)
