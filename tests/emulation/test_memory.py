"""Device memory: tensors counted by hand, every published configuration accepted, and what a refusal says."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from energy_lightning.emulation import GPU, Estimate, check_memory, emulate_phase, memory_per_gpu
from energy_lightning.types import PhasePlan, WorkloadError
from energy_lightning.workload import Workload

TOKENS = 4 * 2048
LAYER = 2048 * (2 * 2048 + 2 * 8 * 64) + 3 * 2048 * 8192  # weights; Llama 3.2 1B, 16 layers
EMBEDDING = 2048 * 128256
KEPT = 4 * 2048 + (2048 + 1024 + 2048) + 3 * 8192  # values a token and layer: residuals, norms; q, k, v, out; the MLP's


def llama(**sizes: Any) -> Workload:
    return Workload.preset("llama3.2_1b", microbatch_size=4, sequence_length=2048, **sizes)


def test_sixteen_bytes_a_parameter_in_mixed_precision() -> None:
    parameters = 16 * LAYER + EMBEDDING
    found = memory_per_gpu(llama())
    assert (found.weights_bytes, found.gradients_bytes) == (2 * parameters, 2 * parameters)
    assert found.optimizer_bytes == 12 * parameters
    single = memory_per_gpu(llama(dtype="fp32"))
    assert single.weights_bytes + single.gradients_bytes + single.optimizer_bytes == 16 * parameters


def test_activations_of_all_layers_or_checkpoints_and_one_layer() -> None:
    kept, again = memory_per_gpu(llama()), memory_per_gpu(llama(activation_checkpointing=True))
    assert kept.activations_bytes == 2 * TOKENS * 16 * KEPT
    assert kept.recomputation_bytes == 0
    assert again.activations_bytes == 2 * TOKENS * 16 * 2048
    assert again.recomputation_bytes == 2 * TOKENS * KEPT
    assert kept.logits_bytes == TOKENS * 128256 * (2 + 4)
    assert sum(kept.parts().values()) == kept.total_bytes


def test_earlier_stages_keep_more_microbatches_in_flight() -> None:
    w = llama(pipeline_parallel=4, num_microbatches=8)
    one = 2 * TOKENS * 4 * KEPT
    assert [memory_per_gpu(w, s).activations_bytes for s in range(4)] == [4 * one, 3 * one, 2 * one, one]
    assert [memory_per_gpu(w, s).logits_bytes > 0 for s in range(4)] == [False, False, False, True]
    few = w.with_sizes(num_microbatches=2)
    assert memory_per_gpu(few, 0).activations_bytes == 2 * one


def test_tensor_parallelism_splits_all_but_the_hidden_states_sequence_parallelism_those_too() -> None:
    plain, split = (memory_per_gpu(llama(tensor_parallel=8, sequence_parallel=s)) for s in (False, True))
    assert plain.weights_bytes == memory_per_gpu(llama()).weights_bytes / 8
    assert plain.activations_bytes == 2 * TOKENS * 16 * (4 * 2048 + (KEPT - 4 * 2048) / 8)
    assert split.activations_bytes == memory_per_gpu(llama()).activations_bytes / 8


def test_fully_sharded_replicas_share_and_gather_a_few_layers() -> None:
    whole, shared = (
        memory_per_gpu(llama(data_parallel=8)),
        memory_per_gpu(llama(data_parallel=8, data_parallel_kind="fully_sharded")),
    )
    for part in ("weights_bytes", "gradients_bytes", "optimizer_bytes"):
        assert getattr(shared, part) == getattr(whole, part) / 8
    assert shared.activations_bytes == whole.activations_bytes
    assert shared.gathered_bytes == 2 * (EMBEDDING + 3 * LAYER)
    assert whole.gathered_bytes == 0


KAREUS = {"pipeline_parallel": 2, "num_microbatches": 8, "layers_per_stage": (15, 13), "activation_checkpointing": True}
PUBLISHED = [
    (model, "a100-sxm4-40gb", {**KAREUS, "microbatch_size": mbs, "sequence_length": seq, **groups})
    for model in ("llama3.2_3b", "qwen3_1.7b")
    for groups in ({"tensor_parallel": 8}, {"tensor_parallel": 4, "context_parallel": 2})
    for mbs, seq in ((8, 4096), (16, 4096), (8, 8192))
]
PUBLISHED += [
    (
        "llama3.3_70b",
        "a100-sxm4-80gb",
        {
            "tensor_parallel": 8,
            "pipeline_parallel": 10,
            "microbatch_size": 4,
            "num_microbatches": m,
            "sequence_length": 4096,
            "activation_checkpointing": True,
        },
    )
    for m in (16, 32, 64, 128)
]
GPT3 = {"tensor_parallel": 8, "pipeline_parallel": 8, "num_microbatches": 96, "sequence_length": 2048}
PUBLISHED.append(("gpt3_175b", "a100-sxm4-80gb", GPT3))


@pytest.mark.parametrize(("model", "gpu", "sizes"), PUBLISHED)
def test_what_was_run_fits(model: str, gpu: str, sizes: dict[str, Any]) -> None:
    check_memory(Workload.preset(model, **sizes), GPU.load(gpu))


def test_a_refusal_says_by_how_much_and_what_would_help() -> None:
    gpu = GPU.load("a100-sxm4-40gb")
    w = Workload.preset("llama3.2_3b", microbatch_size=4, sequence_length=4096, tensor_parallel=2)
    over_gb = (memory_per_gpu(w).total_bytes - gpu.memory_bytes) / 1e9
    assert over_gb > 1.0
    with pytest.raises(WorkloadError) as caught:
        check_memory(w, gpu)
    message = str(caught.value)
    assert f"{over_gb:.1f} GB more than the 42.4 GB of A100-SXM4-40GB" in message
    assert "It would fit with activation_checkpointing=True" in message
    for offered, size_gb in re.findall(r"tensor_parallel=(\d+) \(([\d.]+) GB\)", message):
        changed = w.with_sizes(tensor_parallel=int(offered))
        check_memory(changed, gpu)
        assert memory_per_gpu(changed).total_bytes / 1e9 == pytest.approx(float(size_gb), abs=0.05)


def test_the_fullest_stage_is_named_and_a_combination_where_no_single_change_is_enough() -> None:
    a40 = GPU.load("a40")
    w = Workload.preset("llama3.3_70b", pipeline_parallel=2, sequence_length=4096)
    with pytest.raises(WorkloadError, match=r"stage 1 of 2 needs .*No single change is enough") as caught:
        check_memory(w, a40)
    offered = re.search(r"it would fit with (.*) \(([\d.]+) GB\)", str(caught.value))
    assert offered is not None
    sizes = {name: yaml.safe_load(value) for name, value in re.findall(r"(\w+)=(\w+)", offered[1])}
    assert len(sizes) > 1
    changed = w.with_sizes(**sizes)
    check_memory(changed, a40)
    peak = max(memory_per_gpu(changed, s).total_bytes for s in range(changed.pipeline_parallel))
    assert peak / 1e9 == pytest.approx(float(offered[2]), abs=0.05)


def test_where_nothing_helps_larger_gpus_are_named() -> None:
    w = Workload.preset("bert_large", sequence_length=2**20, dtype="fp32")
    with pytest.raises(WorkloadError, match="choose larger GPUs"):
        check_memory(w, GPU.load("rtx2080ti"))


def test_only_planning_refuses_one_instruction_of_too_big_a_job_can_be_emulated() -> None:
    w, a40 = Workload.preset("gpt3_175b", **GPT3), GPU.load("a40")
    with pytest.raises(WorkloadError, match="of A40"):
        check_memory(w, a40)
    assert isinstance(emulate_phase(w, a40, PhasePlan("forward"), stage=1), Estimate)
