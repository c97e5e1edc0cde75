"""The partition engine on a GPU: the untouched model's gradients, and collectives that really run beside compute."""

from __future__ import annotations

import time

import pytest
import torch
from gpu_cases import NEEDS_GPU, ON_GPU

from energy_lightning.collectives.streams import CommunicationStreams
from energy_lightning.partition import PartitionEngine, find_stacks
from energy_lightning.partition.profiling import PartitionKind, PartitionSettings, PreparedPartition, StackCall
from energy_lightning.types import Schedule

import gpu_loopback  # isort: skip - gpu_cases shows the way to these
from tiny_models import assert_close, gradients, loss_of, make, make_batch, plan_of  # isort: skip

PLANS = {
    "sequential": None,
    "early": plan_of(),
    "late": plan_of(
        {"fwd_attn": "attn_0", "fwd_mlp": "activation_0"}, {"bwd_attn": "attn_0", "bwd_mlp": "activation_0"}
    ),
    "not overlapped": plan_of(dict.fromkeys(("fwd_attn", "fwd_mlp")), dict.fromkeys(("bwd_attn", "bwd_mlp"))),
}
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1}  # kernels for half a batch may sum in another order


def _device(name: str) -> torch.device:
    return torch.device(name, 0) if name == "cuda" else torch.device(name)


@pytest.mark.parametrize("device_name", ["cpu", ON_GPU])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_gradients_are_the_untouched_models(
    kind: str, checkpointing: bool, dtype: torch.dtype, device_name: str
) -> None:
    device = _device(device_name)
    batch = {name: value.to(device) for name, value in make_batch(kind, 6, padded=False).items()}
    plain = make(kind).to(device, dtype)
    expected = loss_of(plain, batch)
    expected.backward()
    wanted = {name: None if grad is None else grad.float() for name, grad in gradients(plain).items()}
    for name, plan in PLANS.items():
        model = make(kind).to(device, dtype)
        collectives = gpu_loopback.loopback(device)
        engine = PartitionEngine(find_stacks(model), collectives=collectives, activation_checkpointing=checkpointing)
        if plan is not None:
            engine.apply(plan)
        loss = loss_of(model, batch)
        loss.backward()
        torch.testing.assert_close(loss.float(), expected.float(), rtol=TOLERANCE[dtype], atol=1e-6, msg=name)
        found = {key: None if grad is None else grad.float() for key, grad in gradients(model).items()}
        assert_close(found, wanted, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("device_name", ["cpu", ON_GPU])
@pytest.mark.parametrize("key", ["fwd_attn", "fwd_mlp", "bwd_mlp", "bwd_attn"])
def test_single_partitions_run_and_leave_the_model_and_its_random_state(key: str, device_name: str) -> None:
    device = _device(device_name)
    model = make("llama", attention_dropout=0.1).to(device)
    collectives = gpu_loopback.loopback(device)
    engine = PartitionEngine(find_stacks(model), collectives=collectives, activation_checkpointing=False)
    calls: list[StackCall] = []
    engine.on_call = lambda stack, hidden, call: calls.append(StackCall.of(hidden, call))
    loss_of(model, {name: value.to(device) for name, value in make_batch("llama", 4).items()}).backward()
    before = [(p.detach().clone(), p.grad.clone()) for p in model.parameters()]
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    kind = PartitionKind.parse(key, nanobatched=True, has_collective=True, checkpointing=False)
    settings = PartitionSettings(collectives=collectives)
    partition = PreparedPartition(engine.stacks[0], calls[0], kind, Schedule(2, "norm_0"), settings)
    partition.run(10)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    for (value, gradient), parameter in zip(before, model.parameters(), strict=True):
        assert torch.equal(value, parameter)
        assert torch.equal(gradient, parameter.grad)
    after = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    assert all(torch.equal(was, state) for was, state in zip(states, after, strict=True))


@pytest.mark.gpu
@NEEDS_GPU
def test_a_collective_runs_beside_compute_and_the_host_waits_for_neither() -> None:
    device = torch.device("cuda", 0)
    collectives = gpu_loopback.loopback(device, CommunicationStreams())
    if not collectives.supports_sm_count:
        pytest.skip("Triton is missing: without an SM count the loop-back may fill the GPU")
    traffic = torch.zeros(64 * 2**20, dtype=torch.bfloat16, device=device)
    matrix = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)

    def communicate() -> None:
        collectives.all_reduce(traffic, sm_count=8).wait()

    def compute(times: int) -> None:
        for _ in range(times):
            torch.mm(matrix, matrix)

    alone_s = _gpu_time_s(communicate, device)
    times = max(1, round(alone_s / _gpu_time_s(lambda: compute(1), device)))
    compute_s = _gpu_time_s(lambda: compute(times), device)

    def both() -> None:
        handle = collectives.all_reduce(traffic, sm_count=8)
        compute(times)
        handle.wait()

    both_s = _gpu_time_s(both, device)
    assert both_s < 0.85 * (alone_s + compute_s), (both_s, alone_s, compute_s)
    torch.cuda.synchronize(device)
    start_s = time.perf_counter()
    for _ in range(5):
        both()
    issued_s = time.perf_counter() - start_s
    torch.cuda.synchronize(device)
    assert issued_s < 0.5 * (time.perf_counter() - start_s)


def _gpu_time_s(work: object, device: torch.device) -> float:
    import gpu_common

    return gpu_common.times_of(work, device, repeats=5, warmup=2).median_s  # type: ignore[no-any-return]
