"""Discrete clocks against brute force, the relaxation against itself, the graphs against every path through them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energy_lightning.frontier import FrontierError, Option, PipelineProblem, solve_deadline, solve_straggler
from energy_lightning.frontier import deadline as solver
from energy_lightning.frontier.deadline import trace_frontier
from energy_lightning.frontier.pipeline import PipelineGraph
from energy_lightning.frontier.relaxation import Relaxation
from energy_lightning.types import BudgetError

BLOCKING_W = 80.0


def coarse(
    num_stages: int, num_microbatches: int, clocks: list[int], seed: int, schedule: str = "1f1b"
) -> PipelineProblem:
    """Stages uneven by up to 30%, each with its own dependence on the clock."""
    rng = np.random.default_rng(seed)
    options = {}
    for stage, (phase, work) in itertools.product(range(num_stages), (("forward", 1.0), ("backward", 2.0))):
        work, share, power_w = work * rng.uniform(1.0, 1.3), rng.uniform(0.5, 0.9), rng.uniform(150.0, 350.0)
        times = {f: work * (1.0 - share + share * 1410 / f) for f in clocks}
        options[stage, phase] = [
            Option(t, t * BLOCKING_W + work * power_w * (f / 1410) ** 2, f) for f, t in times.items()
        ]
    return PipelineProblem(num_stages, num_microbatches, options, BLOCKING_W, schedule)  # type: ignore[arg-type]


def brute_force(p: PipelineProblem) -> tuple[np.ndarray, np.ndarray]:
    """Times and energies (N,) of all assignments, from the dependencies alone."""
    graph = PipelineGraph(p)
    menus = [p.options[i.stage, i.phase] for i in graph.instructions]
    picks = np.indices([len(menu) for menu in menus]).reshape(len(menus), -1)
    ends: list[np.ndarray] = []
    busy_s, busy_j = np.zeros(picks.shape[1]), np.zeros(picks.shape[1])
    for i, menu in enumerate(menus):
        time_s, energy_j = (np.array([getattr(o, name) for o in menu])[picks[i]] for name in ("time_s", "energy_j"))
        start = np.max(
            [np.zeros(picks.shape[1]), *(ends[e] for e, later in graph.edges.tolist() if later == i)], axis=0
        )
        ends.append(start + time_s)
        busy_s, busy_j = busy_s + time_s, busy_j + energy_j
    end_s = np.max(ends, axis=0)
    return end_s, busy_j + (p.num_stages * end_s - busy_s) * p.blocking_power_w


@pytest.mark.parametrize(
    ("sizes", "clocks"), [((2, 3), [900, 1200, 1410]), ((2, 4), [1000, 1410]), ((3, 3), [900, 1410])]
)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_coarse_clocks_cost_half_a_percent_at_most(
    sizes: tuple[int, int], clocks: list[int], schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for sizes where not all choices are tried at once."""
    monkeypatch.setattr(solver, "_MOST_BINARIES", 0)
    p = coarse(*sizes, clocks, seed=sum(sizes) + len(clocks), schedule=schedule)
    times, energies = brute_force(p)
    for stretch in (1.0, 1.04, 1.1, 1.25):
        deadline_s = times.min() * stretch
        best_j = energies[times <= deadline_s * (1.0 + 1e-9)].min()
        plan = solve_deadline(p, deadline_s)
        assert plan.time_s <= deadline_s * (1.0 + 1e-8)
        assert best_j * (1.0 - 1e-9) <= plan.energy_j <= 1.005 * best_j


def test_many_microbatches_of_one_stage_are_a_knapsack() -> None:
    """40 microbatches, 3 clocks, whole seconds: exact by dynamic programming over the time used."""
    menus = {"forward": [(4, 60.0), (5, 52.0), (7, 45.0)], "backward": [(9, 130.0), (11, 112.0), (14, 101.0)]}
    options = {(0, phase): [Option(float(t), e, t) for t, e in menu] for phase, menu in menus.items()}
    p = PipelineProblem(1, 40, options, 2.0)  # type: ignore[arg-type]
    for deadline in (530, 613, 700):
        least = np.full(deadline + 1, np.inf)
        least[0] = 0.0
        for menu in [*menus.values()] * 40:
            shifted = [np.concatenate([np.full(t, np.inf), least[: deadline + 1 - t]]) + e for t, e in menu]
            least = np.min(shifted, axis=0)
        plan = solve_deadline(p, float(deadline))
        assert least.min() * (1.0 - 1e-9) <= plan.energy_j <= 1.005 * least.min()


