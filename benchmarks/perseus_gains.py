"""Perseus's measured savings against the savings of our plans computed from the measured instructions.

    python benchmarks/perseus_gains.py --data DIR

Iterations of GPT-3 XL and BERT-huge on 4 A100-80GB-PCIe (pipeline of 4), measured by Perseus's authors under locked
clocks: DIR/perseus_measured_stages.csv. An iteration's time and energy are known per stage, instructions' times as
means per stage, clocks as means; the energy of one instruction is not. It is derived stage by stage:

    energy of the iteration - P_blocking x time outside instructions
        = sum over forward and backward of num_microbatches x mean time x P(mean clock)

with P, the power while computing, linear between the values at a few clocks: least squares over the iterations of
frequency plans, with a weak preference for a straight line where no iteration has the clock. Times at a clock are
interpolated between the measured means. So a GPU at its power limit (300 W here), which gains no time from a higher
clock, appears as measured. The plans whose savings are compared, and all others within 2% of the fastest, are left out
of both: their energies are predicted, not fitted. Not modelled: the transfer times between stages, 1% to 2% of the
iteration; therefore both savings are relative to each one's own plan at the highest clock.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from energy_lightning.frontier import Option, PipelineProblem, solve_deadline

BLOCKING_W = 83.64  # A100, Perseus (SOSP '24)
HIGHEST_MHZ, STEP_MHZ = 1410, 15
KNOTS_MHZ = np.array([1050.0, 1125.0, 1200.0, 1275.0, 1410.0])
SMOOTHNESS = 1e-2  # weight of one watt of bend against one watt of mean error
SLOWDOWN, HELD_OUT_SLOWDOWN = 0.01, 0.02
Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class Gain:
    """Savings (fraction of energy) at a slow-down (fraction of time): the authors' plan, ours at the same deadline."""

    model: str
    slowdown: float
    measured: float
    computed: float
    power_error: float  # root mean square of the power fit, relative


def rows_of(path: Path, model: str) -> list[Row]:
    """The rows of one model with locked clocks on A100."""
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == model and row["gpu"] == "A100-80GB-PCIe"]
    return [row for row in rows if row["knob"] == "frequency"]


def busy_power(rows: Sequence[Row]) -> tuple[np.ndarray, float]:
    """Power (W) of one stage while computing at every knot, and the relative error of the fit."""
    weights, powers = [], []
    for row in rows:
        busy_s = {phase: float(row[f"{phase}_time_mean_s"]) * int(row["num_microbatches"]) for phase in ("fwd", "bwd")}
        energy_j = float(row["iter_energy_j"]) - BLOCKING_W * float(row["non_compute_s"])
        shares = [busy_s[p] / sum(busy_s.values()) * hat(float(row[f"{p}_freq_mean_mhz"])) for p in busy_s]
        weights.append(shares[0] + shares[1])
        powers.append(energy_j / sum(busy_s.values()))
    bends = np.diff(np.diff(np.eye(len(KNOTS_MHZ)), axis=0) / np.diff(KNOTS_MHZ)[:, None], axis=0) * 100.0
    penalty = np.sqrt(len(rows) * SMOOTHNESS) * bends
    matrix, wanted = np.vstack([weights, penalty]), np.concatenate([powers, np.zeros(len(bends))])
    at_knots_w = np.linalg.lstsq(matrix, wanted, rcond=None)[0]
    errors = np.array(weights) @ at_knots_w / np.array(powers) - 1.0
    return at_knots_w, float(np.sqrt(np.mean(errors**2)))


def hat(clock_mhz: float) -> np.ndarray:
    """Weights (knots,) of linear interpolation at a clock."""
    return np.array([np.interp(clock_mhz, KNOTS_MHZ, unit) for unit in np.eye(len(KNOTS_MHZ))])


