"""Run a command on emulated GPUs: `python -m energy_lightning.device.nvml_emulator --permissions none -- COMMAND`.

For rehearsing what a job does on a machine where it may not control the GPUs, has no energy counter, shares a sliced
GPU, or is refused half-way. Ends as the command ends; before and afterwards says what the GPUs are set to.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from energy_lightning.device.nvml_emulator.board import PERMISSIONS, EmulatedBoard
from energy_lightning.device.nvml_emulator.client.codes import Code
from energy_lightning.device.nvml_emulator.server import NvmlServer
from energy_lightning.emulation import GPU
from energy_lightning.types import DeviceError


def main(arguments: Sequence[str]) -> int:
    """Exit status of the command; 2 where the arguments describe no machine, 127 where the command cannot start."""
    options = _parser().parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        print("give the command to run after --", file=sys.stderr)
        return 2
    try:
        board = _board(options)
        server = NvmlServer([board] * options.gpus)
    except (DeviceError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    with server:
        for index in range(options.gpus):
            server.load(index, options.load)
        _say(server, f"EMULATED NVML: {options.gpus} x {board.name}; nothing below is measured")
        try:
            status = _run(command, server.environment())
        except OSError as error:
            print(f"{command[0]} cannot be started: {error.strerror}; give a program on the PATH", file=sys.stderr)
            return 127  # as a shell says it
        _say(server, f"EMULATED NVML: the command ended with {status}")
    return status if status >= 0 else 128 - status  # ended by a signal: as a shell says it


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Exit status of `command`; Ctrl-C is for the command, which may have clocks to give back."""
    before = signal.signal(signal.SIGINT, lambda number, frame: None)  # a handler, unlike SIG_IGN, is not inherited
    try:
        return subprocess.Popen(command, env=environment).wait()
    finally:
        signal.signal(signal.SIGINT, before)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m energy_lightning.device.nvml_emulator",
        description="Run a command on emulated GPUs (under NVML).",
    )
    known = ", ".join(PERMISSIONS)
    parser.add_argument("--gpu", default="a100-sxm4-40gb", help=f"GPU model: {', '.join(GPU.names())}")
    parser.add_argument("--gpus", type=int, default=1, help="how many")
    parser.add_argument(
        "--load", type=float, default=0.8, help="how busy they are, 0 to 1 (the command's work is not seen)"
    )
    parser.add_argument("--permissions", default="all", help=f"what may be set: all, none, or of {known}, with commas")
    parser.add_argument("--no-counter", action="store_true", help="boards without the energy counter")
    parser.add_argument("--slices", type=int, default=0, help="MIG slices of the GPU (one GPU only)")
    parser.add_argument("--power-limit", type=float, metavar="W", help="power limit in force before the command")
    parser.add_argument("--refuse-after", type=int, metavar="N", help="locking clocks is refused after N times")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- and the command")
    return parser


def _board(options: argparse.Namespace) -> EmulatedBoard:
    if options.slices and options.gpus > 1:
        raise ValueError(f"--slices {options.slices} goes with one GPU, got --gpus {options.gpus}")
    if not (options.gpus >= 1 and 0 <= options.slices <= 7):
        raise ValueError(f"give --gpus >= 1 and --slices from 0 to 7, got {options.gpus} and {options.slices}")
    if not 0.0 <= options.load <= 1.0:
        raise ValueError(f"give --load from 0 to 1, got {options.load:g}")
    if options.refuse_after is not None and options.refuse_after < 0:
        raise ValueError(f"give --refuse-after 0 or more, got {options.refuse_after}")
    words: dict[str, tuple[str, ...]] = {"all": PERMISSIONS, "none": ()}
    permissions = words.get(options.permissions, tuple(options.permissions.split(",")))
    if not set(permissions) <= set(PERMISSIONS):
        known = ", ".join(PERMISSIONS)
        raise ValueError(f"--permissions {options.permissions}: give all, none, or of {known}, with commas")
    lock = "nvmlDeviceSetGpuLockedClocks"
    return EmulatedBoard(
        gpu=options.gpu,
        permissions=permissions,
        has_counter=not options.no_counter,
        mig_uuids=tuple(f"MIG-00000000-0000-0000-0000-{part:012d}" for part in range(options.slices)),
        power_limit_w=options.power_limit,
        fail_after={} if options.refuse_after is None else {lock: (options.refuse_after, int(Code.NO_PERMISSION))},
    )


def _say(server: NvmlServer, headline: str) -> None:
    lines = [headline]
    for board in server.boards:
        state = board.state
        locked = f"locked to {'-'.join(map(str, state.locked_mhz))} MHz" if state.locked_mhz else "clocks not locked"
        lines.append(f"  {state.uuid}: {locked}, limit {state.power_limit_w:g} W, {len(state.sets)} control calls")
    print("\n".join(lines), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
