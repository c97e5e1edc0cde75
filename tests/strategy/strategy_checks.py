"""Checks of recognised models under `kareus` against a plain loop; they run on every rank of a launch."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import pytest
import strategy_cases as cases
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from energy_lightning.collectives.issuing import IssuedCollectives
from energy_lightning.types import Plan

ROWS_PER_STEP = 8
"""Rows of one microbatch over all replicas: the plain loop's batch."""


def loader(rows: Dataset[Any], strategy: Any) -> DataLoader[Any]:
    """Rows in order, distributed as the strategy says."""
    sampler: DistributedSampler[Any] = DistributedSampler(rows, shuffle=False, **strategy.distributed_sampler_kwargs)
    return DataLoader(rows, batch_size=ROWS_PER_STEP // strategy.data_parallel_size, sampler=sampler)


def kareus(package: str = "lightning.pytorch", **options: Any) -> Any:
    """A strategy that does not profile, with buckets small enough that a tiny model has several."""
    module = "energy_lightning" if package == "lightning.pytorch" else "energy_lightning.pytorch_lightning"
    return importlib.import_module(module).KareusStrategy(
        **{"plan": Plan.sequential(), "bucket_cap_mb": 0.01, **options}
    )


def fit(
    model: nn.Module, rows: Dataset[Any], strategy: Any, *, package: str = "lightning.pytorch", **options: Any
) -> Any:
    """Train `model` in place for the given trainer options; returns the trainer."""
    module = cases.lightning_module(model, package, options.pop("optimizer", "adamw"))
    trainer = cases.trainer(package, strategy=strategy, use_distributed_sampler=False, **options)
    trainer.fit(module, loader(rows, strategy))
    return trainer


def check_same_weights(
    group: dist.ProcessGroup,
    *,
    name: str,
    tensor_parallel_size: int,
    accumulate: int,
    package: str = "lightning.pytorch",
    **options: Any,
) -> None:
    num_steps, clip = 10, 0.5
    rows = cases.Rows(name, ROWS_PER_STEP * num_steps * accumulate)
    plain = {"batch_size": ROWS_PER_STEP, "num_steps": num_steps, "accumulate": accumulate}
    expected = cases.plain_training(cases.tiny_model(name), rows, **plain, clip=clip, optimizer_name="sgd")
    model = cases.tiny_model(name, seed=dist.get_rank())  # rank 0's weights must win
    with cases.as_launched():
        strategy = kareus(package, tensor_parallel_size=tensor_parallel_size, **options)
        trainer = fit(
            model,
            rows,
            strategy,
            package=package,
            optimizer="sgd",
            gradient_clip_val=clip,
            accumulate_grad_batches=accumulate,
        )
    assert trainer.global_step == num_steps
    cases.assert_same_weights(model.state_dict(), expected.state_dict(), 1e-4)


def check_nothing_is_reduced_while_accumulating(group: dist.ProcessGroup) -> None:
    """Two steps of four microbatches: every bucket is reduced twice, not eight times, by the named backend."""
    calls: list[Tensor] = []
    strategy = kareus(collectives="gloo")
    gloo = {"role": "data_parallel", "backend": "gloo", "supports_sm_count": False, "sm_counts": []}
    reduce = IssuedCollectives.all_reduce

    def counted(self: IssuedCollectives, tensor: Tensor, **options: Any) -> Any:
        calls.append(tensor)
        assert strategy.collectives_report() == [gloo]
        return reduce(self, tensor, **options)

    with cases.as_launched(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(IssuedCollectives, "all_reduce", counted)
        rows = cases.Rows("bert", 8 * ROWS_PER_STEP)
        fit(cases.tiny_model("bert"), rows, strategy, accumulate_grad_batches=4)
    assert strategy.collectives_report() == [], "teardown has released the backend"
    buckets = {tensor.data_ptr() for tensor in calls}
    assert len(buckets) > 2
    assert len(calls) == 2 * len(buckets)


def check_checkpoints_are_interchangeable(group: dist.ProcessGroup) -> None:
    """tp 2 -> dp 2 -> plain ddp -> tp 2, one epoch each, every checkpoint the plain loop's."""
    num_steps = 3
    rows = cases.Rows("bert", ROWS_PER_STEP * num_steps)
    folder = cases.shared_folder(group)
    plain = cases.tiny_model("bert").train()
    optimizer = cases.make_optimizer(plain)
    checkpoint = None
    for epoch, tensor_parallel_size in enumerate([2, 1, None, 2]):
        for batch in DataLoader(rows, batch_size=ROWS_PER_STEP):
            optimizer.zero_grad()
            plain(**batch).loss.backward()
            optimizer.step()
        model = cases.tiny_model("bert", seed=epoch + 1)  # everything must come from the checkpoint
        if checkpoint is None:
            model = cases.tiny_model("bert")
        with cases.as_launched():
            strategy: Any = "ddp" if tensor_parallel_size is None else kareus(tensor_parallel_size=tensor_parallel_size)
            trainer = cases.trainer(strategy=strategy, use_distributed_sampler=False, max_epochs=epoch + 1)
            module, path = cases.lightning_module(model), folder / f"{epoch}.ckpt"
            module.on_train_epoch_end = partial(_save, trainer, path)
            rows_of_rank = loader(rows, strategy if tensor_parallel_size else _TwoReplicas())
            trainer.fit(module, rows_of_rank, ckpt_path=checkpoint, weights_only=False)
        saved = torch.load(path, weights_only=False)
        weights = {key.removeprefix("model."): value for key, value in saved["state_dict"].items()}
        cases.assert_same_weights(weights, plain.state_dict(), 1e-4)
        _assert_same_optimizer_state(saved["optimizer_states"][0], optimizer.state_dict())
        checkpoint = path


class _TwoReplicas:
    data_parallel_size = 2

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int]:
        return {"num_replicas": 2, "rank": dist.get_rank()}


def _save(trainer: Any, path: Any) -> None:
    trainer.save_checkpoint(path)


def _assert_same_optimizer_state(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert actual["param_groups"] == expected["param_groups"]
    for index, values in expected["state"].items():
        for key, value in values.items():
            torch.testing.assert_close(actual["state"][index][key], value, rtol=1e-3, atol=1e-5)


def check_evaluation(group: dist.ProcessGroup, *, tensor_parallel_size: int) -> None:
    rows = cases.Rows("llama", 16)
    model = cases.tiny_model("llama")
    with torch.no_grad():
        whole = next(iter(DataLoader(rows, batch_size=16)))
        expected = model.eval()(**whole)
    with cases.as_launched():
        trainer = cases.trainer(strategy=kareus(tensor_parallel_size=tensor_parallel_size))
        module = cases.lightning_module(model)
        data = DataLoader(rows, batch_size=4)
        losses = trainer.validate(module, data, verbose=False) + trainer.test(module, data, verbose=False)
        predictions = torch.cat(trainer.predict(module, data))
    for figures in losses:
        torch.testing.assert_close(torch.tensor(list(figures.values())), expected.loss.expand(1), rtol=1e-5, atol=1e-5)
    own = expected.logits if tensor_parallel_size == 2 else expected.logits[dist.get_rank() :: 2]
    torch.testing.assert_close(predictions, own, rtol=1e-4, atol=1e-5)
