"""Fully sharded data parallelism: the bytes on the wire counted by hand, and everything else unchanged."""

from __future__ import annotations

from collections import Counter

import pytest

from energy_lightning.emulation import GPU, emulate_iteration, emulate_phase
from energy_lightning.types import PhasePlan, Plan, WorkloadError
from energy_lightning.workload import Partition, Workload

A100 = GPU.load("a100-sxm4-40gb")
LAYER = 2 * (2048 * (2 * 2048 + 2 * 8 * 64) + 3 * 2048 * 8192)  # bytes in bf16; Llama 3.2 1B
EMBEDDING = 2 * 2048 * 128256


def moved(partitions: tuple[Partition, ...]) -> Counter[str]:
    """Bytes of all collectives of one phase by kind."""
    total = Counter[str]()
    for p in partitions:
        if p.collective is not None:
            total[p.collective.kind] += p.count * p.collective.bytes
    return total


@pytest.mark.parametrize("nanobatched", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_parameters_are_gathered_twice_and_gradients_scattered_once(checkpointing: bool, nanobatched: bool) -> None:
    w = Workload.preset("llama3.2_1b_fsdp8", microbatch_size=2, activation_checkpointing=checkpointing)
    forward = moved(w.partitions("forward", nanobatched=nanobatched))
    backward = moved(w.partitions("backward", nanobatched=nanobatched))
    assert forward == {"all_gather": pytest.approx(16 * LAYER + EMBEDDING)}  # tied: one embedding
    assert backward == {
        "all_gather": pytest.approx(16 * LAYER),  # embedding and head stay gathered
        "reduce_scatter": pytest.approx(16 * LAYER + EMBEDDING),
    }
    assert [p.key for p in w.partitions("iteration", nanobatched=nanobatched)] == ["optimizer"]


def test_only_the_first_gathering_and_the_last_scattering_are_exposed() -> None:
    partitions = Workload.preset("llama3.2_1b_fsdp8").partitions("backward", nanobatched=False)
    exposed = {p.key: p.collective.bytes for p in partitions if p.collective and not p.launch_points}
    assert exposed == {
        "bwd_gather": pytest.approx(LAYER),
        "bwd_scatter": pytest.approx(LAYER + EMBEDDING),
    }


@pytest.mark.parametrize("nanobatched", [False, True])
@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("name", ["llama3.2_3b_tp2_cp2", "llama3.2_3b_tp4", "llama3.2_3b_cp2"])
def test_beside_other_parallelism_every_byte_is_kept(name: str, phase: str, nanobatched: bool) -> None:
    whole = Workload.preset(name, data_parallel=4, sequence_length=1024, activation_checkpointing=True)
    sharded = whole.with_sizes(data_parallel_kind="fully_sharded")
    before, after = (w.partitions(phase, nanobatched=nanobatched) for w in (whole, sharded))  # type: ignore[arg-type]
    flops = [sum(p.count * o.flops for p in parts for o in p.operators) for parts in (before, after)]
    wire = [sum(p.count * p.collective.wire_bytes for p in parts if p.collective) for parts in (before, after)]
    assert flops[1] == flops[0]
    share = (whole.num_replicas - 1) / whole.num_replicas
    layers, root = (n * 2 / whole.tensor_parallel for n in (28 * 100663296, 3072 * 128256))
    gathered = layers + root if phase == "forward" else 2 * layers + root
    assert wire[1] - wire[0] == pytest.approx(share * gathered)


def test_a_gpu_updates_its_share() -> None:
    whole, sharded = (
        Workload.preset(name).partitions("iteration", nanobatched=False)
        for name in ("llama3.2_1b", "llama3.2_1b_fsdp4")
    )
    assert sharded[-1].operators[0].bytes == pytest.approx(whole[-1].operators[0].bytes / 4)


def test_a_group_of_one_has_nothing_to_shard() -> None:
    w = Workload.preset("llama3.2_1b", data_parallel_kind="fully_sharded")
    plain = Workload.preset("llama3.2_1b")
    assert w.partitions("backward", nanobatched=False) == plain.partitions("backward", nanobatched=False)


def test_long_sequences_hide_what_short_ones_expose() -> None:
    def slowdown(sequence_length: int) -> float:
        sizes = {"sequence_length": sequence_length, "activation_checkpointing": True}
        times = [
            emulate_phase(Workload.preset(name, **sizes), A100, PhasePlan("forward", 1410)).time_s
            for name in ("llama3.1_8b_fsdp8", "llama3.1_8b")
        ]
        return times[0] / times[1]

    assert slowdown(8192) < 1.15
    assert slowdown(256) > 1.5


def test_an_iteration_of_it_runs_in_both_modes_with_a_pipeline() -> None:
    w = Workload.preset("llama3.2_3b_tp2_pp2_fsdp4", num_microbatches=4, microbatch_size=2, sequence_length=2048)
    for nanobatched in (False, True):
        plan = Plan.single_stage(PhasePlan("forward", 1200, nanobatched), PhasePlan("backward", 1200, nanobatched))
        result = emulate_iteration(w, A100, plan)
        assert result.num_gpus == 16
        assert result.time_s > emulate_iteration(w.with_sizes(data_parallel=1), A100, plan).time_s


def test_the_key_says_so_and_another_kind_is_refused() -> None:
    assert Workload.preset("bert_base_fsdp2").key() != Workload.preset("bert_base_dp2").key()
    with pytest.raises(WorkloadError, match="data_parallel_kind must be one of all_reduce, fully_sharded, got 'zero'"):
        Workload.preset("bert_base", data_parallel_kind="zero")