def options(rows: Sequence[Row], phase: str, at_knots_w: np.ndarray) -> list[Option]:
    """The clocks between the lowest and the highest measured, times between the measured means."""
    clocks = np.array([float(row[f"{phase}_freq_mean_mhz"]) for row in rows])
    times = np.array([float(row[f"{phase}_time_mean_s"]) for row in rows])
    bins_mhz = np.unique(STEP_MHZ * np.round(clocks / STEP_MHZ))
    members = [np.abs(clocks - b) <= STEP_MHZ / 2 for b in bins_mhz]
    means = [(1.0 / clocks[m].mean(), times[m].mean()) for m in members][::-1]  # by rising 1 / clock
    inverse, time_s = np.array(means).T
    offered_mhz = np.arange(HIGHEST_MHZ, clocks.min() - STEP_MHZ / 2, -STEP_MHZ)
    at_s = np.interp(1.0 / offered_mhz, inverse, np.maximum.accumulate(time_s))
    at_w = np.interp(offered_mhz, KNOTS_MHZ, at_knots_w)
    return [Option(float(t), float(t * w), int(f)) for t, w, f in zip(at_s, at_w, offered_mhz, strict=True)]


def problem_of(rows: Sequence[Row]) -> tuple[PipelineProblem, float]:
    """The pipeline with the measured instructions, and the relative error of the power fit."""
    menu, errors = {}, []
    for stage in range(4):
        own = [row for row in rows if int(row["stage"]) == stage]
        at_knots_w, error = busy_power(own)
        errors.append(error)
        menu[stage, "forward"] = options(own, "fwd", at_knots_w)
        menu[stage, "backward"] = options(own, "bwd", at_knots_w)
    num_microbatches = int(rows[0]["num_microbatches"])
    return PipelineProblem(4, num_microbatches, menu, BLOCKING_W), float(np.sqrt(np.mean(np.square(errors))))  # type: ignore[arg-type]


def iterations(rows: Sequence[Row], method: str) -> dict[int, tuple[float, float, bool]]:
    """Plan number -> time (s), energy of the 4 GPUs (J) and whether all ran at the highest clock."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        if row["method"] == method:
            found.setdefault(int(row["plan_index"]), []).append(row)
    return {
        plan: (
            max(float(row["iter_time_s"]) for row in own),
            sum(float(row["iter_energy_j"]) for row in own),
            all(float(row["fwd_freq_min_mhz"]) == HIGHEST_MHZ == float(row["bwd_freq_min_mhz"]) for row in own),
        )
        for plan, own in found.items()
    }


def outside(rows: Sequence[Row], limit_s: float) -> list[Row]:
    """The rows of plans that take longer than the limit or run at the highest clock throughout."""
    kept = [
        (method, plan)
        for method in ("perseus", "envpipe")
        for plan, (time_s, _, highest) in iterations(rows, method).items()
        if highest or time_s > limit_s
    ]
    return [row for row in rows if (row["method"], int(row["plan_index"])) in kept]


def gain(path: Path, model: str) -> Gain:
    """The authors' best plan within the slow-down, and ours by the same deadline."""
    rows = rows_of(path, model)
    measured = iterations(rows, "perseus").values()
    base_s, base_j = np.mean([(t, e) for t, e, highest in measured if highest], axis=0)
    best_s, best_j = min(
        ((t, e) for t, e, highest in measured if not highest and t <= base_s * (1.0 + SLOWDOWN)), key=lambda v: v[1]
    )
    problem, error = problem_of(outside(rows, float(base_s) * (1.0 + HELD_OUT_SLOWDOWN)))
    highest = {key: [o for o in menu if o.knob == HIGHEST_MHZ] for key, menu in problem.options.items()}
    ours = solve_deadline(PipelineProblem(4, problem.num_microbatches, highest, BLOCKING_W), np.inf)
    slowdown = float(best_s / base_s - 1.0)
    plan = solve_deadline(problem, ours.time_s * (1.0 + slowdown))
    return Gain(model, slowdown, float(1.0 - best_j / base_j), 1.0 - plan.energy_j / ours.energy_j, error)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with perseus_measured_stages.csv")
    path = parser.parse_args().data / "perseus_measured_stages.csv"
    print("| Model | Slow-down | Saved, measured | Saved, computed | Difference, points | Error of the power fit |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for model in ("gpt3-xl", "bert-huge-uncased"):
        found = gain(path, model)
        difference = 100.0 * (found.computed - found.measured)
        print(
            f"| {model} | {found.slowdown:+.2%} | {found.measured:.1%} | {found.computed:.1%} | {difference:+.1f} "
            f"| {found.power_error:.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
