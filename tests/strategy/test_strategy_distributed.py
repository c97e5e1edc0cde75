"""Trainer(strategy="kareus") on two and four gloo processes, against a plain loop in one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import strategy_cases as cases
import torch
import torch.distributed as dist
from distributed_helpers import run_checks
from strategy_checks import (
    ROWS_PER_STEP,
    check_checkpoints_are_interchangeable,
    check_evaluation,
    check_nothing_is_reduced_while_accumulating,
    check_same_weights,
    fit,
    kareus,
    loader,
)
from torch import Tensor, nn
from torch.utils.data import DataLoader

from energy_lightning.types import EnergyLightningError, PhasePlan, Plan, Schedule, StrategyError


def check_unrecognised_model_gets_plain_gradients(group: dist.ProcessGroup, *, launch: str | None) -> None:
    """Accumulation 4 through the comm hook: gradients equal a plain process's to 1e-6."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 1))
    inputs = torch.randn(4 * ROWS_PER_STEP, 6)
    reference = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 1))
    reference.load_state_dict(model.state_dict())
    reference(inputs).mean().backward()
    backward = PhasePlan("backward", schedules={"grad_bucket": Schedule(sm_count=4, launch=launch)})
    plan = Plan.single_stage(PhasePlan("forward"), backward)
    seen: list[Tensor] = []
    with cases.as_launched():
        strategy = kareus(bucket_cap_mb=1e-4, plan=plan)
        trainer = cases.trainer(strategy=strategy, accumulate_grad_batches=4, use_distributed_sampler=False)
        module = _regression(model, lambda: seen.extend(p.grad.clone() for p in model.parameters()))
        trainer.fit(module, loader(inputs, strategy))
    assert trainer.global_step == 1
    for gradient, parameter in zip(seen, reference.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-6, atol=1e-6)


def _regression(model: nn.Module, before_step: Callable[[], None]) -> Any:
    import lightning.pytorch as pl

    class Regression(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            return self.model(batch).mean()

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            before_step()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.model.parameters(), lr=0.1)

    return Regression()


def check_reduced_before_hooks_and_in_manual_optimization(group: dist.ProcessGroup) -> None:
    """Gradients are means already in on_after_backward, and after manual_backward."""
    rows = cases.Rows("bert", ROWS_PER_STEP)
    reference = cases.tiny_model("bert")
    reference(**next(iter(DataLoader(rows, batch_size=ROWS_PER_STEP)))).loss.backward()
    for manual in (False, True):
        model, seen = cases.tiny_model("bert"), {}
        module = cases.lightning_module(model)
        module.automatic_optimization = not manual
        record = partial(_record_gradients, model, seen)
        if manual:
            module.training_step = partial(_manual_step, module, record)
        else:
            module.on_after_backward = record
        with cases.as_launched():
            strategy = kareus()
            cases.trainer(strategy=strategy, use_distributed_sampler=False).fit(module, loader(rows, strategy))
        for name, parameter in reference.named_parameters():
            torch.testing.assert_close(seen[name], parameter.grad, rtol=1e-4, atol=1e-6, msg=name)


def _record_gradients(model: nn.Module, seen: dict[str, Any]) -> None:
    seen.update({name: parameter.grad.clone() for name, parameter in model.named_parameters()})


def _manual_step(module: Any, record: Callable[[], None], batch: Any, batch_idx: int) -> None:
    optimizer = module.optimizers()
    optimizer.zero_grad()
    module.manual_backward(module.model(**batch).loss)
    record()
    optimizer.step()


def check_mixed_precision_trains(group: dist.ProcessGroup, *, tensor_parallel_size: int) -> None:
    rows = cases.Rows("bert", 4 * ROWS_PER_STEP)
    expected = cases.plain_training(cases.tiny_model("bert"), rows, batch_size=ROWS_PER_STEP, num_steps=4, clip=0.5)
    model = cases.tiny_model("bert")
    with cases.as_launched():
        strategy = kareus(tensor_parallel_size=tensor_parallel_size)
        fit(model, rows, strategy, precision="bf16-mixed", gradient_clip_val=0.5)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    cases.assert_same_weights(model.state_dict(), expected.state_dict(), 1e-2)


def check_different_batches_are_refused(group: dist.ProcessGroup) -> None:
    rows = cases.Rows("bert", 2 * ROWS_PER_STEP)
    with cases.as_launched():
        trainer = cases.trainer(strategy=kareus(tensor_parallel_size=2), use_distributed_sampler=False)
        module = cases.lightning_module(cases.tiny_model("bert"))
        shifted = DataLoader(torch.utils.data.Subset(rows, range(dist.get_rank(), ROWS_PER_STEP)), batch_size=4)
        with pytest.raises(StrategyError, match=r"ranks 0, 1.*different batches.*sampler"):
            trainer.fit(module, shifted)


def check_failed_run_is_not_gathered_and_says_so(group: dist.ProcessGroup) -> None:
    rows, model = cases.Rows("bert", ROWS_PER_STEP), cases.tiny_model("bert")
    with cases.as_launched():
        trainer = cases.trainer(strategy=kareus(tensor_parallel_size=2))
        module = cases.lightning_module(model)
        module.on_after_backward = _fail
        with pytest.raises(ArithmeticError, match="not a number"):
            trainer.fit(module, DataLoader(rows, batch_size=4))
        with pytest.raises(StrategyError, match="still sharded from a run that failed"):
            fit(model, rows, kareus(tensor_parallel_size=2))


