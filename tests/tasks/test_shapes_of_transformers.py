"""Shapes read from transformers' configurations: parameters and FLOPs against the models themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from energy_lightning.types import WorkloadError
from energy_lightning.workload import Workload

# Norms, biases, positions, poolers and prediction transforms are left out: 2% of these sizes at most.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", {}),
    "roberta": ("RobertaForMaskedLM", {}),
    "electra": ("ElectraForMaskedLM", {"hidden_size": 768, "intermediate_size": 3072, "embedding_size": 768}),
    "distilbert": ("DistilBertForMaskedLM", {}),
    "modernbert": ("ModernBertForMaskedLM", {}),
    "gpt2": ("GPT2LMHeadModel", {}),
    "gpt_neo": ("GPTNeoForCausalLM", {}),
    "gptj": ("GPTJForCausalLM", {"n_layer": 4}),
    "llama": ("LlamaForCausalLM", {"num_hidden_layers": 4}),
    "qwen2": ("Qwen2ForCausalLM", {"num_hidden_layers": 4, "num_key_value_heads": 8}),
    "qwen3": ("Qwen3ForCausalLM", {"num_hidden_layers": 4, "num_key_value_heads": 8}),
    "mistral": ("MistralForCausalLM", {"num_hidden_layers": 4}),
    "gemma": ("GemmaForCausalLM", {"num_hidden_layers": 4}),
    "gemma2": ("Gemma2ForCausalLM", {"num_hidden_layers": 4}),
    "gemma3_text": ("Gemma3ForCausalLM", {"num_hidden_layers": 4}),
    "phi": ("PhiForCausalLM", {"num_hidden_layers": 4}),
    "phi3": ("Phi3ForCausalLM", {"num_hidden_layers": 4, "pad_token_id": 0}),
    "opt": ("OPTForCausalLM", {}),
    "bloom": ("BloomForCausalLM", {"hidden_size": 1024, "n_head": 16, "n_layer": 4, "vocab_size": 25088}),
    "gpt_neox": ("GPTNeoXForCausalLM", {"num_hidden_layers": 4}),
    "falcon": ("FalconForCausalLM", {"num_hidden_layers": 4}),
    "starcoder2": ("Starcoder2ForCausalLM", {"num_hidden_layers": 4, "bos_token_id": 0, "eos_token_id": 0}),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", {}),
    "olmo2": ("Olmo2ForCausalLM", {"num_hidden_layers": 4}),
    "smollm3": ("SmolLM3ForCausalLM", {"num_hidden_layers": 4, "pad_token_id": 0}),
    "glm4": ("Glm4ForCausalLM", {"num_hidden_layers": 4, "pad_token_id": 0}),
}  # fmt: skip


def configuration(model_type: str, **sizes: Any) -> Any:
    config = transformers.AutoConfig.for_model(model_type, **sizes)
    config.architectures = [CONFIGS[model_type][0]]
    return config


def on_meta(config: Any, **options: Any) -> torch.nn.Module:
    with torch.device("meta"):
        model: torch.nn.Module = getattr(transformers, config.architectures[0])._from_config(config, **options)
    return model


@pytest.mark.parametrize("model_type", CONFIGS)
def test_parameters_are_the_models(model_type: str) -> None:
    config = configuration(model_type, **CONFIGS[model_type][1])
    model = on_meta(config)
    model.tie_weights()  # type: ignore[operator]
    expected = sum(p.numel() for p in model.parameters())
    assert Workload.from_config(config).parameters_per_gpu() == pytest.approx(expected, rel=0.02)


TINY = {"vocab_size": 256, "num_hidden_layers": 3}
COUNTED = {
    "bert": {"hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4, **TINY},
    "gpt2": {"n_embd": 64, "n_head": 4, "n_layer": 3, "n_inner": 192, "vocab_size": 256},
    "llama": {"hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2, **TINY},
    "qwen3": {"hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2, **TINY},
    "gpt_neox": {"hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4, **TINY},
    "opt": {"hidden_size": 64, "ffn_dim": 192, "num_attention_heads": 4, "word_embed_proj_dim": 64, **TINY},
}  # fmt: skip


def flops(workload: Workload, phase: str, *, attention: float) -> float:
    """All matrix products, attention's counted `attention` times."""
    partitions = workload.partitions(phase, nanobatched=False)  # type: ignore[arg-type]
    operators = [(p.count, o) for p in partitions for o in p.operators]
    return sum(count * o.flops * (attention if o.kind == "attention" else 1.0) for count, o in operators)


@pytest.mark.parametrize("model_type", COUNTED)
def test_flops_are_those_that_torch_counts(model_type: str) -> None:
    """Eager attention computes every score, and backward takes twice its forward; ours skips what a causal mask hides
    and computes the scores once more in backward (2.5), as flash attention does."""
    config = configuration(model_type, **COUNTED[model_type])
    model = on_meta(config, attn_implementation="eager").train()
    w = Workload.from_config(config, microbatch_size=2, sequence_length=128)
    tokens = torch.zeros(2, 128, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as forward:
        logits = model(input_ids=tokens).logits
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    causal = 2.0 if w.model.causal else 1.0
    assert flops(w, "forward", attention=causal) == pytest.approx(forward.get_total_flops(), rel=1e-6)
    assert flops(w, "backward", attention=causal * 2.0 / 2.5) == pytest.approx(backward.get_total_flops(), rel=1e-6)


def test_six_flops_a_parameter_and_token() -> None:
    w = Workload.preset("llama3.1_8b", sequence_length=1024)
    linear = sum(flops(w, phase, attention=0.0) for phase in ("forward", "backward"))
    without_embedding = w.parameters_per_gpu() - w.model.embedding_parameters
    assert linear == pytest.approx(6 * without_embedding * 1024)


@pytest.mark.parametrize(
    ("model_type", "message"),
    [
        ("t5", "t5: encoder-decoder models are not modelled"),
        ("bart", "bart: encoder-decoder"),
        ("mixtral", r"mixtral: mixture-of-experts models are not modelled \(8 experts\)"),
        ("qwen3_moe", "qwen3_moe: mixture-of-experts"),
        ("deepseek_v3", "deepseek_v3: mixture-of-experts"),
        ("albert", "albert: layers that share their weights"),
        ("mamba", "mamba: the configuration has none of num_attention_heads"),
        ("vit", "vit: the configuration has none of vocab_size"),
    ],
)
def test_what_is_no_dense_stack_is_refused(model_type: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        Workload.from_config(transformers.AutoConfig.for_model(model_type))


def test_the_text_part_of_a_multimodal_configuration() -> None:
    text = {
        "hidden_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "num_hidden_layers": 2,
    }
    config = transformers.AutoConfig.for_model("gemma3", text_config=text)
    assert Workload.from_config(config).model.hidden_size == 128
