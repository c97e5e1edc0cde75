"""Ask/tell over a finite space: which configurations to measure next, and the front found so far."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np

from energy_lightning.frontier import FrontierPoint, pareto_front
from energy_lightning.frontier.noise import invalid_reason as reason_against
from energy_lightning.search.history import Finding, Objective, Observations
from energy_lightning.search.passes import PASSES
from energy_lightning.search.proposer import BatchSizes, Prediction
from energy_lightning.search.space import Config, SearchError, SearchSpace

Prior = Callable[[Config], tuple[float, float]]
Told = tuple[float, float, int]  # time in s, energy in J, windows behind them
_SCHEMA = 1


class MultiPassOptimizer:
    """Multi-objective search for the time-energy front of one partition.

        space = SearchSpace.grid(frequency_mhz=[900, 1200, 1410], sm_count=[3, 6, 9], launch=["norm_0", "linear_0"])
        optimizer = MultiPassOptimizer(space, static_power_w=85.0, seed=0)
        while not optimizer.done:
            for config in optimizer.ask():
                optimizer.tell(config, **measure(config))      # time_s=..., energy_j=...
        optimizer.front("total")

    Args:
        space: the candidates.
        static_power_w: per GPU, splits energy into static and dynamic.
        seed: equal seeds and equal tells give equal asks.
        passes: "default", "published" (Kareus) or "random"; a row of `PASSES`.
        prior: config -> (time_s, energy_j) as expected before measuring, e.g. from an emulated GPU; used by "default".
        sizes: batch sizes and early stop; None takes those of the passes.

    Repeats of one configuration merge into their mean. Impossible values are counted by reason in `excluded`, and
    their configuration is not asked again: whoever measures decides how often to retry before telling.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        static_power_w: float,
        seed: int = 0,
        passes: str = "default",
        prior: Prior | None = None,
        sizes: BatchSizes | None = None,
    ) -> None:
        if not 0.0 <= static_power_w < math.inf:
            raise SearchError(f"static_power_w must be finite and >= 0, got {static_power_w}")
        if not _whole(seed) or seed < 0:
            raise SearchError(f"seed must be a whole number >= 0, got {seed!r}")
        if passes not in PASSES:
            raise SearchError(f"unknown passes {passes!r}; known: {', '.join(PASSES)}")
        self.space, self.static_power_w, self.seed, self.passes = space, float(static_power_w), seed, passes
        self._proposer = PASSES[passes](space, sizes, _prior_values(space, prior))
        self._told: dict[int, list[Told]] = {}
        self._invalid: dict[int, str] = {}
        self._excluded: Counter[str] = Counter()
        self._pending: list[int] = []  # asked, not told
        self._again: list[int] = []  # asked before a restart and never told
        self._sequence: dict[int, None] = {}  # candidates in the order first asked or told
        self._found_by: dict[int, tuple[str, int | None]] = {}  # candidate -> pass that proposed it, number of the ask
        self._num_asks = 0

    def ask(self, count: int | None = None) -> list[Config]:
        """Up to `count` configurations to measure, none of them asked or told before; [] when done.

        None asks for what the passes measure at once: the initial sample, then a batch. Raises SearchError for a
        count below 1.
        """
        if count is not None and not (_whole(count) and count >= 1):
            raise SearchError(f"ask for at least one configuration, a whole number, got {count!r}")
        if self.done:
            return []
        seen = self._observations()
        closed = {*self._told, *self._invalid, *self._pending, *self._again}
        sizes = self._proposer.sizes
        asked = len(closed) - len(self._again)
        wanted = count or (sizes.initial - asked if asked < sizes.initial else sizes.batch)
        chosen, self._again = self._again[:wanted], self._again[wanted:]
        open_ = np.array([i for i in range(len(self.space)) if i not in closed], dtype=np.intp)
        missing = min(wanted - len(chosen), len(open_))
        if missing:
            rng = np.random.default_rng((self.seed, self._num_asks))
            proposed = self._proposer.propose(seen, open_, missing, rng)
            reasons = self._proposer.reasons(seen, missing)
            self._found_by |= {i: (why, self._num_asks) for i, why in zip(proposed, reasons, strict=True)}
            chosen += proposed
        self._num_asks += 1
        self._pending += chosen
        self._sequence.update(dict.fromkeys(chosen))
        return [self.space[i] for i in chosen]

    def tell(
        self,
        config: Mapping[str, Any],
        *,
        time_s: float | None = None,
        energy_j: float | None = None,
        num_repeats: int = 1,
        invalid_reason: str | None = None,
    ) -> None:
        """Report a measurement (energy per GPU, static power included) or why there is none.

        Any candidate may be told, asked or not, and more than once: means are merged, weighted by `num_repeats`. None
        stands for what the device cannot tell. Raises SearchError for a configuration outside the space.
        """
        index = self.space.index(config)
        if not (_whole(num_repeats) and num_repeats >= 1):  # NaN would outlive this call
            raise SearchError(f"num_repeats must be a whole number >= 1, got {num_repeats!r}")
        time_s, energy_j = _number("time_s", time_s), _number("energy_j", energy_j)
        self._pending = [i for i in self._pending if i != index]
        self._again = [i for i in self._again if i != index]
        self._sequence.setdefault(index)
        reason = invalid_reason or reason_against(time_s, energy_j)
        if reason is not None:
            self._excluded[reason] += 1
            if index not in self._told:
                self._invalid[index] = reason
            return
        self._told.setdefault(index, []).append((time_s, energy_j, int(num_repeats)))
        self._invalid.pop(index, None)

    @property
    def done(self) -> bool:
        """Whether nothing is left to measure, or the passes find that more is not worth its time."""
        if len(self._told.keys() | self._invalid.keys()) >= self.most:
            return True
        return bool(self._told) and self._proposer.is_done(self._observations())

    @property
    def num_told(self) -> int:
        """Distinct configurations with a valid measurement."""
        return len(self._told)

    @property
    def most(self) -> int:
        """The largest number of configurations that will be asked for (for progress bars)."""
        return min(len(self.space), self._proposer.sizes.most)

    @property
    def excluded(self) -> dict[str, int]:
        """Tells that were left out, counted by reason."""
        return dict(self._excluded)

    def front(self, objective: Objective = "total", *, smoothed: bool = False) -> list[FrontierPoint]:
        """The measured front of time against total, dynamic or static energy; each `choice` is a configuration.

        `smoothed` takes the surrogates' values of the measured configurations instead of the measured ones, so that
        luck does not choose: with noisy windows the better front to choose from.
        Raises SearchError when no valid measurement was told, naming the reasons.
        """
        seen = self._checked_observations()
        if smoothed:
            predicted = self.predict()
            time_s, energy_j = predicted.time_s[seen.indices], predicted.energy_j[seen.indices]
            seen = replace(seen, time_s=time_s, energy_j=energy_j)
        energy_j = seen.energy(objective)
        kept = pareto_front(seen.time_s, energy_j)
        return [FrontierPoint(float(seen.time_s[i]), float(energy_j[i]), self.space[seen.indices[i]]) for i in kept]

    def measured(self) -> list[FrontierPoint]:
        """All valid measurements, merged, in the order first asked or told; [] before the first."""
        means = {i: _mean(self._told[i]) for i in self._sequence if i in self._told}
        return [FrontierPoint(t, e, self.space[i]) for i, (t, e, _) in means.items()]

    def history(self) -> list[Finding]:
        """`measured()` with the pass that proposed each."""
        order = [i for i in self._sequence if i in self._told]
        how = [self._found_by.get(i, ("told", None)) for i in order]
        return [Finding(p.time_s, p.energy_j, *h) for p, h in zip(self.measured(), how, strict=True)]

    def predict(self) -> Prediction:
        """What the surrogates expect of every candidate, in the order of the space. SearchError before the first tell.

        Measured candidates are smoothed as well: prefer `measured()` for those.
        """
        return self._proposer.predict(self._checked_observations(), np.random.default_rng((self.seed, self._num_asks)))

    def state_dict(self) -> dict[str, Any]:
        """Plain values (JSON) from which `load_state_dict` continues as if never interrupted."""
        return {
            "schema": _SCHEMA,
            "space": self.space.fingerprint(),
            "seed": self.seed,
            "num_asks": self._num_asks,
            "told": [[i, *values] for i, tells in self._told.items() for values in tells],
            "invalid": [[i, reason] for i, reason in self._invalid.items()],
            "excluded": dict(self._excluded),
            "pending": [*self._again, *self._pending],
            "found_by": [[i, why, number] for i, (why, number) in self._found_by.items()],
            "sequence": list(self._sequence),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`'s values. What was asked and not told is asked first again.

        Raises SearchError, before anything changes, for a state of another schema or another space.
        """
        expected = {"schema": _SCHEMA, "space": self.space.fingerprint()}
        for name, value in expected.items():
            if state.get(name) != value:
                raise SearchError(
                    f"this search state has {name} {state.get(name)!r}, needed is {value!r}: it belongs to another "
                    "search space or version; start a new search"
                )
        try:
            told: dict[int, list[Told]] = {}
            for i, t, e, n in state["told"]:
                told.setdefault(int(i), []).append((float(t), float(e), int(n)))
            invalid = {int(i): str(reason) for i, reason in state["invalid"]}
            excluded, pending = Counter(dict(state["excluded"])), [int(i) for i in state["pending"]]
            found_by: dict[int, tuple[str, int | None]] = {
                int(i): (str(why), int(number)) for i, why, number in state.get("found_by", ())
            }
            seed, num_asks = int(state["seed"]), int(state["num_asks"])
            sequence = dict.fromkeys([*map(int, state.get("sequence", ())), *told, *invalid, *pending])
            tells = [values for merged in told.values() for values in merged]
            if any(n < 1 or reason_against(t, e) for t, e, n in tells) or min(seed, num_asks) < 0:
                raise ValueError("impossible measurements or counts")
            if not {*sequence, *found_by} <= set(range(len(self.space))):
                raise ValueError("candidates that are not there")
        except (KeyError, TypeError, ValueError) as error:
            raise SearchError(f"unreadable search state ({error!r}); start a new search") from error
        self._told, self._invalid, self._excluded = told, invalid, excluded
        self._again, self._pending, self._sequence = pending, [], sequence
        self.seed, self._num_asks, self._found_by = seed, num_asks, found_by

    def _checked_observations(self) -> Observations:
        if not self._told:
            reasons = ", ".join(f"{n} x {reason}" for reason, n in self._excluded.items()) or "nothing was told yet"
            raise SearchError(f"no valid measurement so far ({reasons}); measure at least one configuration")
        return self._observations()

    def _observations(self) -> Observations:
        """In the order of the space: whoever models them is not to depend on the order of the tells."""
        indices = np.array(sorted(self._told), dtype=np.intp)
        values = np.array([_mean(self._told[i]) for i in indices], dtype=np.float64).reshape(-1, 3)
        asked = np.array([i for i in self._sequence if i in self._told], dtype=np.intp)
        order = np.searchsorted(indices, asked)
        return Observations(indices, values[:, 0], values[:, 1], values[:, 2], self.static_power_w, order)


def _mean(tells: Sequence[Told]) -> Told:
    """Weighted by repeats; the same to the last bit for every order."""
    repeats = sum(n for _, _, n in tells)
    time_s, energy_j = (math.fsum(tell[k] * tell[2] for tell in tells) / repeats for k in (0, 1))
    return time_s, energy_j, repeats


def _whole(value: object) -> bool:
    return isinstance(value, Integral)


def _number(name: str, value: Any) -> float:
    """`value` as a float, NaN for None; SearchError for what is no number."""
    try:
        return math.nan if value is None else float(value)
    except (TypeError, ValueError) as error:
        raise SearchError(f"{name} must be a number, got {value!r}") from error


def _prior_values(space: SearchSpace, prior: Prior | None) -> np.ndarray | None:
    """The prior of every candidate, (n, 2) columns [time_s, energy_j]; SearchError for impossible values."""
    if prior is None:
        return None
    pairs = [prior(space[i]) for i in range(len(space))]
    for i, pair in enumerate(pairs):
        if np.shape(pair) != (2,):
            raise SearchError(f"the prior of {space[i]} must be (time_s, energy_j), got {pair!r}")
    values = np.array([[_number("the prior", value) for value in pair] for pair in pairs])
    for i, (time_s, energy_j) in enumerate(values):
        if (reason := reason_against(time_s, energy_j)) is not None:
            raise SearchError(f"the prior of {space[i]} is ({time_s}, {energy_j}): {reason}")
    return values
