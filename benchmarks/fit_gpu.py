"""Fit the constants of an emulated A100 to published measurements and print the errors per source.

    python benchmarks/fit_gpu.py                         errors of the packaged constants
    python benchmarks/fit_gpu.py --fit                   fit again, print constants and errors
    python benchmarks/fit_gpu.py --leave-one-out         fit without one job at a time, print the errors on that job

Data: --data DIR, else $ENERGY_LIGHTNING_DATA, else ../shared/data beside the checkout. One least-squares
fit of all constants to relative errors of time and energy together. Every constant has a prior: a value from the
literature or from what the hardware is known to do, and how far from it (as a factor) would be one standard deviation;
that keeps constants that the rows cannot tell apart where they mean something. No row has a constant of its own. A
planner's slowest plans hold times that their clocks cannot explain, so large errors of plans count by their logarithm.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from energy_lightning.emulation import GPU
from energy_lightning.emulation.published import (
    OVERLAP_FILE,
    PLANS_FILE,
    Comparison,
    FrontierRows,
    OverlapWindow,
    best_sm_counts,
    compare_frontier,
    compare_iterations,
    compare_overlap,
    load_frontiers,
    load_overlap,
)

Floats = NDArray[np.float64]
# Constant: (prior value, one standard deviation of its logarithm).
PRIORS = {
    "compute__linear_efficiency": (0.75, 0.15),  # large products of cuBLAS on an A100: 0.7 to 0.85
    "compute__attention_efficiency": (0.50, 0.3),  # FlashAttention-2's long sequences: 0.5 to 0.65
    "compute__launch_overhead_s": (6e-6, 0.5),
    "memory__bandwidth_efficiency": (0.85, 0.05),  # copies on an A100 reach 0.83 to 0.9
    "memory__sm_bytes_per_cycle": (16.0, 0.5),
    "collective__sm_bytes_per_s": (7e9, 0.5),
    "collective__link_bytes_per_s": (2.3e11, 0.07),  # bus bandwidth of large all-reduces on 8 A100s
    "collective__sm_latency_share": (0.3, 0.5),
    "collective__threads_exponent": (0.85, 0.2),
    "collective__slowdown_by_memory": (0.6, 1.0),
    "collective__slowdown_by_linear": (0.3, 1.0),
    "collective__product_slowdown": (0.2, 0.15),
    "collective__stall_s": (1e-4, 1.0),
    "power__static_w": (45.0, 0.12),  # static + idle clock: 85 W blocked, most of it independent of the clock
    "power__idle_clock_w": (40.0, 0.12),
    "power__sm_active_w": (20.0, 0.8),
    "power__joule_per_flop": (0.7e-12, 0.7),
    "power__attention_joule_per_flop": (1.0e-12, 0.7),
    "power__joule_per_byte": (8e-11, 0.4),  # HBM2 and its way to the SMs, 5 to 15 pJ a bit
    "power__joule_per_link_byte": (4e-11, 0.5),
    "power__sm_collective_w": (1.0, 0.8),
    "power__exposed_w": (45.0, 0.7),
    "power__voltage_floor": (0.80, 0.02),  # GPT-3 profiles of the 80 GB version: flat to 1080 MHz, then rising
    "power__voltage_slope": (0.87, 0.05),
}
_PRIOR_WEIGHT = 0.01  # a constant one standard deviation off counts as much as one plan that is 1% off
_OVERLAP_WEIGHTS = 0.3, 0.1  # time, energy: 520 rows of one pair of GPUs against 88 plans
_TIME_KNEE, _ENERGY_KNEE = 0.03, 0.05


def find_data(argument: str | None) -> Path | None:
    """Folder of the measurements, or None."""
    beside = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    folder = Path(argument or os.environ.get("ENERGY_LIGHTNING_DATA") or beside)
    return folder if (folder / PLANS_FILE).is_file() and (folder / OVERLAP_FILE).is_file() else None


def constant(gpu: GPU, name: str) -> float:
    section, _, field = name.partition("__")
    return float(getattr(getattr(gpu, section), field))


def tempered(errors: Floats, knee: float) -> Floats:
    """`errors` where small against `knee`, growing like a logarithm's root beyond."""
    tamed: Floats = np.sign(errors) * knee * np.sqrt(np.log1p((errors / knee) ** 2))
    return tamed


def residuals(gpu: GPU, frontiers: Sequence[FrontierRows], windows: Sequence[OverlapWindow]) -> Floats:
    """Weighted relative errors of time and energy over all rows."""
    parts = []
    for rows in frontiers:
        found = compare_frontier(gpu, rows)
        parts += [tempered(found.time_error, _TIME_KNEE), tempered(found.energy_error, _ENERGY_KNEE)]
    for window in windows:
        found = compare_overlap(gpu, window)
        parts += [_OVERLAP_WEIGHTS[0] * found.time_error, _OVERLAP_WEIGHTS[1] * found.energy_error]
    return np.concatenate(parts)