def _fail() -> None:
    raise ArithmeticError("not a number")


def check_settings_that_cannot_be(group: dist.ProcessGroup) -> None:
    with cases.as_launched():
        with pytest.raises(StrategyError, match="tensor_parallel_size=3 does not divide the 2 devices"):
            cases.trainer(strategy=kareus(tensor_parallel_size=3))
        with pytest.raises(StrategyError, match="data_parallel_size must be 1 or 'auto'"):
            cases.trainer(strategy=kareus(tensor_parallel_size=2, data_parallel_size=2))
        module = _regression(nn.Linear(6, 1), list)
        with pytest.raises(StrategyError, match="no recognised transformer blocks"):
            cases.trainer(strategy=kareus(tensor_parallel_size=2)).fit(module, DataLoader(torch.zeros(4, 6)))
        odd = cases.tiny_model("llama", num_key_value_heads=1)
        with pytest.raises(EnergyLightningError, match="num_key_value_heads"):
            fit(odd, cases.Rows("llama", 8), kareus(tensor_parallel_size=2))


def check_default_callbacks_and_fast_dev_run(group: dist.ProcessGroup) -> None:
    from energy_lightning.lightning import KareusStrategy

    rows = cases.Rows("bert", 2 * ROWS_PER_STEP)
    with cases.as_launched():
        trainer = cases.trainer(strategy="kareus", fast_dev_run=True)
        module = cases.lightning_module(cases.tiny_model("bert"))
        trainer.fit(module, DataLoader(rows, batch_size=4), DataLoader(rows, batch_size=4))
        names = [type(callback).__name__ for callback in trainer.callbacks]
    assert names.count("FrequencyController") == 1
    assert [name for name in names if name in KareusStrategy.callback_types] == list(KareusStrategy.callback_types)
    assert trainer.global_step == 1


NANOBATCHED = Plan.single_stage(
    PhasePlan("forward", nanobatched=True, schedules={"fwd_attn": Schedule(sm_count=4, launch="linear_0")}),
    PhasePlan("backward", nanobatched=True, schedules={"bwd_mlp": Schedule(sm_count=8, launch="activation_0")}),
)
TWO_PROCESSES = {
    "bert dp2 accumulate 4": partial(check_same_weights, name="bert", tensor_parallel_size=1, accumulate=4),
    "bert tp2": partial(check_same_weights, name="bert", tensor_parallel_size=2, accumulate=1),
    "llama dp2": partial(check_same_weights, name="llama", tensor_parallel_size=1, accumulate=1),
    "llama tp2 accumulate 4": partial(check_same_weights, name="llama", tensor_parallel_size=2, accumulate=4),
    "llama tp2 checkpointing": partial(
        check_same_weights, name="llama", tensor_parallel_size=2, accumulate=1, activation_checkpointing=True
    ),
    "bert tp2 nanobatched": partial(
        check_same_weights, name="bert", tensor_parallel_size=2, accumulate=2, plan=NANOBATCHED
    ),
    "llama dp2 nanobatched": partial(
        check_same_weights, name="llama", tensor_parallel_size=1, accumulate=2, plan=NANOBATCHED
    ),
    "bert dp2 pytorch_lightning": partial(
        check_same_weights, name="bert", tensor_parallel_size=1, accumulate=1, package="pytorch_lightning"
    ),
    "accumulation": check_nothing_is_reduced_while_accumulating,
    "checkpoints": check_checkpoints_are_interchangeable,
    "evaluation tp2": partial(check_evaluation, tensor_parallel_size=2),
    "evaluation dp2": partial(check_evaluation, tensor_parallel_size=1),
    "comm hook": partial(check_unrecognised_model_gets_plain_gradients, launch=None),
    "comm hook held back": partial(check_unrecognised_model_gets_plain_gradients, launch="end"),
    "hooks see means": check_reduced_before_hooks_and_in_manual_optimization,
    "bf16 tp2": partial(check_mixed_precision_trains, tensor_parallel_size=2),
    "bf16 dp2": partial(check_mixed_precision_trains, tensor_parallel_size=1),
    "different batches": check_different_batches_are_refused,
    "failed run": check_failed_run_is_not_gathered_and_says_so,
    "settings": check_settings_that_cannot_be,
    "default callbacks": check_default_callbacks_and_fast_dev_run,
}


@pytest.fixture(scope="module")
def two_process_failures(quick_python: str) -> dict[str, str]:
    return run_checks(TWO_PROCESSES, num_processes=2, python=quick_python)


@pytest.mark.distributed
@pytest.mark.parametrize("name", TWO_PROCESSES)
def test_two_processes(name: str, two_process_failures: dict[str, str]) -> None:
    assert not two_process_failures.get(name), two_process_failures[name]


@pytest.mark.distributed
def test_four_processes_two_by_two(quick_python: str) -> None:
    check = partial(check_same_weights, name="bert", tensor_parallel_size=2, accumulate=1, plan=NANOBATCHED)
    assert run_checks({"bert 2x2": check}, num_processes=4, python=quick_python) == {}
