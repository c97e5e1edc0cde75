"""How long a change of the locked SM clock takes until the GPU shows it, while it computes.

    python benchmarks/gpu_switch_latency.py --allow-clocks

It changes clocks, so it does nothing without --allow-clocks; they are given back however it ends. A rehearsal
(--device cpu --smoke) runs on an emulated NVML.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import gpu_common as common
import torch
from gpu_devices import open_gpu

from energy_lightning.device import measure_switch_time_s
from energy_lightning.device.nvidia import NvidiaDevice

HEADINGS = ("What", "Time, ms: median (IQR)")


@contextmanager
def busy(device: torch.device) -> Iterator[None]:
    """Some seconds of matrix products are under way on a GPU; on a CPU nothing is."""
    if device.type == "cuda":
        a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
        for _ in range(1000):
            a = torch.mm(a, a).clamp_(-1.0, 1.0)
    yield
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def call_times(gpu: NvidiaDevice, repeats: int) -> common.Times:
    """Of the call alone, to and fro between two clocks."""
    clocks = (gpu.frequencies_mhz[-1], gpu.frequencies_mhz[len(gpu.frequencies_mhz) * 2 // 3])
    values_s = []
    for repeat in range(repeats):
        start_s = gpu.now_s()
        gpu.lock_frequency(clocks[repeat % 2])
        values_s.append(gpu.now_s() - start_s)
    gpu.reset_frequency()
    return common.Times(tuple(values_s))


def rows_of(gpu: NvidiaDevice, args: argparse.Namespace, device: torch.device) -> list[Sequence[object]]:
    """The call, and until the clock shows, on a busy GPU."""
    with busy(device):
        calls = call_times(gpu, args.repeats)
        shown = [measure_switch_time_s(gpu) for _ in range(max(2, args.repeats // 6))]
    known = [time_s for time_s in shown if time_s is not None]
    until = common.Times(tuple(known)) if known else "no change showed"
    return [("the call returns", calls), ("the clock shows", until)]


def main(argv: Sequence[str] | None = None) -> int:
    parser = common.parser_of(__doc__, repeats=30)
    common.allow_clocks_option(parser)
    args = parser.parse_args(argv)
    if args.smoke:
        args.repeats = 4
    device = common.device_of(args)
    if device is None:
        return 0
    if not args.allow_clocks:
        print("Nothing is measured: this changes clocks, which needs --allow-clocks.")
        return 0
    with open_gpu(device) as gpu:
        if not gpu.can_lock_frequency:
            print(f"Nothing is measured: clocks may not be set ({gpu.mode_reason}).")
            return 0
        rows = rows_of(gpu, args, device)
        common.report(f"Changing the locked clock of {gpu.name}", HEADINGS, rows, args, device)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
