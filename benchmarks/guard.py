"""How fast clocks and limits come back after SIGKILL, and what the watchdog costs meanwhile.

    python benchmarks/guard.py --repeats 20

A process locks the clock and sets the power limit of a GPU of the emulated NVML, which runs in a process of its own,
and is killed; the time is the emulator's, of its last change, against the kill. A real driver adds the time of its own
calls (starting NVML, resetting the clock, setting the limit). The rest is measured on this machine as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import psutil

from energy_lightning.device.nvml_emulator import EmulatedBoard, NvmlServer

LIMIT_S = 2.0

RANK = """
import sys, time
from pathlib import Path
import pynvml
from energy_lightning.device.guard import HardwareGuard

guard = HardwareGuard(Path(sys.argv[1]))
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
uuid = pynvml.nvmlDeviceGetUUID(handle)
times_s = []
for clock_mhz in (1005,) * 1001:
    start_s = time.perf_counter()
    with guard.changing(uuid, "sm_clock", None):
        recorded_s = time.perf_counter() - start_s
        pynvml.nvmlDeviceSetGpuLockedClocks(handle, clock_mhz, clock_mhz)
        changed_s = time.perf_counter()
    times_s.append(recorded_s + time.perf_counter() - changed_s)
with guard.changing(uuid, "power_limit", 250.0) as change:
    pynvml.nvmlDeviceSetPowerManagementLimit(handle, 300_000)
    change.applied = 300.0
print(times_s[0], sorted(times_s[1:])[500], flush=True)
time.sleep(600.0)
"""


def watchdogs(socket: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.cmdline()[-1:] and process.cmdline()[-1].endswith("device/watchdog.py"):
                found += [process] if socket in process.environ().values() else []
        except psutil.Error:
            continue
    return found


def measure(server: NvmlServer, folder: str, idle_s: float) -> dict[str, float]:
    """One job that is killed; `idle_s`: how long the watchdog is watched before."""
    command = [sys.executable, "-c", RANK, folder]
    with subprocess.Popen(command, env=server.environment(), stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        first_s, later_s = map(float, rank.stdout.readline().split())
        (watchdog,) = watchdogs(str(server.socket_path))
        time.sleep(0.5)  # it loads what it needs
        before, switches = watchdog.cpu_times(), watchdog.num_ctx_switches()
        time.sleep(idle_s)
        after = watchdog.cpu_times()
        woken = watchdog.num_ctx_switches().voluntary - switches.voluntary
        memory = watchdog.memory_full_info()
        died_s = time.monotonic()
        rank.send_signal(signal.SIGKILL)
    while (state := server.state(0)).locked_mhz is not None or state.power_limit_w != 250.0:
        time.sleep(0.002)
    restored_s = server.state(0).sets[-1].time_s - died_s
    watchdog.wait(10.0)
    return {
        "first_s": first_s,
        "later_s": later_s,
        "restored_s": restored_s,
        "gone_s": time.monotonic() - died_s,
        "cpu_s": after.user + after.system - before.user - before.system,
        "woken": float(woken),
        "rss_mb": memory.rss / 1e6,
        "uss_mb": memory.uss / 1e6,
        "cpu_start_s": before.user + before.system,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20, help="jobs that are killed")
    parser.add_argument("--idle-s", type=float, default=2.0, help="how long each watchdog is watched")
    parser.add_argument("--json", action="store_true", help="print every job's numbers")
    arguments = parser.parse_args()
    with NvmlServer([EmulatedBoard(power_limit_w=250.0)]) as server, tempfile.TemporaryDirectory() as folder:
        runs = [measure(server, folder, arguments.idle_s) for _ in range(arguments.repeats)]
    if arguments.json:
        print(json.dumps(runs))
    columns = {name: sorted(run[name] for run in runs) for name in runs[0]}
    load, processors = os.getloadavg()[0], os.cpu_count()
    print(f"{arguments.repeats} jobs killed; emulated NVML; load {load:.1f} on {processors} processors")
    rows = [
        ("clock and limit back after SIGKILL, ms", "restored_s", 1e3, f"limit {LIMIT_S * 1e3:.0f}"),
        ("watchdog gone after SIGKILL, ms", "gone_s", 1e3, ""),
        ("first change (starts the watchdog, writes the record), ms", "first_s", 1e3, ""),
        ("a later change of the clock, beside the driver's call, us", "later_s", 1e6, ""),
        ("CPU time of the watchdog's start, ms", "cpu_start_s", 1e3, ""),
        (f"CPU time in {arguments.idle_s:g} s of waiting, ms", "cpu_s", 1e3, ""),
        (f"times woken in {arguments.idle_s:g} s of waiting", "woken", 1.0, ""),
        ("memory of the watchdog, MB resident", "rss_mb", 1.0, ""),
        ("memory of the watchdog, MB its own", "uss_mb", 1.0, ""),
    ]
    print(f"{'':60s} {'median':>9s} {'worst':>9s}")
    for title, name, factor, note in rows:
        median, worst = statistics.median(columns[name]) * factor, columns[name][-1] * factor
        print(f"{title:60s} {median:9.3g} {worst:9.3g}  {note}")
    return int(columns["restored_s"][-1] > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
