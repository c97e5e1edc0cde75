"""Shapes against numbers worked out by hand from the models' published configurations."""

from __future__ import annotations

import pytest

from energy_lightning.types import WorkloadError
from energy_lightning.workload import Collective, ModelShape, Workload, preset_names


def flops(workload: Workload, phase: str, stage: int = 0) -> float:
    partitions = workload.partitions(phase, stage=stage, nanobatched=False)  # type: ignore[arg-type]
    return sum(p.count * o.flops for p in partitions for o in p.operators)


def test_llama_3b_forward_flops_by_hand() -> None:
    w = Workload.preset("llama3.2_3b", microbatch_size=2, sequence_length=1024)
    tokens = 2 * 1024
    linears = 28 * (3072 * 3072 * 2 + 2 * 3072 * 1024 + 3 * 3072 * 8192) + 3072 * 128256
    attention = 28 * 2 * (1024 / 2) * 3072  # scores and values, half masked
    assert flops(w, "forward") == pytest.approx(2 * tokens * (linears + attention))


def test_backward_is_two_forwards_of_the_linears_and_two_and_a_half_of_flash_attention() -> None:
    w = Workload.preset("llama3.2_1b", sequence_length=1024)
    attention = 16 * 2 * 2 * 1024 * (1024 / 2) * 2048
    assert flops(w, "backward") == pytest.approx(2 * flops(w, "forward") + 0.5 * attention)


def test_bert_attends_to_every_key_and_has_a_transform() -> None:
    w = Workload.preset("bert_base", microbatch_size=1, sequence_length=128)
    linears = 12 * (4 * 768 * 768 + 2 * 768 * 3072) + 768 * 768 + 768 * 30522
    assert flops(w, "forward") == pytest.approx(2 * 128 * (linears + 12 * 2 * 128 * 768))


@pytest.mark.parametrize("tensor_parallel", [2, 4, 8])
def test_tensor_parallelism_divides_flops(tensor_parallel: int) -> None:
    whole = Workload.preset("llama3.2_3b", sequence_length=512)
    part = Workload.preset("llama3.2_3b", sequence_length=512, tensor_parallel=tensor_parallel)
    assert flops(part, "forward") == pytest.approx(flops(whole, "forward") / tensor_parallel)


def test_context_parallelism_divides_flops() -> None:
    whole = Workload.preset("qwen3_1.7b_tp4", sequence_length=512)
    part = Workload.preset("qwen3_1.7b_tp4_cp2", sequence_length=512)
    assert flops(part, "backward") == pytest.approx(flops(whole, "backward") / 2)


def test_checkpointing_adds_one_forward_of_the_layers() -> None:
    kept = Workload.preset("llama3.2_1b", sequence_length=256)
    recomputed = Workload.preset("llama3.2_1b", sequence_length=256, activation_checkpointing=True)
    head = 2 * 256 * 2048 * 128256
    extra = flops(recomputed, "backward") - flops(kept, "backward")
    assert extra == pytest.approx(flops(kept, "forward") - head)


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("name", ["llama3.2_1b_tp2", "qwen3_1.7b_tp4_cp2"])
def test_nanobatches_do_the_same_flops(name: str, phase: str) -> None:
    w = Workload.preset(name, microbatch_size=4, sequence_length=256, activation_checkpointing=True)
    halves = w.partitions(phase, nanobatched=True)  # type: ignore[arg-type]
    assert sum(p.count * o.flops for p in halves for o in p.operators) == pytest.approx(flops(w, phase))


def test_stages_share_the_layers_and_only_the_ends_have_embedding_and_head() -> None:
    w = Workload.preset("llama3.2_3b", pipeline_parallel=4, layers_per_stage=(8, 8, 7, 5))
    keys = [{p.key: p.count for p in w.partitions("forward", stage=s, nanobatched=False)} for s in range(4)]
    assert [k["fwd_attn"] for k in keys] == [8, 8, 7, 5]
    assert ["fwd_rest" in k for k in keys] == [True, False, False, True]


def test_layers_are_split_evenly_by_default() -> None:
    assert Workload.preset("llama3.2_3b", pipeline_parallel=3).layers_per_stage == (10, 9, 9)


