"""PowerLimitOptimizer in real trainings: two processes on emulated NVIDIA boards, deaths, both packages, kareus."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

import energy_lightning
from energy_lightning.device.nvml_emulator import EmulatedBoard, NvmlServer
from energy_lightning.recurring import BatchSizeOptimizer
from energy_lightning.workload import Workload

SCRIPT = Path(__file__).with_name("limited_training.py")
EARLIER_W = 350.0


@pytest.fixture
def server() -> Iterator[NvmlServer]:
    boards = [
        EmulatedBoard(uuid=f"GPU-{name * 8}-1", power_limit_w=EARLIER_W, counter_refresh_s=0.001) for name in "ab"
    ]
    with NvmlServer(boards) as running:
        for index in range(2):
            running.load(index, 1.0)
        yield running


def limits_w(server: NvmlServer) -> list[float]:
    return [server.state(index).power_limit_w for index in range(2)]


def test_two_processes_agree_and_after_a_kill_the_earlier_limits_are_back(
    tmp_path: Path, server: NvmlServer, quick_python: str
) -> None:
    """Under the other Lightning package, and as a recurring job, too: only one launch."""
    environment = dict(server.environment()) | {"XDG_STATE_HOME": str(tmp_path / "state"), "OMP_NUM_THREADS": "1"}
    command = [quick_python, str(SCRIPT), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    rows = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert rows[0] == {**rows[1], "rank": 0}
    assert [limit_w for limit_w, _, _ in rows[0]["profile"]] == [400.0, 300.0, 150.0]
    assert rows[0]["limit_w"] in (400.0, 300.0, 150.0)
    assert rows[0]["batch_sizes"] == [4]
    job = BatchSizeOptimizer.of_store(tmp_path / "job.sqlite")  # rank 0 alone wrote to it
    assert [(run.batch_size, run.state, run.energy_j) for run in job.runs()] == [(4, "running", None)]
    assert job.cost.max_power_w == 800.0  # two boards of 400 W
    for index in range(2):  # each rank set its own GPU
        calls = [call for call in server.state(index).sets if call.function == "nvmlDeviceSetPowerManagementLimit"]
        asked_w = [call.arguments[-1] / 1e3 for call in calls if call.code == 0]
        tried_w = [limit_w for limit_w in asked_w if limit_w != EARLIER_W]  # that one asks for permission
        assert tried_w == [400.0, 300.0, 150.0] + [rows[0]["limit_w"]] * (rows[0]["limit_w"] != 150.0)
    deadline_s = time.monotonic() + 30.0
    while limits_w(server) != [EARLIER_W, EARLIER_W] and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert limits_w(server) == [EARLIER_W, EARLIER_W]
    rows = [json.loads(line) for line in (tmp_path / "power_limits.jsonl").read_text().splitlines()]
    assert [row["emulated"] for row in rows] == [True] * len(rows) != []  # the boards are


class Regression(pl.LightningModule):
    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        self.layer, self.fails_at = torch.nn.Linear(4, 1), fails_at

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        if self.global_step == self.fails_at:
            raise RuntimeError("the user's own bug")
        return self.layer(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)


def train(folder: Path, strategy: Any, callbacks: list[Any], module: Regression | None = None, steps: int = 60) -> Any:
    trainer = pl.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=1,
        max_steps=steps,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
    )
    rows = torch.randn(4 * steps, 4, generator=torch.Generator().manual_seed(0))
    trainer.fit(module or Regression(), torch.utils.data.DataLoader(rows, batch_size=4))
    return trainer


def workload() -> Workload:
    return Workload.preset("llama3.2_1b_tp8", microbatch_size=4, sequence_length=2048)


def sweep(**options: Any) -> Any:
    given = {"objective": "energy", "limits_w": [400.0, 250.0, 150.0], "warmup_steps": 1, "profile_steps": 3}
    return energy_lightning.PowerLimitOptimizer(**{**given, **options})


def test_kareus_settles_the_limit_first_and_profiles_partitions_under_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {
        "PartitionProfiler": {"warmup_steps": 1, "max_fraction": 0.5},
        "FrontierOptimizer": {"frequencies_mhz": [1410, 990], "sizes": {"initial": 4, "batch": 4, "num_batches": 1}},
    }
    strategy = energy_lightning.KareusStrategy(
        workload="llama3.2_1b_tp8", device="emulated", callback_options=options, output_dir=tmp_path
    )
    seen: list[tuple[float, int]] = []

    class Watch(pl.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            profiler = next(c for c in trainer.callbacks if isinstance(c, energy_lightning.PartitionProfiler))
            seen.append((trainer.strategy.device.power_limit_w, profiler.num_measured))

    callback = sweep()
    train(tmp_path, strategy, [callback, Watch()])
    settled_w = callback.power_limit_w
    assert settled_w in (400.0, 250.0, 150.0)
    sweeping = [limit_w for limit_w, num_measured in seen if num_measured == 0]
    assert {400.0, 250.0, 150.0} <= set(sweeping)
    assert {limit_w for limit_w, num_measured in seen if num_measured > 0} == {settled_w}
    assert (tmp_path / "power_limits.jsonl").is_file()
    said = capsys.readouterr().out
    assert said.index("trying 3 power limits") < said.index("power limit 1")
    assert "(EMULATED)" in said


def test_the_monitor_and_the_sweep_use_one_device(tmp_path: Path) -> None:
    monitor, callback = energy_lightning.EnergyMonitor(workload=workload()), sweep()
    train(tmp_path, "auto", [callback, monitor])
    highest = callback.profile[0]
    alone = sweep(workload=workload(), profile=tmp_path / "other.jsonl")
    train(tmp_path, "auto", [alone])
    assert highest.time_s == pytest.approx(alone.profile[0].time_s, rel=1e-6)  # accounted once, not twice
    assert monitor.num_steps == 60


def test_the_users_own_error_passes_and_the_device_is_given_back(tmp_path: Path) -> None:
    monitor = energy_lightning.EnergyMonitor(workload=workload())
    devices: list[Any] = []

    class Keep(pl.Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            devices.append(monitor.monitored.device)

    with pytest.raises(RuntimeError, match="own bug"):
        train(tmp_path, "auto", [sweep(), Keep(), monitor], Regression(fails_at=5))
    assert devices[0].power_limit_w == devices[0].gpu.power_limit_w
