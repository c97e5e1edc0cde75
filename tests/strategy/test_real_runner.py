"""The runner of single partitions for real GPUs, here on a CPU: all partitions of a job, and no trace in the model."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import strategy_cases as cases
import torch
import torch.distributed as dist
from distributed_helpers import run_checks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from energy_lightning.partition import ExecutionError
from energy_lightning.strategy_parts.engine_execution import EngineExecution
from energy_lightning.strategy_parts.measured_parts import MeasuredBuckets, MeasuredOptimizer, MeasuredRest
from energy_lightning.strategy_parts.real_runner import RealRunner
from energy_lightning.types import Schedule
from energy_lightning.workload import Partition, Workload

PHASES = ("forward", "backward", "iteration")


class Root(nn.Module):
    """Stands for the LightningModule."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


def batch_of(name: str, batch_size: int = 4) -> dict[str, Tensor]:
    rows = cases.Rows(name, batch_size)
    return {"input_ids": rows.tokens, "labels": rows.labels}


def step(root: Root, name: str) -> Tensor:
    loss: Tensor = root.model(**batch_of(name)).loss
    loss.backward()
    return loss


def running(name: str, *, mesh: Any = None, observed: bool = True, **options: Any) -> tuple[Root, RealRunner]:
    root = Root(cases.tiny_model(name))
    checkpointing = options.get("checkpointing", False)
    execution = EngineExecution(root, mesh=mesh, activation_checkpointing=checkpointing, bucket_cap_bytes=4096)
    optimizer = cases.make_optimizer(root.model)
    runner = RealRunner(execution, optimizers=lambda: [optimizer], **options)
    if observed:
        step(root, name)
    return root, runner


def partitions_of(root: Root, *, tensor_parallel: int = 1, data_parallel: int = 1, **sizes: Any) -> list[Partition]:
    workload = Workload.from_config(
        root.model.config,
        tensor_parallel=tensor_parallel,
        data_parallel=data_parallel,
        microbatch_size=4,
        sequence_length=cases.SEQUENCE_LENGTH,
        dtype="fp32",
        **sizes,
    )
    modes = (False, True) if tensor_parallel > 1 else (False,)
    found = {p.name: p for mode in modes for phase in PHASES for p in workload.partitions(phase, nanobatched=mode)}
    return list(found.values())


def partition(key: str, nanobatched: bool = False) -> Partition:
    return Partition(key, (), None, 1, nanobatched)


def snapshot(root: nn.Module) -> list[Any]:
    values: list[Any] = [torch.get_rng_state()]
    for parameter in root.parameters():
        values += [parameter.detach().clone(), None if parameter.grad is None else parameter.grad.clone()]
    return values + [buffer.clone() for buffer in root.buffers()]


def same(first: list[Any], second: list[Any]) -> bool:
    return len(first) == len(second) and all(
        a is b if a is None or b is None else torch.equal(a, b) for a, b in zip(first, second, strict=True)
    )


