"""A whole profiling, search and plan on devices whose clock is wall time: two ranks on an emulated NVML, a CPU as GPU.

Time and energy mean nothing here; that everything runs, agrees and is given back does.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import strategy_cases as cases
import torch.distributed as dist
from distributed_helpers import run_checks
from strategy_checks import ROWS_PER_STEP, fit

from energy_lightning import KareusStrategy
from energy_lightning.device.nvml_emulator import EmulatedBoard, NvmlServer
from energy_lightning.measure import load_plan

CLOCKS_MHZ = (1410, 1200)
NUM_STEPS = 4
OPTIONS: dict[str, Any] = {
    "PartitionProfiler": {
        "warmup_steps": 1,
        "measurements_per_step": 1000,
        "window_s": 0.01,
        "cool_down_s": 0.0,
        "max_fraction": 1.0,
    },
    "FrontierOptimizer": {
        "frequencies_mhz": CLOCKS_MHZ,
        "sizes": {"initial": 3, "batch": 1, "num_batches": 1},
        "passes": "random",
    },
}


def _check_profiling(folder: Path, options: dict[str, Any], group: dist.ProcessGroup) -> None:
    model, rows = cases.tiny_model("llama"), cases.Rows("llama", NUM_STEPS * ROWS_PER_STEP)
    expected = cases.plain_training(model, rows, batch_size=ROWS_PER_STEP, num_steps=NUM_STEPS, optimizer_name="sgd")
    with cases.as_launched():
        strategy = KareusStrategy(
            device="nvidia", output_dir=folder, callback_options=OPTIONS, bucket_cap_mb=0.01, **options
        )
        trainer = fit(model, rows, strategy, optimizer="sgd")
    (optimizer,) = [callback for callback in trainer.callbacks if hasattr(callback, "outcome")]
    (profiler,) = [callback for callback in trainer.callbacks if hasattr(callback, "num_measured")]
    assert trainer.global_step == NUM_STEPS
    cases.assert_same_weights(model.state_dict(), expected.state_dict(), 1e-4)  # measuring leaves no trace
    plans: list[Any] = [None, None]
    dist.all_gather_object(plans, optimizer.plan, group=group)
    assert plans[0] is not None
    assert plans[0] == plans[1] == load_plan(folder / "plan.yaml")
    counts: list[Any] = [None, None]
    dist.all_gather_object(counts, profiler.num_measured, group=group)
    assert counts[0] == counts[1] >= 16
    assert strategy.partition_runner is None  # closed with the fit


@pytest.mark.distributed
def test_two_ranks_profile_search_and_train_by_the_plan_and_give_the_clocks_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_python: str
) -> None:
    boards = [EmulatedBoard(counter_refresh_s=1e-3, clock_lag_s=0.0, locked_mhz=None) for _ in range(2)]
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    jobs = {
        "tensor parallel": {"tensor_parallel_size": 2, "activation_checkpointing": True},
        "data parallel": {"tensor_parallel_size": 1},
    }
    for name in jobs:
        (tmp_path / name).mkdir()
    checks = {name: partial(_check_profiling, tmp_path / name, options) for name, options in jobs.items()}
    with NvmlServer(boards) as server:
        for index in range(2):
            server.load(index, 1.0)
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        failures = run_checks(checks, num_processes=2, python=quick_python)
        assert not failures, "\n".join(failures.values())
        states = [server.state(index) for index in range(2)]
    assert [state.locked_mhz for state in states] == [None, None]
    for state in states:
        locked = {call.arguments for call in state.sets if call.function == "nvmlDeviceSetGpuLockedClocks"}
        assert {(clock, clock) for clock in CLOCKS_MHZ} <= locked
    _check_rows(tmp_path / "tensor parallel", {"rec_attn", "rec_mlp_alone", "fwd_edge", "optimizer.sequential"})
    _check_rows(tmp_path / "data parallel", {"grad_bucket.sequential", "fwd_attn.sequential", "bwd_rest.sequential"})


def _check_rows(folder: Path, expected: set[str]) -> None:
    rows = [json.loads(line) for line in (folder / "measurements.jsonl").read_text().splitlines()]
    assert expected <= {row["partition"] for row in rows}
    text = (folder / "plan.yaml").read_text()
    assert "backend: gloo" in text
    assert "emulated NVML" in text  # no figure of it passes for a measurement
