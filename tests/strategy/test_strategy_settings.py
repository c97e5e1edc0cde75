"""Settings that are refused when the strategy or the Trainer is made, in one process and without training."""

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import strategy_cases as cases
from torch.utils.data import DataLoader

from energy_lightning.collectives import CollectivesError
from energy_lightning.lightning import EnergyMonitor, KareusStrategy
from energy_lightning.types import (
    BudgetError,
    DeviceError,
    EnergyLightningError,
    PlanError,
    StrategyError,
    WorkloadError,
)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tensor_parallel_size": 0}, StrategyError, "tensor_parallel_size must be a whole number >= 1, got 0"),
        ({"tensor_parallel_size": True}, StrategyError, "got True"),
        ({"tensor_parallel_size": "auto"}, StrategyError, "tensor_parallel_size must be a whole number"),
        ({"data_parallel_size": -2}, StrategyError, "or 'auto', got -2"),
        ({"device": "abacus"}, DeviceError, "'abacus'; known: auto, emulated"),
        ({"collectives": "mpi"}, CollectivesError, "'mpi'; known: auto, mscclpp, nccl4py, nccl_capped, nccl, gloo"),
        ({"gpu": "abacus"}, DeviceError, "a100-sxm4-40gb"),
        ({"workload": "llama9"}, WorkloadError, "llama9.*known: .*llama3.2_3b"),
        ({"budget": "cheap"}, BudgetError, "'cheap'; known: .*max_slowdown"),
        ({"plan": "/nowhere/plan.yaml"}, PlanError, "/nowhere/plan.yaml"),
        ({"callback_options": {"Profiler": {}}}, StrategyError, "'Profiler'.*PartitionProfiler"),
        ({"callback_options": {"PartitionProfiler": {"windows": 1}}}, StrategyError, "'windows'; known: .*window_s"),
        ({"plan": 3}, StrategyError, "plan must be a Plan, .* got 3"),
        ({"workload": 3}, StrategyError, "workload must be a Workload, .* got 3"),
        ({"bucket_cap_md": 1}, StrategyError, "'bucket_cap_md'; known: .*bucket_cap_mb"),
    ],
)
def test_refused_at_once(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"(?s){message}"):
        KareusStrategy(**options)


def test_options_of_ddp_pass() -> None:
    strategy = KareusStrategy(find_unused_parameters=True, start_method="spawn", process_group_backend="gloo")
    assert strategy._ddp_kwargs["find_unused_parameters"]


def test_strategy_of_the_other_package_says_which_import_is_right() -> None:
    from energy_lightning.pytorch_lightning import KareusStrategy as Other

    with pytest.raises(
        ValueError, match=r"made for Trainers of pytorch_lightning.*lightning.pytorch take energy_light"
    ):
        cases.trainer(strategy=Other())


def test_callback_of_the_other_package_says_which_import_is_right() -> None:
    from energy_lightning.pytorch_lightning import EnergyMonitor as Other
    from energy_lightning.strategy_parts.default_callbacks import add_missing_callbacks

    class FakeTrainer:
        callbacks = (Other(),)

    with pytest.raises(StrategyError, match=r"import EnergyMonitor from energy_lightning\.lightning"):
        add_missing_callbacks(FakeTrainer(), KareusStrategy.callback_types, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_averaging_of_whole_weights_is_refused_where_they_are_sharded(package: str) -> None:
    from energy_lightning.strategy_parts.default_callbacks import check_callbacks_with_sharding

    callbacks = importlib.import_module(f"{package}.callbacks")
    for callback in (callbacks.StochasticWeightAveraging(1e-2), callbacks.EMAWeightAveraging()):
        with pytest.raises(StrategyError, match=f"{type(callback).__name__} .*tensor_parallel_size=1"):
            check_callbacks_with_sharding(SimpleNamespace(callbacks=[EnergyMonitor(), callback]))  # type: ignore[arg-type]
    check_callbacks_with_sharding(SimpleNamespace(callbacks=[EnergyMonitor()]))  # type: ignore[arg-type]


def test_apply_plan_and_run_key_need_a_run() -> None:
    from energy_lightning.types import Plan

    strategy = KareusStrategy()
    for call in (lambda: strategy.apply_plan(Plan.sequential()), strategy.run_key, lambda: strategy.output_dir):
        with pytest.raises(EnergyLightningError):
            call()


def test_single_device_trains_as_the_plain_model_and_keeps_the_users_callback() -> None:
    rows = cases.Rows("bert", 16)
    expected = cases.plain_training(cases.tiny_model("bert"), rows, batch_size=4, num_steps=4, clip=0.1)
    monitor, model = EnergyMonitor(), cases.tiny_model("bert")
    with cases.alone():
        trainer = cases.trainer(
            strategy="kareus", callbacks=[monitor], gradient_clip_val=0.1, use_distributed_sampler=False
        )
        trainer.fit(cases.lightning_module(model), DataLoader(rows, batch_size=4))
    assert [callback for callback in trainer.callbacks if isinstance(callback, EnergyMonitor)] == [monitor]
    cases.assert_same_weights(model.state_dict(), expected.state_dict(), 1e-4)
