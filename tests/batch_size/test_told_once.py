"""Several callbacks in one Trainer tell once what each of them finds."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from recurring_trainings import JobTrainer, job

from energy_lightning.callbacks import EnergyMonitorMixin, build_callbacks
from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.power_limit import PowerLimitOptimizerMixin

OTHERS = build_callbacks(
    object, __name__, {"PowerLimitOptimizer": PowerLimitOptimizerMixin, "EnergyMonitor": EnergyMonitorMixin}
)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_that_energy_is_not_measured(order: Any, tmp_path: Path) -> None:
    made = [job(tmp_path, None, eta=0.0), OTHERS["PowerLimitOptimizer"](), OTHERS["EnergyMonitor"]()]
    trainer = JobTrainer(ScriptedDevice(), [made[index] for index in order], max_steps=20)
    trainer.call("setup", "fit")
    trainer.call("on_train_start")
    trainer.call("on_train_batch_start", None, 0)
    assert sum("energy is not measured" in line for line in trainer.lightning_module.lines) == 1
    trainer.call("teardown", "fit")
