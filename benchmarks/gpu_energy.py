"""Time and energy of single partitions across SM counts, launch points and (with --allow-clocks) SM clocks.

    python benchmarks/gpu_energy.py --partitions fwd_attn           # one GPU, the running clock, loop-back collective
    torchrun --nproc-per-node 8 benchmarks/gpu_energy.py --allow-clocks --clocks 1410 1200

The order is shuffled, every window is followed by a rest. Without --allow-clocks everything runs at the clock that the
GPU chooses. With several ranks the row is rank 0's.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import gpu_common as common
import gpu_models as models
import numpy as np
import torch
import torch.distributed as dist
from gpu_devices import open_gpu

from energy_lightning.collectives import Collectives
from energy_lightning.device.nvidia import NvidiaDevice
from energy_lightning.measure import PartitionConfig, PartitionMeter, WindowSettings
from energy_lightning.types import Measurement, Schedule
from energy_lightning.workload import Partition

HEADINGS = ("Partition", "MHz", "SMs", "Launch", "Time, ms", "Energy, J", "Power, W", "C")


class BlockRunner:
    """Runs partitions of one block; see PartitionRunner."""

    def __init__(self, block: models.Block, collectives: Collectives) -> None:
        self._block, self._collectives = block, collectives

    def prepare(self, partition: Partition, schedule: Schedule | None) -> Callable[[int], None]:
        """See PartitionRunner."""
        return models.prepare(self._block, partition.key, schedule, self._collectives)

    def release(self) -> None:
        """Memory goes with the function that `prepare` gave."""


def configurations(args: argparse.Namespace, gpu: NvidiaDevice) -> list[tuple[Partition, PartitionConfig]]:
    """Everything to measure. Without --allow-clocks the clock is that of the moment, for the record."""
    clocks_mhz = args.clocks if args.allow_clocks else [gpu.frequency_mhz()]
    clocks_mhz = clocks_mhz or [gpu.frequencies_mhz[-1], gpu.frequencies_mhz[len(gpu.frequencies_mhz) * 5 // 6]]
    schedules = [(sms, point) for sms in args.sm_counts for point in (True, False)]
    found = []
    for key in args.partitions:
        partition = Partition(key, (), None, 1, True)
        points = models.LAUNCHES[key]
        choices = [
            Schedule(sms, point) for sms, overlapped in schedules for point in points if bool(point) == overlapped
        ]
        found += [(partition, PartitionConfig(key, clock, choice)) for clock in clocks_mhz for choice in choices]
    return found


def meter_of(gpu: NvidiaDevice, runner: BlockRunner, args: argparse.Namespace, device: torch.device) -> PartitionMeter:
    """A meter whose ranks act alike."""

    def largest(own: float) -> float:
        value = torch.tensor([own], dtype=torch.float64, device=device)
        if common.in_processes():
            dist.all_reduce(value, dist.ReduceOp.MAX)
        return float(value)

    settings = WindowSettings(
        window_s=args.window_s, cool_down_s=args.cool_down_s, lock_clock=args.allow_clocks and gpu.can_lock_frequency
    )
    refresh_s = gpu.counter_refresh_s if gpu.energy_source == "counter" else 0.0
    return PartitionMeter(
        gpu, runner, settings, refresh_s=refresh_s, agree=lambda own: largest(float(not own)) == 0.0, longest=largest
    )


def row_of(config: PartitionConfig, found: Measurement) -> Sequence[object]:
    """Figures of one execution; the reason where a figure is void."""
    schedule = config.schedule or Schedule()
    energy = found.invalid_reason or "no energy"
    power = "-"
    if found.energy_j is not None and found.valid:
        energy, power = f"{found.energy_j:.4g}", f"{found.energy_j / found.time_s:.0f}"
    clock, heat = found.actual_mhz or config.frequency_mhz, found.temperature_c
    launch = schedule.launch or "not overlapped"
    return config.partition, clock, schedule.sm_count, launch, f"{1e3 * found.time_s:.4g}", energy, power, heat or "-"


def main(argv: Sequence[str] | None = None) -> int:
    parser = common.parser_of(__doc__, repeats=1)
    models.add_model_options(parser)
    common.allow_clocks_option(parser)
    parser.add_argument("--partitions", nargs="+", choices=tuple(models.LAUNCHES), default=list(models.LAUNCHES))
    parser.add_argument("--sm-counts", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--clocks", type=int, nargs="+", default=None, help="MHz, with --allow-clocks")
    parser.add_argument("--window-s", type=float, default=5.0)
    parser.add_argument("--cool-down-s", type=float, default=5.0)
    args = parser.parse_args(argv)
    models.shrink(args)
    if args.smoke:
        args.window_s, args.cool_down_s, args.sm_counts, args.partitions = 0.01, 0.0, [2], ["fwd_mlp", "bwd_mlp"]
    device = common.device_of(args)
    if device is None:
        return 0
    with common.partner(args, device) as collectives, open_gpu(device) as gpu:
        runner = BlockRunner(models.make_block(args, device, collectives), collectives)
        requests = configurations(args, gpu)
        meter = meter_of(gpu, runner, args, device)
        measured = meter.measure_all(requests, np.random.default_rng(0))
        meter.close()
        rows = [row_of(config, found) for (_, config), found in zip(requests, measured, strict=True)]
        title = f"Partitions of a Llama block, {args.batch} x {args.sequence} tokens, {args.dtype}, {collectives.name}"
        common.report(title, HEADINGS, rows, args, device, notes=[f"{gpu.name}, energy: {gpu.energy_source}"])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
