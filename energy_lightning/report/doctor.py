"""What a machine can do, as `energy-lightning doctor` found it: the facts, and the tables that show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from energy_lightning.types import DeviceMode, EnergySource

if TYPE_CHECKING:
    from energy_lightning.collectives import CollectivesChoice

_PERMITTED = {True: "yes", False: "no", None: "not asked"}
_MODES: dict[DeviceMode, str] = {"full": "full control", "measure-only": "measuring only", "time-only": "time only"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One GPU of the machine.

    Attributes:
        index, uuid, name: as the driver has them.
        visible_as: the number by which CUDA knows it, whether or not this torch has CUDA; None: hidden by
            CUDA_VISIBLE_DEVICES.
        is_mig: cut into slices, or seen as one.
        emulated: an emulated NVML answers: nothing here is hardware.
        model: packaged emulated GPU of the same name, or None.
        energy_source, energy_note: where energy comes from, and why it is not the counter.
        counter_refresh_s: how often the counter moves; None where there is none.
        clocks_mhz: lowest and highest SM clock that can be asked for; None where the driver does not list them.
        power_limit_w, power_limit_range_w: in force, and what may be set.
        temperature_c: of the chip.
        can_lock_frequency, can_set_power_limit: whether this process may; None: not found out, another job has the GPU.
        control: who sets them ("through NVML", "through zeusd at ..."), what is missing, or who has the GPU.
        left_behind: commands that undo what a dead job left; the next job on this GPU undoes it by itself.
        mode: what a job here would run in.
    """

    index: int
    uuid: str
    name: str
    visible_as: int | None
    is_mig: bool
    emulated: bool
    model: str | None
    energy_source: EnergySource
    energy_note: str
    counter_refresh_s: float | None
    clocks_mhz: tuple[int, int] | None
    power_limit_w: float | None
    power_limit_range_w: tuple[float, float] | None
    temperature_c: float | None
    can_lock_frequency: bool | None
    can_set_power_limit: bool | None
    control: str
    left_behind: tuple[str, ...]
    mode: DeviceMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What the doctor found. Nothing was changed to find it.

    Attributes:
        versions: of what matters, "" where it is missing; "driver" and "CUDA build of torch" among them.
        visible: CUDA_VISIBLE_DEVICES, or None where it is not set.
        gpus: of the machine, the hidden ones too.
        faults: what could not be found out, one line each.
        collectives: backends, the preferred one first.
        used_device, used_collectives: what a job with default settings takes, and why, one line each.
        emulated: whether its time and energy would be a model's.
        mode: what it would run in; None on an emulated GPU, and on one that cannot be measured.
        mode_with_nvidia: what a job with device=nvidia would run in, where one with default settings takes an emulated
            GPU; None: it would not start.
        permit: the command that permits more, or None where nothing is missing.
    """

    versions: Mapping[str, str]
    visible: str | None
    gpus: tuple[GpuFacts, ...]
    faults: tuple[str, ...]
    collectives: tuple[CollectivesChoice, ...]
    used_device: str
    used_collectives: str
    emulated: bool
    mode: DeviceMode | None
    mode_with_nvidia: DeviceMode | None = None
    permit: str | None = None
    state_dir: str = field(default="")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def print_examination(console: Console, found: Examination) -> None:
    """The tables, and below them what a job would do and the one command that permits more."""
    for gpu in found.gpus:
        console.print(_gpu_table(gpu, has_cuda=not found.emulated))
    if not found.gpus:
        console.print("No NVIDIA GPU.", style="bold")
    for fault in found.faults:
        _line(console, f"! {fault}")
    console.print(_collectives_table(found))
    console.print(_versions_table(found))
    _line(console, f"A job uses: {found.used_device}")
    _line(console, f"Collectives: {found.used_collectives}")
    if found.mode is not None:
        _line(console, f"Mode: {_MODES[found.mode]}")
    if found.mode_with_nvidia is not None:
        on = " on the EMULATED NVML" if any(gpu.emulated for gpu in found.gpus) else ""
        _line(console, f"Mode with device=nvidia{on}: {_MODES[found.mode_with_nvidia]}")
    if found.permit is not None:
        _line(console, "To permit more, an administrator runs:")
        _line(console, f"  {found.permit}")


def _line(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD)


def _gpu_table(gpu: GpuFacts, *, has_cuda: bool) -> Table:
    seen = f"cuda:{gpu.visible_as}" if has_cuda else "not seen by torch"
    seen = "hidden by CUDA_VISIBLE_DEVICES" if gpu.visible_as is None else seen
    emulated = ", EMULATED NVML: no hardware" if gpu.emulated else ""
    table = _table(f"GPU {gpu.index}: {gpu.name}, {seen}{emulated}")
    table.add_column("What")
    table.add_column("Here", overflow="fold")
    rows = {
        "uuid": gpu.uuid + (" (MIG)" if gpu.is_mig else ""),
        "energy": _energy(gpu),
        "SM clocks": "not listed by the driver" if gpu.clocks_mhz is None else "{} to {} MHz".format(*gpu.clocks_mhz),
        "power limit": _limit(gpu),
        "temperature": "not told" if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} C",
        "lock SM clocks": _PERMITTED[gpu.can_lock_frequency],
        "set power limit": _PERMITTED[gpu.can_set_power_limit],
        "control": gpu.control or "nothing is missing",
        "model of it": gpu.model or "none packaged: searches start without expectations",
    }
    if gpu.left_behind:
        rows["left by a dead job"] = "undone when the next job starts, or by hand: " + "; ".join(gpu.left_behind)
    for what, here in rows.items():
        table.add_row(what, Text(here))
    return table


def _energy(gpu: GpuFacts) -> str:
    shared = " of the whole GPU" if gpu.is_mig else ""
    if gpu.energy_source == "counter":
        refresh_s = gpu.counter_refresh_s or 0.0
        return f"counter{shared}, moves every {1e3 * refresh_s:.0f} ms"
    if gpu.energy_source == "power":
        return f"integrated from power readings{shared}: {gpu.energy_note}"
    return gpu.energy_note or "none"


def _limit(gpu: GpuFacts) -> str:
    if gpu.power_limit_w is None:
        return "none"
    settable = gpu.power_limit_range_w
    return f"{gpu.power_limit_w:g} W" + (f", {settable[0]:g} to {settable[1]:g} W" if settable is not None else "")


def _collectives_table(found: Examination) -> Table:
    table = _table("Collectives, the preferred first")
    for heading in ("Backend", "Version", "SM count", "Usable"):
        table.add_column(heading, no_wrap=True)
    table.add_column("Why not, or its limits", overflow="fold")
    for choice in found.collectives:
        table.add_row(
            choice.name,
            choice.version or "-",
            "yes" if choice.supports_sm_count else "no",
            "yes" if choice.usable else "no",
            Text("; ".join(choice.reasons or choice.limits)),  # not markup: "energy-lightning[nccl]"
        )
    return table


def _versions_table(found: Examination) -> Table:
    table = _table("Versions")
    table.add_column("What")
    table.add_column("Version")
    for what, version in found.versions.items():
        table.add_row(what, version or "missing")
    return table
