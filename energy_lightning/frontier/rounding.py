"""From times between the clocks to clocks: sweeps over the instructions in topological order.

An instruction takes the cheapest clock that still ends where the linear program let it end, so time saved by rounding
is passed on to the next. Where that leaves much unused, rounding to the nearer clock against slightly earlier ends
does better; several trials are made and the cheapest counts. Choices are numbers (n,) into `PipelineGraph.choices`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np

from energy_lightning.frontier.pareto import Floats, Indices
from energy_lightning.frontier.pipeline import PipelineGraph
from energy_lightning.frontier.relaxation import Relaxed

_ROUNDING = 1e-9  # relative tolerance on times
_MOST_STRETCH, _NUM_STRETCHES = 1.1, 5  # how much later than in the relaxed plan instructions may end, and trials
_LEAST_SHRINK, _NUM_SHRINKS = 0.9, 8  # how much earlier, and steps of the bisection
_BIASES = (0.25, 0.5, 0.75, 1.0)  # of the gap to the next slower clock that rounding may use beyond the end
_FEW_BIASES, _MANY_INSTRUCTIONS = (0.5,), 512


class Rounding:
    """The sweeps for one pipeline."""

    def __init__(self, graph: PipelineGraph) -> None:
        self._graph = graph
        self._options_s = [graph.choices[kind].time_s.tolist() for kind in graph.kinds]

    def candidates(self, relaxed: Relaxed, deadline_s: float) -> Iterator[Indices]:
        """Choices that meet the deadline (s), near the relaxed solution."""
        # Where the end is not forced, clocks between those of the relaxed plan may round to slower ones as well.
        most = max(1.0, min(deadline_s / relaxed.end_s, _MOST_STRETCH))
        for stretch in np.unique(np.linspace(1.0, most, _NUM_STRETCHES)):
            yield self._reclaim(self._rounded(relaxed.latest_ends * stretch, 0.0)[0], deadline_s)
        limit_s = min(deadline_s, relaxed.end_s * (1.0 + _ROUNDING))
        for bias in _BIASES if len(self._options_s) <= _MANY_INSTRUCTIONS else _FEW_BIASES:
            chosen = self._latest_fit(relaxed.latest_ends, bias, limit_s)
            if chosen is not None:
                yield self._reclaim(chosen, deadline_s)

    def _latest_fit(self, latest_ends: Floats, bias: float, limit_s: float) -> Indices | None:
        """The rounding to ends as late as still meets the limit, or None if none of the trials does."""
        low, high, best = _LEAST_SHRINK, 1.0, None
        for _ in range(_NUM_SHRINKS):
            middle = 0.5 * (low + high)
            chosen, end_s = self._rounded(latest_ends * middle, bias)
            if end_s <= limit_s:
                low, best = middle, chosen
            else:
                high = middle
        return best

    def _rounded(self, latest_ends: Floats, bias: float) -> tuple[Indices, float]:
        """The slowest choices that end in time, or up to `bias` of the gap to the next one later; and the end (s)."""
        targets, chosen, ends = latest_ends.tolist(), [0] * len(latest_ends), [0.0] * len(latest_ends)
        for i, before in enumerate(self._graph.predecessors):
            start = max([ends[p] for p in before], default=0.0)
            options_s, limit_s = self._options_s[i], targets[i] - start
            choice = max(0, bisect_right(options_s, limit_s) - 1)
            if bias and choice + 1 < len(options_s):
                gap_s = options_s[choice + 1] - options_s[choice]
                choice += limit_s - options_s[choice] > (1.0 - bias) * gap_s
            chosen[i], ends[i] = choice, start + options_s[choice]
        return np.array(chosen, dtype=np.intp), max(ends)

    def _reclaim(self, chosen: Indices, deadline_s: float) -> Indices:
        """Give the slack that is left to the instructions, in order; never later than the deadline."""
        graph, chosen = self._graph, chosen.copy()
        makespan = graph.makespan(graph.times(chosen))
        latest = graph.latest_ends(graph.times(chosen), min(deadline_s, makespan)).tolist()
        ends = [0.0] * len(chosen)
        for i, before in enumerate(graph.predecessors):
            start = max([ends[p] for p in before], default=0.0)
            chosen[i] = max(chosen[i], bisect_right(self._options_s[i], latest[i] - start) - 1)
            ends[i] = start + self._options_s[i][chosen[i]]
        return chosen
