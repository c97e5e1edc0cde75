"""Fit the constants of an emulated GPU to published measurements and print the errors per source.

    python benchmarks/fit_gpu.py                         errors of the packaged constants
    python benchmarks/fit_gpu.py --fit                   fit again, print constants and errors
    python benchmarks/fit_gpu.py --leave-one-out         fit without one job at a time, print the errors on that job

Data: --data DIR, else $ENERGY_LIGHTNING_DATA, else ../shared/data beside the checkout. Two steps: times first (they do
not depend on the power constants), then power, where energy is linear in all constants but the two of the voltage.
Bounds keep every constant physical; no row has a constant of its own.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, lsq_linear, minimize

from energy_lightning.emulation import GPU
from energy_lightning.emulation.published import (
    OVERLAP_FILE,
    PLANS_FILE,
    FrontierRows,
    OverlapWindow,
    best_sm_counts,
    compare_frontier,
    compare_overlap,
    load_frontiers,
    load_overlap,
)

Floats = NDArray[np.float64]
_TIME_BOUNDS = {
    "compute__linear_efficiency": (0.4, 0.95),
    "compute__attention_efficiency": (0.2, 0.8),
    "compute__launch_overhead_s": (2e-6, 1.5e-5),
    "memory__bandwidth_efficiency": (0.5, 0.9),
    "memory__sm_bytes_per_cycle": (3.0, 40.0),
    "collective__sm_bytes_per_s": (3e9, 2e10),
    "collective__link_bytes_per_s": (1.2e11, 2.6e11),
    "collective__sm_latency_share": (0.2, 0.6),
    "collective__threads_exponent": (0.5, 1.0),
    "collective__slowdown_by_memory": (0.1, 5.0),
    "collective__slowdown_by_linear": (0.05, 2.0),
    "collective__stall_s": (2e-5, 2.5e-4),
}
_POWER_BOUNDS = {
    "power__static_w": (35.0, 70.0),
    "power__idle_clock_w": (10.0, 52.0),
    "power__sm_active_w": (20.0, 250.0),
    "power__joule_per_flop": (1e-13, 3e-12),
    "power__attention_joule_per_flop": (1e-13, 4e-12),
    "power__joule_per_byte": (1e-11, 2e-10),
    "power__joule_per_link_byte": (1e-11, 1e-10),
    "power__sm_collective_w": (0.3, 2.0),
}
_VOLTAGE = {"power__voltage_floor": (0.6, 0.95), "power__voltage_slope": (0.3, 1.4)}
_FRONTIER_WEIGHT, _OVERLAP_WEIGHT = 1.0, 0.2  # 88 plans against 520 rows


def find_data(argument: str | None) -> Path | None:
    """Folder of the measurements, or None."""
    beside = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    folder = Path(argument or os.environ.get("ENERGY_LIGHTNING_DATA") or beside)
    return folder if (folder / PLANS_FILE).is_file() and (folder / OVERLAP_FILE).is_file() else None


def constant(gpu: GPU, name: str) -> float:
    section, _, field = name.partition("__")
    return float(getattr(getattr(gpu, section), field))


def errors(gpu: GPU, frontiers: Sequence[FrontierRows], windows: Sequence[OverlapWindow], energy: bool) -> Floats:
    """Weighted relative errors of time or energy over all rows."""
    parts = []
    for rows in frontiers:
        found = compare_frontier(gpu, rows)
        parts.append(_FRONTIER_WEIGHT * (found.energy_error if energy else found.time_error))
    for window in windows:
        found = compare_overlap(gpu, window)
        parts.append(_OVERLAP_WEIGHT * (found.energy_error if energy else found.time_error))
    return np.concatenate(parts)


def fit_time(gpu: GPU, frontiers: Sequence[FrontierRows], windows: Sequence[OverlapWindow]) -> GPU:
    """The constants that time depends on, by bounded least squares on their logarithms."""
    names = list(_TIME_BOUNDS)
    low, high = np.log(np.array([_TIME_BOUNDS[n] for n in names])).T
    start = np.clip(np.log([constant(gpu, n) for n in names]), low + 1e-6, high - 1e-6)

    def built(x: Floats) -> GPU:
        return gpu.with_constants(**dict(zip(names, np.exp(x).tolist(), strict=True)))

    found = least_squares(
        lambda x: errors(built(x), frontiers, windows, energy=False),
        start,
        bounds=(low, high),
        diff_step=1e-3,
        max_nfev=40,
    )
    return built(found.x)


def fit_power(gpu: GPU, frontiers: Sequence[FrontierRows], windows: Sequence[OverlapWindow]) -> GPU:
    """The power constants: bounded linear least squares inside a search over the voltage curve."""
    names = list(_POWER_BOUNDS)
    low, high = np.array([_POWER_BOUNDS[n] for n in names]).T

    def solve(voltage: Floats) -> tuple[float, GPU]:
        bounds = np.array(list(_VOLTAGE.values()))
        floor, slope = np.clip(voltage, bounds[:, 0], bounds[:, 1]).tolist()
        none = gpu.with_constants(**dict.fromkeys(names, 0.0), power__voltage_floor=floor, power__voltage_slope=slope)
        base = errors(none, frontiers, windows, energy=True)
        columns = np.stack(
            [
                errors(none.with_constants(**{n: h}), frontiers, windows, energy=True) - base
                for n, h in zip(names, high, strict=True)
            ],
            1,
        )
        found = lsq_linear(columns, -base, bounds=(low / high, np.ones(len(names))))
        return float(found.cost), none.with_constants(**dict(zip(names, (found.x * high).tolist(), strict=True)))

    start = [constant(gpu, n) for n in _VOLTAGE]
    best = minimize(
        lambda v: solve(v)[0], start, method="Nelder-Mead", options={"xatol": 2e-3, "fatol": 1e-7, "maxfev": 60}
    )
    return solve(best.x)[1]


def fit(gpu: GPU, frontiers: Sequence[FrontierRows], windows: Sequence[OverlapWindow]) -> GPU:
    return fit_power(fit_time(gpu, frontiers, windows), frontiers, windows)


def print_errors(gpu: GPU, frontiers: Sequence[FrontierRows], windows: Sequence[OverlapWindow]) -> None:
    print(f"\n{'source':58} {'rows':>4} {'time MAPE':>9} {'bias':>7} {'energy MAPE':>11} {'bias':>7}")
    found = [(rows.name, compare_frontier(gpu, rows)) for rows in frontiers]
    found += [(f"overlap {w.launch} to {w.join}", compare_overlap(gpu, w)) for w in windows]
    for name, c in found:
        time_mape, energy_mape = c.mape()
        bias = c.time_error.mean(), c.energy_error.mean()
        print(f"{name:58} {len(c.time_s):4} {time_mape:9.1%} {bias[0]:+7.1%} {energy_mape:11.1%} {bias[1]:+7.1%}")
    for prefix in ("perseus", "nanobatch_perseus", "overlap"):
        group = [c for name, c in found if name.split()[0] == prefix]
        if group:
            t, e = (
                np.concatenate([np.abs(getattr(c, k)) for c in group]).mean() for k in ("time_error", "energy_error")
            )
            print(f"{'all ' + prefix:58} {sum(len(c.time_s) for c in group):4} {t:9.1%} {'':7} {e:11.1%}")


def print_best_sm_counts(gpu: GPU, windows: Sequence[OverlapWindow]) -> None:
    """Measured and predicted best SM count per window, clock and block size; the issue is how often they are close."""
    close, total = 0, 0
    for window in windows:
        measured = best_sm_counts(window, window.time_s)
        predicted = best_sm_counts(window, compare_overlap(gpu, window).predicted_time_s)
        for key, value in measured.items():
            close, total = close + (abs(value - predicted[key]) <= 2), total + 1
            where = f"{window.launch} to {window.join} at {key[0]:.0f} MHz, {key[1]:.0f} threads"
            print(f"  {where}: {value:.0f} / {predicted[key]:.0f}")
    print(f"best SM count within 2 of the measured one: {close} of {total}")


def print_leave_one_out(gpu: GPU, frontiers: Sequence[FrontierRows], windows: Sequence[OverlapWindow]) -> None:
    for job in dict.fromkeys(rows.workload for rows in frontiers):
        kept = [rows for rows in frontiers if rows.workload != job]
        print(f"\nwithout {job.model.name} cp{job.context_parallel} tp{job.tensor_parallel}:", end="")
        print_errors(fit(gpu, kept, windows), [rows for rows in frontiers if rows.workload == job], [])


def thinned(rows: FrontierRows) -> FrontierRows:
    """Every second plan: enough to fit, half the time."""
    keep = slice(1, None, 2)
    return replace(
        rows, orders=rows.orders[keep], time_s=rows.time_s[keep], dynamic_energy_j=rows.dynamic_energy_j[keep]
    )


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
    gpu, frontiers, windows = (
        GPU.load(arguments.gpu),
        load_frontiers(folder / PLANS_FILE),
        load_overlap(folder / OVERLAP_FILE),
    )
    if arguments.leave_one_out:
        print_leave_one_out(gpu, [thinned(rows) for rows in frontiers], windows)
        return
    if arguments.fit:
        gpu = fit(gpu, [thinned(rows) for rows in frontiers], windows)
        for name in (*_TIME_BOUNDS, *_POWER_BOUNDS, *_VOLTAGE):
            print(f"{name:34} {constant(gpu, name):.4g}")
    print_errors(gpu, frontiers, windows)
    print_best_sm_counts(gpu, windows)


if __name__ == "__main__":
    main()