def fit(gpu: GPU, frontiers: Sequence[FrontierRows], windows: Sequence[OverlapWindow], evaluations: int = 12) -> GPU:
    """All constants at once, from those of `gpu`, by least squares on their logarithms with the priors above."""
    names = list(PRIORS)
    mean, spread = np.log([PRIORS[n][0] for n in names]), np.array([PRIORS[n][1] for n in names])

    def built(x: Floats) -> GPU:
        return gpu.with_constants(**dict(zip(names, np.exp(x).tolist(), strict=True)))

    def errors(x: Floats) -> Floats:
        return np.concatenate([residuals(built(x), frontiers, windows), _PRIOR_WEIGHT * (x - mean) / spread])

    start = np.log([constant(gpu, n) for n in names])
    found = least_squares(errors, start, x_scale=spread, diff_step=1e-3, max_nfev=evaluations, xtol=1e-4, ftol=3e-5)
    return built(found.x)


def print_table(found: Sequence[tuple[str, Comparison]]) -> None:
    print(f"\n{'source':58} {'rows':>4} {'time MAPE':>9} {'bias':>7} {'energy MAPE':>11} {'bias':>7}")
    for name, c in found:
        time_mape, energy_mape = c.mape()
        bias = c.time_error.mean(), c.energy_error.mean()
        print(f"{name:58} {len(c.time_s):4} {time_mape:9.1%} {bias[0]:+7.1%} {energy_mape:11.1%} {bias[1]:+7.1%}")
    for prefix in dict.fromkeys(name.split()[0] for name, _ in found):
        group = [c for name, c in found if name.split()[0] == prefix]
        t, e = (np.concatenate([np.abs(getattr(c, k)) for c in group]).mean() for k in ("time_error", "energy_error"))
        print(f"{'all ' + prefix:58} {sum(len(c.time_s) for c in group):4} {t:9.1%} {'':7} {e:11.1%}")


def print_errors(gpu: GPU, frontiers: Sequence[FrontierRows], windows: Sequence[OverlapWindow]) -> None:
    found = [(rows.name, compare_frontier(gpu, rows)) for rows in frontiers]
    found += [(f"overlap {w.launch} to {w.join}", compare_overlap(gpu, w)) for w in windows]
    found += [(f"iteration {rows.name}", compare_iterations(gpu, rows)) for rows in frontiers]
    print_table(found)


def print_best_sm_counts(gpu: GPU, windows: Sequence[OverlapWindow]) -> None:
    """Measured and predicted best SM count per window, clock and block size, and how often they are close."""
    close, total = 0, 0
    print("\nbest SM count, measured / predicted")
    for window in windows:
        measured = best_sm_counts(window, window.time_s)
        predicted = best_sm_counts(window, compare_overlap(gpu, window).predicted_time_s)
        for key, value in measured.items():
            close, total = close + (abs(value - predicted[key]) <= 2), total + 1
            where = f"{window.launch} to {window.join} at {key[0]:.0f} MHz, {key[1]:.0f} threads"
            print(f"  {where}: {value:.0f} / {predicted[key]:.0f}")
    print(f"within 2 of the measured one: {close} of {total} = {close / total:.0%}")


def print_constants(gpu: GPU) -> None:
    print(f"\n{'constant':34} {'fitted':>10} {'prior':>10} {'standard deviations off':>24}")
    for name, (mean, spread) in PRIORS.items():
        value = constant(gpu, name)
        print(f"{name:34} {value:10.4g} {mean:10.3g} {np.log(value / mean) / spread:+24.1f}")


def print_leave_one_out(gpu: GPU, frontiers: Sequence[FrontierRows], windows: Sequence[OverlapWindow]) -> None:
    found = []
    for job in dict.fromkeys(rows.workload for rows in frontiers):
        fitted = fit(gpu, [rows for rows in frontiers if rows.workload != job], windows)
        found += [(rows.name, compare_frontier(fitted, rows)) for rows in frontiers if rows.workload == job]
    print("each job predicted by constants fitted to the other jobs and the overlap measurements", end="")
    print_table(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="a100-sxm4-40gb")
    parser.add_argument("--data")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--leave-one-out", action="store_true")
    arguments = parser.parse_args()
    folder = find_data(arguments.data)
    if folder is None:
        print(f"no {PLANS_FILE} and {OVERLAP_FILE} found: give --data DIR or set ENERGY_LIGHTNING_DATA")
        return
    gpu = GPU.load(arguments.gpu)
    frontiers, windows = load_frontiers(folder / PLANS_FILE), load_overlap(folder / OVERLAP_FILE)
    if arguments.leave_one_out:
        print_leave_one_out(gpu, frontiers, windows)
        return
    if arguments.fit:
        gpu = fit(gpu, frontiers, windows, evaluations=30)
        print_constants(gpu)
    print_errors(gpu, frontiers, windows)
    print_best_sm_counts(gpu, windows)


if __name__ == "__main__":
    main()