def test_programs_between_their_neighbours_cost_hardly_more() -> None:
    p = coarse(4, 12, list(range(900, 1411, 30)), seed=1)
    relaxation, waiting_w = Relaxation(PipelineGraph(p)), 4 * BLOCKING_W
    fastest_s = trace_frontier(p, 2)[0].time_s
    sooner, later = (relaxation.solve(fastest_s * stretch, waiting_w) for stretch in (1.0, 1.15))
    for stretch in (1.03, 1.08, 1.12):
        alone = relaxation.solve(fastest_s * stretch, waiting_w)
        between = relaxation.solve(fastest_s * stretch, waiting_w, (sooner, later))
        assert alone.spent_j * (1.0 - 1e-7) <= between.spent_j <= alone.spent_j * 1.001
        assert between.end_s <= fastest_s * stretch * (1.0 + 1e-6)
        plan = solve_deadline(p, fastest_s * stretch)
        assert alone.spent_j * (1.0 - 1e-7) <= plan.energy_j <= alone.spent_j * 1.01


def test_a_traced_frontier_only_falls() -> None:
    plans = trace_frontier(coarse(4, 6, [900, 1100, 1410], seed=3), points=12)
    assert all(a.time_s < b.time_s and a.energy_j > b.energy_j for a, b in itertools.pairwise(plans))


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([("1f1b", 3, 3, 1), ("gpipe", 2, 3, 1), ("interleaved", 2, 2, 2), ("interleaved", 2, 4, 2)]),
    st.randoms(use_true_random=False),
)
def test_the_makespan_is_the_longest_of_all_paths(shape: tuple[str, int, int, int], random: object) -> None:
    schedule, num_stages, num_microbatches, chunks = shape
    keys = itertools.product(range(num_stages * chunks), ("forward", "backward"))
    options = {key: [Option(random.uniform(0.5, 2.0), 1.0)] for key in keys}  # type: ignore[attr-defined]
    p = PipelineProblem(num_stages, num_microbatches, options, 0.0, schedule, chunks)  # type: ignore[arg-type]
    graph = PipelineGraph(p)
    time_s = [options[i.stage, i.phase][0].time_s for i in graph.instructions]

    def longest_from(i: int, known: dict[int, float]) -> float:
        if i not in known:
            after = [later for earlier, later in graph.edges.tolist() if earlier == i]
            known[i] = time_s[i] + max((longest_from(j, known) for j in after), default=0.0)
        return known[i]

    known: dict[int, float] = {}
    expected = max(longest_from(i, known) for i in range(len(time_s)))
    assert solve_deadline(p, math.inf).time_s == pytest.approx(expected)


def test_thousands_of_equal_options_are_one() -> None:
    same = {(0, phase): [Option(1.0, 5.0, "a"), *[Option(1.0, 6.0, "b")] * 3000] for phase in ("forward", "backward")}
    (plan,) = trace_frontier(PipelineProblem(1, 2, same, 1.0), points=20)  # type: ignore[arg-type]
    assert (plan.time_s, plan.energy_j) == (pytest.approx(4.0), pytest.approx(20.0))
    assert set(plan.knobs.values()) == {"a"}


@pytest.mark.parametrize("bad", [math.nan, -1.0, 0.0, -math.inf])
def test_impossible_deadlines_are_named(bad: float) -> None:
    p = coarse(2, 2, [900, 1410], seed=0)
    with pytest.raises(BudgetError, match="the fastest takes"):
        solve_deadline(p, bad)
    with pytest.raises(FrontierError, match="straggler_time_s"):
        solve_straggler(p, bad)
    for value in (bad, math.inf):
        if value != 0.0:
            with pytest.raises(FrontierError, match="blocking_power_w"):
                PipelineProblem(2, 2, p.options, value)


def test_an_endless_deadline_gives_the_least_energy() -> None:
    p = coarse(2, 3, [900, 1200, 1410], seed=5)
    times, energies = brute_force(p)
    assert solve_deadline(p, math.inf).energy_j == pytest.approx(energies.min())
    waiting = solve_straggler(p, math.inf)  # whatever is slowest: only the work itself counts
    assert waiting.time_s <= times.max() * (1.0 + 1e-9)
