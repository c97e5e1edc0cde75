"""What is accounted for on an emulated device while the real model trains."""

import logging
from typing import Any

import pytest
import strategy_cases as cases
import torch
from torch.utils.data import DataLoader

from energy_lightning.device import EmulatedDevice
from energy_lightning.emulation import GPU, emulate_iteration
from energy_lightning.lightning import KareusStrategy
from energy_lightning.strategy_parts.job import Job
from energy_lightning.types import DeviceError, PhasePlan, Plan
from energy_lightning.workload import Workload

GPU_NAME = "a100-sxm4-40gb"
BATCH = {"input_ids": torch.zeros(4, 16, dtype=torch.long)}


def job_of(workload: Workload, *, rehearsing: bool) -> Job:
    device = EmulatedDevice(GPU.load(GPU_NAME), workload)
    return Job(workload, rehearsing=rehearsing, device=device, speaks=True)


def test_first_batch_completes_the_models_own_workload_only() -> None:
    workload = Workload.preset("llama3.2_3b", microbatch_size=1, sequence_length=32)
    own, rehearsed = job_of(workload, rehearsing=False), job_of(workload, rehearsing=True)
    assert (own.workload_complete, rehearsed.workload_complete) == (False, True)
    for job in (own, rehearsed):
        job.observe_batch(BATCH)
        job.observe_batch({"input_ids": torch.zeros(2, 2, dtype=torch.long)})  # a short last batch changes nothing
    assert own.workload == workload.with_sizes(microbatch_size=4, sequence_length=16)
    assert isinstance(own.device, EmulatedDevice)
    assert own.device.workload == own.workload
    assert rehearsed.workload == workload


def test_batch_without_tokens_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    job = job_of(Workload.preset("llama3.2_3b"), rehearsing=False)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            job.observe_batch(torch.zeros(2, 3, 4))
    assert sum("no token ids" in record.message for record in caplog.records) == 1


def test_several_optimizers_end_one_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    job, ends = job_of(Workload.preset("llama3.2_3b"), rehearsing=True), []
    monkeypatch.setattr(job.device, "run_iteration_end", ends.append)
    for _ in range(2):
        job.begin_batch()
        job.account_iteration_end()
        job.account_iteration_end()
    assert len(ends) == 2


def test_failing_accounting_is_said_once_and_stops(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job, calls = job_of(Workload.preset("llama3.2_3b"), rehearsing=True), []

    def fail(phase: PhasePlan) -> None:
        calls.append(phase)
        raise DeviceError("the clock stands still")

    monkeypatch.setattr(job.device, "run_phase", fail)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            job.account_forward()
            job.account_backward()
    assert len(calls) == 1
    assert [record.message for record in caplog.records if "training goes on" in record.message] != []


@pytest.mark.parametrize("error", [DeviceError("no permission"), ImportError("no pynvml")])
def test_auto_goes_on_where_the_gpu_cannot_be_opened_and_a_named_device_does_not(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from energy_lightning.strategy_parts import job as module

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(module, "open_device", fail)
    arguments: dict[str, Any] = {"own": Workload.preset("llama3.2_3b"), "torch_device": torch.device("cpu")}
    job = Job.open(KareusStrategy(device="auto").settings, **arguments, speaks=True)
    assert job.device is None
    assert str(error) in caplog.text
    with pytest.raises(type(error), match=str(error)):
        Job.open(KareusStrategy(device="nvidia").settings, **arguments, speaks=True)


def test_close_gives_the_device_back_once() -> None:
    job = job_of(Workload.preset("llama3.2_3b"), rehearsing=True)
    job.close()
    job.close()
    job.account_forward()  # nothing to account on any more
    assert job.device is None


def test_emulated_time_of_a_run_is_that_of_its_iterations() -> None:
    """Three optimizer steps of two microbatches, the model's own shape, no profiling."""
    rows = cases.Rows("bert", 24)
    seen: dict[str, Any] = {}
    strategy = KareusStrategy(plan=Plan.sequential(), device="emulated", gpu=GPU_NAME)
    module = cases.lightning_module(cases.tiny_model("bert"))

    def remember() -> None:
        assert strategy.device is not None
        seen.update(workload=strategy.workload, time_s=strategy.device.now_s(), energy_j=strategy.device.energy_j())

    module.on_train_end = remember
    with cases.alone():
        trainer = cases.trainer(strategy=strategy, accumulate_grad_batches=2)
        trainer.fit(module, DataLoader(rows, batch_size=4))
    workload = seen["workload"]
    assert (workload.microbatch_size, workload.sequence_length, workload.num_microbatches) == (4, 6, 2)
    iteration = emulate_iteration(workload, GPU.load(GPU_NAME), Plan.sequential())
    assert seen["time_s"] == pytest.approx(3 * iteration.time_s, rel=1e-6)
    assert seen["energy_j"] == pytest.approx(3 * iteration.energy_per_gpu_j, rel=0.2)  # the device is warmer or colder
    assert strategy.device is None