def test_suffixes_and_arguments() -> None:
    w = Workload.preset("llama3.2_3b_tp8_pp2", data_parallel=2)
    assert (w.tensor_parallel, w.pipeline_parallel, w.data_parallel, w.num_gpus) == (8, 2, 2, 32)
    assert Workload.preset("llama3.2_3b_tp8", tensor_parallel=4).tensor_parallel == 4


def test_gradients_are_reduced_over_replicas_only() -> None:
    keys = [p.key for p in Workload.preset("bert_base").partitions("iteration", nanobatched=False)]
    assert keys == ["optimizer"]
    (bucket, _) = Workload.preset("bert_base_dp4").partitions("iteration", nanobatched=False)
    assert bucket.collective is not None
    assert bucket.collective.group_size == 4


def test_first_and_last_stage_sum_the_gradients_of_a_tied_embedding() -> None:
    w = Workload.preset("llama3.2_3b_tp8_pp3_dp2")
    ends = [{p.key: p.collective for p in w.partitions("iteration", stage=s, nanobatched=False)} for s in range(3)]
    assert [list(end) for end in ends] == [
        ["grad_bucket", "grad_embedding", "optimizer"],
        ["grad_bucket", "optimizer"],
        ["grad_bucket", "grad_embedding", "optimizer"],
    ]
    for end in (ends[0], ends[2]):
        assert end["grad_embedding"] == Collective("all_reduce", 128256 * 3072 / 8 * 2, 2)
    alone = Workload.preset("llama3.1_8b_tp8_pp2")  # a head of its own
    assert [p.key for p in alone.partitions("iteration", nanobatched=False)] == ["optimizer"]


def test_sequence_parallelism_thins_the_glue_only() -> None:
    plain = Workload.preset("llama3.2_3b_tp8").partitions("forward", nanobatched=False)[0].operators
    split = (
        Workload.preset("llama3.2_3b_tp8", sequence_parallel=True).partitions("forward", nanobatched=False)[0].operators
    )
    assert split[0].bytes == pytest.approx(plain[0].bytes / 8)
    assert split[1:] == plain[1:]


def test_sequence_parallelism_moves_the_same_bytes_between_gpus() -> None:
    """All-gather and reduce-scatter instead of an all-reduce: a ring's all-reduce is just these two."""
    for phase in ("forward", "backward"):
        plain, split = (
            Workload.preset("llama3.2_3b_tp8", sequence_parallel=on).partitions(phase, nanobatched=True)  # type: ignore[arg-type]
            for on in (False, True)
        )
        assert [p.collective for p in plain] == [p.collective for p in split]
        assert plain[0].collective is not None
        tokens_bytes = 0.5 * 128 * 3072 * 2
        assert plain[0].collective.wire_bytes == pytest.approx(tokens_bytes * 7 / 8 + tokens_bytes * 7 / 8)


def test_an_encoder_split_over_context_ranks_sees_all_keys() -> None:
    whole = Workload.preset("bert_large", microbatch_size=4, sequence_length=512)
    part = whole.with_sizes(context_parallel=4)
    for phase in ("forward", "backward"):
        assert flops(part, phase) == pytest.approx(flops(whole, phase) / 4)
    (gather,) = {p.collective for p in part.partitions("forward", nanobatched=True) if p.collective is not None}
    assert (gather.kind, gather.group_size) == ("all_gather", 4)
    assert gather.bytes == 2 * 512 * 2 * 1024 * 2  # half of 4 sequences, keys and values of 1024, 2 bytes


@pytest.mark.parametrize(("dtype", "factor"), [("bf16", 1.0), ("fp16", 1.0), ("fp32", 2.0)])
def test_formats_change_bytes_not_flops(dtype: str, factor: float) -> None:
    plain, other = (Workload.preset("llama3.2_1b_tp2", dtype=d) for d in ("bf16", dtype))
    assert flops(plain, "backward") == flops(other, "backward")
    for a, b in zip(*(w.partitions("forward", nanobatched=True)[:2] for w in (plain, other)), strict=True):
        assert b.collective is not None
        assert a.collective is not None
        assert b.collective.bytes == factor * a.collective.bytes
        assert [o.bytes for o in b.operators] == [factor * o.bytes for o in a.operators]
        assert {o.dtype for o in b.operators} == {dtype}
    assert other.boundary_bytes == factor * plain.boundary_bytes


