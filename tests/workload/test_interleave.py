"""Partition counts against an execution that is simply written down, step by step."""

from __future__ import annotations

from collections import Counter

import pytest

from energy_lightning.workload import Workload


def executed(workload: Workload, phase: str) -> Counter[tuple[str, str]]:
    """How often each (compute segment, kind of collective beside it) comes by, walking layers and nanobatches."""
    forward = [("fwd_attn", "all_reduce"), ("fwd_mlp", "all_reduce")]
    backward = [("bwd_mlp", "all_reduce"), ("bwd_attn", "all_reduce")]
    if workload.context_parallel > 1:
        forward = [("fwd_qkv", "all_gather"), ("fwd_ao", "all_reduce"), ("fwd_mlp", "all_reduce")]
        backward = [
            ("bwd_mlp", "all_reduce"),
            ("bwd_o", "all_gather"),
            ("bwd_a", "reduce_scatter"),
            ("bwd_qkv", "all_reduce"),
        ]
    chain = forward
    if phase == "backward":
        recomputed = [(key.replace("fwd", "rec"), kind) for key, kind in forward]
        recomputed[-1] = (recomputed[-1][0], "none")
        chain = (recomputed if workload.activation_checkpointing else []) + backward
    steps, pending = Counter[tuple[str, str]](), "none"
    for _ in range(workload.model.num_layers):
        for key, closing in chain:
            for _ in range(2):
                steps[key, pending] += 1
                pending = closing
    return steps


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", ["llama3.2_1b_tp2", "qwen3_1.7b_tp4_cp2"])
def test_partitions_are_those_of_the_walk(name: str, checkpointing: bool, phase: str) -> None:
    w = Workload.preset(name, activation_checkpointing=checkpointing)
    found = Counter[tuple[str, str]]()
    for p in w.partitions(phase, nanobatched=True):  # type: ignore[arg-type]
        if not p.nanobatched:
            continue
        if p.key.endswith("_edge"):
            first = {o.name for o in p.operators}
            assert p.count == 1
            assert "norm_0" in first
            continue
        base = p.key.removesuffix("_alone")
        for suffix in ("_ar", "_ag", "_rs"):
            base = base.removesuffix(suffix)
        found[base, p.collective.kind if p.collective else "none"] += p.count
    expected = executed(w, phase)
    first_key = next(key for key, kind in expected if kind == "none")
    expected[first_key, "none"] -= 1  # the very first compute is part of the edge
    assert +found == +expected


def test_keys_with_tensor_parallelism_only() -> None:
    w = Workload.preset("llama3.2_1b_tp2", activation_checkpointing=True)
    forward = [p.key for p in w.partitions("forward", nanobatched=True)]
    backward = [p.key for p in w.partitions("backward", nanobatched=True)]
    assert forward == ["fwd_attn", "fwd_mlp", "fwd_edge", "fwd_rest"]
    assert backward == [
        "rec_attn",
        "rec_mlp",
        "rec_mlp_alone",
        "bwd_mlp_alone",
        "bwd_mlp",
        "bwd_attn",
        "bwd_edge",
        "bwd_rest",
    ]


def test_launch_points() -> None:
    points = {
        p.key: p.launch_points for p in Workload.preset("llama3.2_1b_tp2").partitions("forward", nanobatched=True)
    }
    assert points["fwd_attn"] == ("norm_0", "linear_0", "rope_0", "attn_0")
    assert points["fwd_mlp"] == ("norm_0", "linear_0", "activation_0")
    assert points["fwd_edge"] == points["fwd_rest"] == ()


def test_nothing_to_launch_without_a_collective() -> None:
    partitions = Workload.preset("llama3.2_1b").partitions("backward", nanobatched=True)
    assert all(p.collective is None and p.launch_points == () for p in partitions)


def test_names_tell_the_mode() -> None:
    w = Workload.preset("llama3.2_1b_tp2")
    assert w.partitions("forward", nanobatched=False)[0].name == "fwd_attn.sequential"
    assert w.partitions("forward", nanobatched=True)[0].name == "fwd_attn"
