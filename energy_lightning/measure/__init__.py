"""Energy windows, partition measurements, their store, and plan files (floor 3; torch is not needed)."""

from energy_lightning.measure.configuration import PartitionConfig, merge_trials
from energy_lightning.measure.energy import (
    EnergyTotal,
    WindowReading,
    integrate_power,
    sum_over_gpus,
    window_energy,
)
from energy_lightning.measure.jsonl import AppendLog, rows_up_to
from energy_lightning.measure.meter import EnergyMeter, PowerSampler, probe_refresh_s
from energy_lightning.measure.plan_file import check_plan, check_trainable, load_plan, save_plan
from energy_lightning.measure.run_key import describe_run, library_versions, run_hash
from energy_lightning.measure.runner import (
    UNREACHABLE,
    CallableRunner,
    ControlLostError,
    EmulatedRunner,
    PartitionMeter,
    PartitionRunner,
    PeerFailedError,
    Request,
)
from energy_lightning.measure.store import MeasurementStore
from energy_lightning.measure.window_settings import WindowSettings

__all__ = [
    "UNREACHABLE",
    "AppendLog",
    "CallableRunner",
    "ControlLostError",
    "EmulatedRunner",
    "EnergyMeter",
    "EnergyTotal",
    "MeasurementStore",
    "PartitionConfig",
    "PartitionMeter",
    "PartitionRunner",
    "PeerFailedError",
    "PowerSampler",
    "Request",
    "WindowReading",
    "WindowSettings",
    "check_plan",
    "check_trainable",
    "describe_run",
    "integrate_power",
    "library_versions",
    "load_plan",
    "merge_trials",
    "probe_refresh_s",
    "rows_up_to",
    "run_hash",
    "save_plan",
    "sum_over_gpus",
    "window_energy",
]