def test_head_embedding_and_loss_are_on_the_stages_that_hold_them() -> None:
    w = Workload.preset("llama3.2_3b_tp2_pp3", sequence_length=512)
    names = [
        [
            o.name
            for p in w.partitions("backward", stage=s, nanobatched=False)
            if p.key == "bwd_rest"
            for o in p.operators
        ]
        for s in range(3)
    ]
    assert names == [["embedding_0"], [], ["loss_0", "linear_0", "norm_0"]]
    logits_flops = 2 * 512 * 3072 * 128256 / 2
    middle = flops(w, "forward", 1) / w.layers_per_stage[1] * w.layers_per_stage[2]
    assert flops(w, "forward", 2) - middle == pytest.approx(logits_flops)


LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "vocab_size": 100,
    "hidden_act": "silu",
}


def test_from_llama_mapping() -> None:
    w = Workload.from_config(LLAMA, tensor_parallel=2)
    assert w.model == ModelShape(
        name="llama",
        hidden_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        ffn_size=128,
        num_layers=3,
        vocab_size=100,
    )


def test_from_transformers_bert_config() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(hidden_size=32, num_attention_heads=2, num_hidden_layers=2, intermediate_size=64)
    config.architectures = ["BertForSequenceClassification"]
    model = Workload.from_config(config).model
    assert (model.causal, model.gated, model.rotary, model.head) == (False, False, False, "classification")


def test_gpt2_names_are_understood() -> None:
    config = {
        "model_type": "gpt2",
        "n_embd": 48,
        "n_head": 4,
        "n_layer": 2,
        "vocab_size": 99,
        "activation_function": "gelu_new",
    }
    model = Workload.from_config(config).model
    assert (model.hidden_size, model.ffn_size, model.gated, model.causal) == (48, 192, False, True)


def test_a_gpt2_file_without_a_word_on_tying_or_heads() -> None:
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_head": 12, "n_layer": 12}
    model = Workload.from_config(config | {"vocab_size": 50257}).model
    assert (model.head, model.tied_embeddings, model.rotary) == ("causal_lm", True, False)
    assert Workload(model=model).parameters_per_gpu() == pytest.approx(124e6, rel=0.01)


def test_falcon_with_one_key_value_head() -> None:
    config = {"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32}
    config |= {"vocab_size": 65024, "multi_query": True}
    w = Workload.from_config(config)
    assert (w.model.num_kv_heads, w.model.gated) == (1, False)
    assert w.parameters_per_gpu() == pytest.approx(6.92e9, rel=0.01)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"is_encoder_decoder": True}, "encoder-decoder models are not modelled"),
        ({"kv_lora_rank": 512}, "latent attention is not modelled"),
        ({"num_attention_heads": 3}, "num_attention_heads=3 must divide hidden_size=64"),
        ({"hidden_size": "64"}, "must divide hidden_size='64'"),
        ({"num_hidden_layers": 2.5}, "num_layers must be a whole number >= 1, got 2.5"),
    ],
)
def test_configurations_that_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        Workload.from_config(LLAMA | change)


def test_something_that_is_no_configuration() -> None:
    with pytest.raises(WorkloadError, match="need a transformers configuration or its mapping, got str"):
        Workload.from_config("llama")


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama3.2_1b", 1.24e9),
        ("llama3.2_3b", 3.21e9),
        ("llama3.1_8b", 8.03e9),
        ("llama3.3_70b", 70.6e9),
        ("qwen3_1.7b", 1.72e9),
        ("bert_base", 110e6),
        ("bert_large", 335e6),
        ("gpt3_175b", 175e9),
        ("bloom_176b", 176.2e9),
    ],
)
def test_every_preset_has_its_published_parameters(name: str, published: float) -> None:
    w = Workload.preset(name)
    # Learned positions, the pooler, norms and biases are left out: 1.5% of so small a model as BERT base.
    assert w.parameters_per_gpu() == pytest.approx(published, rel=0.015 if name == "bert_base" else 0.01)
    stages = w.with_sizes(pipeline_parallel=4)
    again = sum(stages.parameters_per_gpu(s) for s in range(4))  # a tied head is held again by the last stage
    tied = w.model.tied_embeddings * w.model.embedding_parameters
    assert again == pytest.approx(w.parameters_per_gpu() + tied)


def test_kv_heads_must_divide_heads() -> None:
    with pytest.raises(WorkloadError, match="num_kv_heads must divide num_heads = 4, got 3"):
        Workload.from_config(LLAMA | {"num_key_value_heads": 3})


