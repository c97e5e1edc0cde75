"""Fit an emulated GPU to published profiles of GPT-3's pipeline instructions and print the errors.

    python benchmarks/fit_instructions.py                       errors of the packaged constants
    python benchmarks/fit_instructions.py --fit                 fit again, print constants and errors
    python benchmarks/fit_instructions.py --keep-apart clocks   fit to every second clock, print the others' errors
    python benchmarks/fit_instructions.py --keep-apart stages   fit without the last stage, print its errors

Data: --data DIR, else $ENERGY_LIGHTNING_DATA, else ../shared/data beside the checkout. The constants below are fitted
to time and energy of all stages and both instructions together, at the clocks that the power limit leaves alone. No
efficiency lifts a product over the peak. Everything else is measured, assumed, another GPU's or the datasheet's.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from energy_lightning.emulation import GPU, unlimited
from energy_lightning.emulation.published_instructions import (
    INSTRUCTIONS_FILE,
    InstructionRows,
    cheapest_mhz,
    compare_instruction,
    load_instructions,
    measured_board,
)

Floats = NDArray[np.float64]
_BOUNDS = {
    "compute__linear_efficiency": (0.4, 1.0),
    "compute__gradient_efficiency": (0.8, 1.2),
    "memory__cache_bytes_per_s": (1e12, 1.5e13),
    "power__sm_active_w": (20.0, 250.0),
    "power__joule_per_flop": (1.2e-12, 4e-12),
    "power__voltage_floor": (0.6, 0.95),
    "power__voltage_slope": (0.3, 1.4),
}
_FREE_OF_LIMIT = 0.92  # mean power over the limit's share that the board never exceeds there


def find_data(argument: str | None) -> Path | None:
    """The file of the profiles, or None."""
    beside = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    file = Path(argument or os.environ.get("ENERGY_LIGHTNING_DATA") or beside) / INSTRUCTIONS_FILE
    return file if file.is_file() else None


def part(rows: InstructionRows, keep: NDArray[np.bool_] | slice) -> InstructionRows:
    """Some of the clocks."""
    return replace(rows, frequency_mhz=rows.frequency_mhz[keep], time_s=rows.time_s[keep], energy_j=rows.energy_j[keep])


def below_limit(gpu: GPU, rows: InstructionRows) -> InstructionRows:
    """The clocks at which the power limit does not act: those under the highest one that stays clear of it."""
    over = rows.energy_j / rows.time_s > _FREE_OF_LIMIT * measured_board(gpu).power_limit_w
    first = rows.frequency_mhz[over].min() if over.any() else np.inf
    return part(rows, rows.frequency_mhz < first)


def built(gpu: GPU, x: Floats) -> GPU:
    """`gpu` with the constants exp(x), in the order of _BOUNDS."""
    constants = dict(zip(_BOUNDS, np.exp(x).tolist(), strict=True))
    peak_share = constants["compute__linear_efficiency"]
    constants["compute__gradient_efficiency"] = min(constants["compute__gradient_efficiency"], 1.0 / peak_share)
    per_flop = constants["power__joule_per_flop"]
    ratio = gpu.power.attention_joule_per_flop / gpu.power.joule_per_flop
    return gpu.with_constants(
        **constants,
        power__attention_joule_per_flop=ratio * per_flop,
    )


def fit(gpu: GPU, profiles: Sequence[InstructionRows]) -> GPU:
    """All constants at once, by bounded least squares on their logarithms."""
    low, high = np.log(np.array(list(_BOUNDS.values()))).T
    names = [name.partition("__")[::2] for name in _BOUNDS]
    start = np.log([float(getattr(getattr(gpu, section), constant)) for section, constant in names])
    free = [below_limit(gpu, rows) for rows in profiles]

    def errors(x: Floats) -> Floats:
        found = [compare_instruction(unlimited(built(gpu, x)), rows) for rows in free]
        return np.concatenate([error for c in found for error in (c.time_error, c.energy_error)])

    found = least_squares(
        errors, np.clip(start, low + 1e-6, high - 1e-6), bounds=(low, high), diff_step=[1e-4] * len(low)
    )
    return built(gpu, found.x)


def print_errors(gpu: GPU, profiles: Sequence[InstructionRows]) -> None:
    """Per profile and over all; profiles of several equal stages count once."""
    heads = f"{'rows':>4} {'time MAPE':>9} {'bias':>6} {'energy':>7} {'bias':>6}  cheapest clock: emulated, measured"
    print(f"\n{'profile (emulated against measured)':45} {heads}")
    board, found = measured_board(gpu), []
    for rows in profiles:
        c = compare_instruction(board, rows)
        found.append(c)
        time_mape, energy_mape = c.mape()
        print(f"{rows.name:45} {len(c.time_s):4} {time_mape:9.1%} {c.time_error.mean():+6.1%}", end=" ")
        print(f"{energy_mape:7.1%} {c.energy_error.mean():+6.1%}", end="  ")
        print(f"{cheapest_mhz(rows, c.predicted_energy_j):5.0f} {cheapest_mhz(rows, rows.energy_j):5.0f}")
    time_error, energy_error = (
        np.abs(np.concatenate([getattr(c, name) for c in found])).mean() for name in ("time_error", "energy_error")
    )
    print(f"{'all ' + gpu.name:45} {sum(len(c.time_s) for c in found):4} {time_error:9.1%} {'':6} {energy_error:7.1%}")


def apart(rows: Sequence[InstructionRows], how: str) -> tuple[list[InstructionRows], list[InstructionRows]]:
    """Rows to fit to and rows kept apart: "clocks" every second one, "stages" the ones with the head."""
    if how == "clocks":
        given, kept = ([part(r, slice(first, None, 2)) for r in rows] for first in (0, 1))
        return given, kept
    last = [r for r in rows if r.stages[-1] == r.workload.pipeline_parallel - 1]
    return [r for r in rows if all(r is not kept for kept in last)], last


def print_constants(gpu: GPU) -> None:
    print()
    for name in (*_BOUNDS, "power__attention_joule_per_flop"):
        section, _, constant = name.partition("__")
        print(f"{gpu.name} {name:34} {getattr(getattr(gpu, section), constant):.4g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--keep-apart", choices=("clocks", "stages"))
    arguments = parser.parse_args()
    file = find_data(arguments.data)
    if file is None:
        print(f"no {INSTRUCTIONS_FILE} found: give --data DIR or set ENERGY_LIGHTNING_DATA")
        return
    profiles = load_instructions(file)
    for name in dict.fromkeys(rows.gpu for rows in profiles):
        gpu, own = GPU.load(name), [rows for rows in profiles if rows.gpu == name]
        if arguments.keep_apart:
            given, own = apart(own, arguments.keep_apart)
            gpu = fit(gpu, given)
        elif arguments.fit:
            gpu = fit(gpu, own)
            print_constants(gpu)
        print_errors(gpu, own)


if __name__ == "__main__":
    main()
