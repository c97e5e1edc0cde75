"""The options of `KareusStrategy`, checked once."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from energy_lightning.collectives import check_backend_name
from energy_lightning.device import DEVICES
from energy_lightning.emulation import GPU
from energy_lightning.measure import load_plan
from energy_lightning.types import Budget, DeviceError, Plan, StrategyError
from energy_lightning.workload import Workload

DEFAULT_GPU = "a100-sxm4-40gb"
_KINDS = {"gpu": GPU, "workload": Workload, "plan": Plan}


@dataclass(frozen=True, slots=True, kw_only=True)
class KareusSettings:
    """What the user asked for.

    Attributes:
        budget: what may be given for less energy.
        tensor_parallel_size, data_parallel_size: the device mesh; "auto" takes the devices that are left.
        device: "auto", or another name that `open_device` knows.
        gpu: what an emulated device plays.
        workload: the job to account for instead of the model's own shape (a rehearsal), or None.
        activation_checkpointing: recompute the blocks' activations in backward.
        collectives: "auto", or another name that `select_collectives` knows.
        plan: the plan to use instead of profiling; None: profile and search.
        output_dir: folder of measurements and plan; None: `<default_root_dir>/kareus`.
        callback_options: default callback's name -> arguments of its constructor.
    """

    budget: Budget
    tensor_parallel_size: int
    data_parallel_size: int | Literal["auto"]
    device: str
    gpu: GPU
    workload: Workload | None
    activation_checkpointing: bool
    collectives: str
    plan: Plan | None
    output_dir: Path | None
    callback_options: Mapping[str, Mapping[str, Any]]

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise DeviceError(f"unknown device {self.device!r}; known: {', '.join(DEVICES)}")
        check_backend_name(self.collectives)
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise StrategyError(f"{name} must be a {kind.__name__}, its name or file, or None, got {value!r}")
        for name in ("tensor_parallel_size", "data_parallel_size"):
            size = getattr(self, name)
            if size == "auto" and name == "data_parallel_size":
                continue
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                allowed = "a whole number >= 1" + (" or 'auto'" if name == "data_parallel_size" else "")
                raise StrategyError(f"{name} must be {allowed}, got {size!r}")

    @classmethod
    def parse(
        cls,
        *,
        budget: Budget | str | Mapping[str, Any] | None,
        gpu: GPU | str,
        workload: Workload | str | None,
        plan: Plan | str | Path | None,
        output_dir: str | Path | None,
        callback_options: Mapping[str, Mapping[str, Any]] | None,
        **others: Any,
    ) -> KareusSettings:
        """From the convenient forms users write: names for budget, GPU and workload, paths as strings.

        Raises the subclass of EnergyLightningError that names what is unknown, unreadable or out of range.
        """
        return cls(
            budget=Budget.parse(budget),
            gpu=GPU.load(gpu) if isinstance(gpu, str) else gpu,
            workload=Workload.preset(workload) if isinstance(workload, str) else workload,
            plan=load_plan(plan) if isinstance(plan, (str, Path)) else plan,
            output_dir=None if output_dir is None else Path(output_dir),
            callback_options=dict(callback_options or {}),
            **others,
        )


def check_ddp_options(options: Mapping[str, Any], strategy_class: type) -> None:
    """Raise StrategyError for an option that neither the strategy nor DistributedDataParallel knows.

    Lightning hands unknown options to DistributedDataParallel, which is built only when training starts.
    """
    from torch.nn.parallel import DistributedDataParallel

    known = {
        name
        for cls in (*strategy_class.__mro__, DistributedDataParallel)
        if "__init__" in vars(cls) and cls is not object
        for name, parameter in inspect.signature(vars(cls)["__init__"]).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    } - {"self", "module", "device_ids", "output_device", "process_group"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise StrategyError(f"KareusStrategy has no option {unknown[0]!r}; known: {', '.join(sorted(known))}")