def test_missing_size_and_experts_are_refused() -> None:
    with pytest.raises(WorkloadError, match="has none of hidden_size"):
        Workload.from_config({"model_type": "llama", "num_attention_heads": 2})
    with pytest.raises(WorkloadError, match="mixture-of-experts"):
        Workload.from_config(LLAMA | {"num_local_experts": 8})


def test_no_such_stage_or_phase() -> None:
    w = Workload.preset("bert_base")
    with pytest.raises(WorkloadError, match="no pipeline stage 1"):
        w.partitions("forward", stage=1, nanobatched=False)
    with pytest.raises(WorkloadError, match="phase must be"):
        w.partitions("sideways", nanobatched=False)  # type: ignore[arg-type]


def test_every_preset_builds_and_has_a_distinct_key() -> None:
    keys = [str(Workload.preset(name).key()) for name in preset_names()]
    assert len(set(keys)) == len(keys) == 9


def test_key_changes_with_every_size() -> None:
    w = Workload.preset("llama3.2_1b")
    changed = {
        "tensor_parallel": 2,
        "microbatch_size": 2,
        "sequence_length": 64,
        "activation_checkpointing": True,
        "dtype": "fp32",
        "data_parallel_kind": "fully_sharded",
    }
    for name, value in changed.items():
        assert w.with_sizes(**{name: value}).key() != w.key(), name


@pytest.mark.parametrize("nanobatched", [False, True])
@pytest.mark.parametrize("phase", ["forward", "backward", "iteration"])
def test_without_communication_only_collectives_are_missing(phase: str, nanobatched: bool) -> None:
    sizes = {"tensor_parallel": 4, "pipeline_parallel": 2, "data_parallel": 2, "sequence_length": 1024}
    whole = Workload.preset("gpt3_175b", **sizes)
    alone = whole.with_sizes(communication=False)
    parts, silent = (w.partitions(phase, stage=1, nanobatched=nanobatched) for w in (whole, alone))  # type: ignore[arg-type]
    assert any(p.collective for p in parts)
    assert not any(p.collective for p in silent)
    assert (whole.boundary_bytes > 0.0, alone.boundary_bytes) == (True, 0.0)
    done, silently_done = (sum(p.count * o.flops for p in ps for o in p.operators) for ps in (parts, silent))
    assert silently_done == pytest.approx(done)


def test_a_product_with_rows_of_odd_length_is_slower() -> None:
    """GPT-3's 50257 words do not divide into aligned shards; Bloom's 250880 do. float32 rows need no 16 bytes here."""

    def head_efficiency(name: str, dtype: str) -> float:
        stage = Workload.preset(name, tensor_parallel=8, pipeline_parallel=2, dtype=dtype)
        rest = stage.partitions("forward", stage=1, nanobatched=False)[-1]
        return next(o.efficiency for o in rest.operators if o.kind == "linear")

    assert head_efficiency("bloom_176b", "bf16") == head_efficiency("gpt3_175b", "fp32") == 1.0
    assert head_efficiency("gpt3_175b", "bf16") < 0.7


def test_only_backward_linears_are_gradients() -> None:
    job = Workload.preset("llama3.2_1b", activation_checkpointing=True)
    by_phase = {
        phase: [(p.key[:3], o) for p in job.partitions(phase, nanobatched=False) for o in p.operators]
        for phase in ("forward", "backward")
    }
    assert not any(o.gradient for _, o in by_phase["forward"])
    assert all(o.gradient == (prefix == "bwd" and o.kind == "linear") for prefix, o in by_phase["backward"])


@pytest.mark.parametrize(("phase", "passes"), [("forward", 2), ("backward", 3)])
def test_one_stage_only_looks_up_the_first_of_several_does_more(phase: str, passes: int) -> None:
    one = Workload.preset("llama3.2_3b", microbatch_size=2, sequence_length=1024)
    read_bytes = []
    for job in (one, one.with_sizes(pipeline_parallel=2)):
        operators = [o for p in job.partitions(phase, stage=0, nanobatched=False) for o in p.operators]  # type: ignore[arg-type]
        read_bytes.append(sum(o.bytes for o in operators if o.name.startswith("embedding")))
    assert read_bytes[0] == passes * 2 * 1024 * 3072 * 2  # bf16
    assert read_bytes[1] > 30 * read_bytes[0]
