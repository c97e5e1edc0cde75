"""Every refusal names the value, what is allowed and what to do."""

from __future__ import annotations

import re
from typing import Any

import pytest

from energy_lightning.types import WorkloadError
from energy_lightning.workload import ModelShape, Workload

COUNTS = (
    "tensor_parallel",
    "context_parallel",
    "pipeline_parallel",
    "data_parallel",
    "microbatch_size",
    "num_microbatches",
    "sequence_length",
)


@pytest.mark.parametrize("value", [0, -1, True, 2.0, float("nan"), float("inf"), "8", None])
@pytest.mark.parametrize("name", COUNTS)
def test_sizes_are_counts(name: str, value: object) -> None:
    with pytest.raises(WorkloadError, match=re.escape(f"{name} must be a whole number >= 1, got {value!r}")):
        Workload.preset("llama3.2_3b", **{name: value})


@pytest.mark.parametrize("value", [0, -3, False, 1.5, float("nan"), "64"])
@pytest.mark.parametrize("name", ["hidden_size", "num_heads", "head_dim", "ffn_size", "num_layers", "vocab_size"])
def test_shapes_are_counts(name: str, value: object) -> None:
    sizes: dict[str, Any] = dict.fromkeys(("hidden_size", "ffn_size", "num_layers", "vocab_size", "head_dim"), 8)
    sizes |= {"num_heads": 4, "num_kv_heads": 4}
    with pytest.raises(WorkloadError, match=re.escape(f"{name} must be a whole number >= 1, got {value!r}")):
        ModelShape(name="mine", **(sizes | {name: value}))


@pytest.mark.parametrize(
    ("preset", "sizes", "message"),
    [
        (
            "llama3.2_3b",
            {"tensor_parallel": 5},
            "tensor_parallel=5 does not divide num_heads=24; choose one of 1, 2, 3,",
        ),
        (
            "llama3.3_70b",
            {"tensor_parallel": 16},
            "tensor_parallel=16 does not divide num_kv_heads=8 (key and value heads are not replicated); "
            "choose one of 1, 2, 4, 8",
        ),
        (
            "bert_base",
            {"context_parallel": 3},
            "context_parallel=3 does not divide sequence_length=128; choose one of 1, 2",
        ),
        (
            "llama3.2_3b",
            {"context_parallel": 4, "sequence_length": 4100},
            "context_parallel=4 does not divide sequence_length=4100 and its two halves a rank",
        ),
        (
            "llama3.2_3b",
            {"tensor_parallel": 8, "sequence_length": 100, "sequence_parallel": True},
            "tensor_parallel=8 does not divide sequence_length=100 (sequence_parallel); choose one of 1, 2, 4, 5",
        ),
        (
            "llama3.2_3b",
            {"pipeline_parallel": 29},
            "pipeline_parallel=29 needs at least one layer a stage, the model has 28",
        ),
        (
            "llama3.2_3b",
            {"pipeline_parallel": 2, "layers_per_stage": (15, 14)},
            "2 stages of >= 1 layer, in all 28, got (15, 14), in all 29",
        ),
        ("llama3.2_3b", {"pipeline_parallel": 2, "layers_per_stage": (28,)}, "must name 2 stages"),
        ("llama3.2_3b", {"pipeline_parallel": 2, "layers_per_stage": (28, 0)}, "got (28, 0)"),
        ("llama3.2_3b", {"pipeline_parallel": 2, "layers_per_stage": (14.0, 14.0)}, "got (14.0, 14.0)"),
        (
            "llama3.2_3b",
            {"pipeline_parallel": 2, "layers_per_stage": "14,14"},
            "must list layers, e.g. [15, 13], got '14,14'",
        ),
        ("llama3.2_3b", {"layers_per_stage": 28}, "must list layers, e.g. [15, 13], got 28"),
        ("llama3.2_3b", {"dtype": "int8"}, "dtype must be one of bf16, fp16, fp32, got 'int8'"),
        (
            "llama3.2_3b",
            {"activation_checkpointing": "yes"},
            "activation_checkpointing must be true or false, got 'yes'",
        ),
        ("llama3.2_3b", {"sequence_parallel": 1}, "sequence_parallel must be true or false, got 1"),
        ("llama3.2_3b", {"tensor_paralel": 2}, "unknown workload argument 'tensor_paralel'; known: "),
        ("llama3.2_3b_tp0", {}, "tensor_parallel must be a whole number >= 1, got 0"),
        ("llama3.2-3b", {}, "unknown workload preset 'llama3.2-3b'; did you mean llama3.2_3b"),
        ("lama3.1_8b_tp8", {}, "did you mean llama3.1_8b"),
        ("gpt3", {}, "did you mean gpt3_175b"),
    ],
)
def test_what_cannot_be_split_names_value_and_remedy(preset: str, sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=re.escape(message)):
        Workload.preset(preset, **sizes)


def test_a_name_is_no_model() -> None:
    with pytest.raises(WorkloadError, match=r"model must be a ModelShape .*, got 'llama3\.2_3b'"):
        Workload(model="llama3.2_3b")  # type: ignore[arg-type]


def test_every_size_offered_instead_is_accepted() -> None:
    with pytest.raises(WorkloadError) as caught:
        Workload.preset("llama3.2_3b", context_parallel=5, sequence_length=96)
    offered = [int(n) for n in str(caught.value).rpartition("choose one of ")[2].split(", ")]
    assert offered == [1, 2, 3, 4, 6, 8, 12, 16, 24, 48]
    for size in offered:
        assert Workload.preset("llama3.2_3b", context_parallel=size, sequence_length=96).context_parallel == size


def test_an_encoder_is_cut_once_a_decoder_in_balanced_halves() -> None:
    assert Workload.preset("bert_base", context_parallel=4, sequence_length=132).context_parallel == 4
    with pytest.raises(WorkloadError, match="two halves a rank"):
        Workload.preset("llama3.2_1b", context_parallel=4, sequence_length=132)


@pytest.mark.parametrize("stage", [-1, 2, 10])
def test_no_such_stage(stage: int) -> None:
    w = Workload.preset("llama3.2_3b_pp2")
    for ask in (w.parameters_per_gpu, lambda s: w.partitions("forward", stage=s, nanobatched=False)):
        with pytest.raises(WorkloadError, match=f"no pipeline stage {stage}; it has stages 0 to 1"):
            ask(stage)