@pytest.mark.parametrize("name", ["llama", "bert"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_every_partition_of_a_job_runs_and_the_model_is_bit_identical_afterwards(
    name: str, checkpointing: bool
) -> None:
    root, runner = running(name, checkpointing=checkpointing)
    before, gradients = snapshot(root), [parameter.grad for parameter in root.parameters()]
    partitions = partitions_of(root, activation_checkpointing=checkpointing)
    for each in partitions:
        run = runner.prepare(each, None)
        run(1)
        run(3)
        runner.release()
        with pytest.raises(ExecutionError, match="released"):
            run(1)
    assert {each.key for each in partitions} >= {"fwd_attn", "bwd_mlp", "fwd_rest", "bwd_rest", "optimizer"}
    assert same(snapshot(root), before)
    assert all(parameter.grad is grad for parameter, grad in zip(root.parameters(), gradients, strict=True))


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_the_rest_is_the_model_without_its_blocks(name: str) -> None:
    """A model of no layers at all, with the same weights, has the same loss and gradients."""
    root, runner = running(name)
    bare = copy.deepcopy(root.model)
    stack = bare.model if name == "llama" else bare.bert.encoder
    setattr(stack, "layers" if name == "llama" else "layer", nn.ModuleList())
    bare.zero_grad()
    expected = bare(**batch_of(name)).loss
    expected.backward()
    runner.prepare(partition("bwd_rest"), None)(1)
    rest = runner._prepared
    assert isinstance(rest, MeasuredRest)
    assert rest._graph is not None
    assert torch.equal(rest._graph[0], expected)
    found = dict(rest._twin.named_parameters()) if rest._twin is not None else {}
    wanted = {key: parameter.grad for key, parameter in bare.named_parameters() if parameter.grad is not None}
    assert wanted
    for key, gradient in wanted.items():
        torch.testing.assert_close(found[key].grad, gradient, msg=key)  # the reset makes each execution the first


def test_hooks_around_the_blocks_hear_nothing() -> None:
    root, runner = running("llama")
    heard: list[str] = []
    for module in root.modules():
        module.register_forward_hook(lambda *_: heard.append("forward"))
    for parameter in root.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: heard.append("gradient"))
    for key in ("fwd_rest", "bwd_rest", "fwd_attn", "bwd_attn", "optimizer"):
        runner.prepare(partition(key), None)(2)
    assert heard == []


def test_the_optimizer_is_of_the_real_kind_and_updates_as_many_weights() -> None:
    root, runner = running("llama")
    runner.prepare(partition("optimizer"), None)
    measured = runner._prepared
    assert isinstance(measured, MeasuredOptimizer)
    own = measured._optimizer
    assert type(own) is torch.optim.AdamW
    assert own.defaults["lr"] == 1e-3
    size = sum(parameter.numel() for group in own.param_groups for parameter in group["params"])
    total = sum(parameter.numel() for parameter in root.parameters())
    assert abs(measured._repeats * size - total) <= size / 2


class Odd(torch.optim.SGD):
    """Cannot be made from its defaults."""

    def __init__(self, parameters: Any, trainer: object, lr: float = 0.1) -> None:
        super().__init__(parameters, lr=lr)


def test_an_optimizer_that_cannot_be_made_again_is_replaced() -> None:
    layer = nn.Linear(3, 3)
    before = layer.weight.detach().clone()
    measured = MeasuredOptimizer(Odd(layer.parameters(), object()), layer, num_parameters=12)
    measured.run(2)
    assert type(measured._optimizer) is torch.optim.AdamW
    assert torch.equal(layer.weight, before)


def test_nothing_runs_before_the_first_step_and_validation_tells_no_sizes() -> None:
    root, runner = running("llama", observed=False)
    with torch.no_grad():
        root.model(**batch_of("llama", 1))
    with pytest.raises(ExecutionError, match="made a step"):
        runner.prepare(partition("fwd_attn"), None)
    step(root, "llama")
    runner.prepare(partition("fwd_attn"), None)(1)


def test_it_stops_watching_after_the_first_step_and_when_it_is_closed() -> None:
    root, runner = running("llama", observed=False)
    hooked = [module for module in root.modules() if runner._see_model in module._forward_pre_hooks.values()]
    assert hooked == [root.model, root.model.model]  # outermost first, and not the LightningModule
    step(root, "llama")
    assert not [module for module in root.modules() if runner._see_model in module._forward_pre_hooks.values()]
    root, runner = running("llama", observed=False)
    runner.close()
    runner.close()
    assert not [module for module in root.modules() if runner._see_model in module._forward_pre_hooks.values()]
    assert runner._execution.engine.on_call is None


@pytest.mark.parametrize(("key", "words"), [("grad_bucket", "one replica"), ("fwd_qkv", "does not run 'fwd_qkv'")])
def test_partitions_that_the_job_lacks_are_refused_by_name(key: str, words: str) -> None:
    _, runner = running("llama")
    with pytest.raises(ExecutionError, match=words):
        runner.prepare(partition(key), None)


class Counting:
    """Counts the values that pass through a backend."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.sizes, self.asked = inner, list[int](), set[int | None]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def all_reduce(self, tensor: Tensor, **options: Any) -> Any:
        self.sizes.append(tensor.numel())
        self.asked.add(options.get("sm_count"))
        return self.inner.all_reduce(tensor, **options)


def _check_all_partitions(name: str, sizes: tuple[int, int], checkpointing: bool, group: dist.ProcessGroup) -> None:
    data_parallel, tensor_parallel = sizes
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("data_parallel", "tensor_parallel"))
    root, runner = running(name, mesh=mesh, checkpointing=checkpointing, num_microbatches=2)
    before = snapshot(root)
    partitions = partitions_of(
        root,
        tensor_parallel=tensor_parallel,
        data_parallel=data_parallel,
        activation_checkpointing=checkpointing,
    )
    for each in partitions:
        for launch in (*each.launch_points[:1], None):
            run = runner.prepare(each, Schedule(4, launch) if each.launch_points else None)
            run(1)
            run(3)
        runner.release()
    assert same(snapshot(root), before)
    keys = {each.key for each in partitions}
    assert ("grad_bucket" in keys) == (data_parallel > 1)
    assert ("rec_mlp_alone" in keys) == (checkpointing and tensor_parallel > 1)
    if data_parallel > 1:
        _check_buckets(runner)
    expected = copy.deepcopy([parameter.grad for parameter in root.parameters()])
    root.zero_grad()
    step(root, name)  # training goes on as if nothing had happened
    assert all(torch.equal(p.grad, want) for p, want in zip(root.parameters(), expected, strict=True))


def _check_buckets(runner: RealRunner) -> None:
    reducer = runner._execution.reducer
    assert reducer is not None
    counting = Counting(reducer.collectives)
    before = [bucket.buffer.clone() for bucket in reducer.buckets]
    MeasuredBuckets(reducer.buckets, counting, Schedule(6)).run(2)
    sizes = [bucket.buffer.numel() for bucket in reducer.buckets]
    assert len(sizes) > 2
    assert sorted(counting.sizes) == sorted(3 * sizes)  # once to get ready, then twice
    assert counting.asked == {6}
    assert all(torch.equal(bucket.buffer, was) for bucket, was in zip(reducer.buckets, before, strict=True))


@pytest.mark.distributed
def test_two_ranks_run_all_partitions_of_their_job_and_train_on(quick_python: str) -> None:
    checks = {
        f"{name}, data x tensor parallel {sizes}, checkpointing {checkpointing}": partial(
            _check_all_partitions, name, sizes, checkpointing
        )
        for name in ("llama", "bert")
        for sizes in ((1, 2), (2, 1))
        for checkpointing in (False, True)
    }
    assert run_checks(checks, num_processes=2, python=quick_python) == {}
