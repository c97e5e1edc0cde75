"""What a transformers configuration says about a model's shape, whatever its family calls it.

Unknown decoder families are read as Llama-like: rotary positions, and a gated MLP where the activation is one that such
MLPs use. Of a multimodal configuration the text model is taken. Not modelled: attention windows (all keys are counted),
attention and MLP side by side (counted one after the other), embeddings narrower than the hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from energy_lightning.types import WorkloadError

_ENCODERS = frozenset(
    {
        "bert",
        "roberta",
        "camembert",
        "electra",
        "xlm-roberta",
        "distilbert",
        "mpnet",
        "modernbert",
        "deberta",
        "deberta-v2",
    }
)
_GATED_ACTIVATIONS = frozenset({"silu", "swish", "gelu_pytorch_tanh"})
_PLAIN_MLP = _ENCODERS - {"modernbert"} | {
    *(
        "gpt2",
        "gpt_neo",
        "gpt_neox",
        "gptj",
        "gpt_bigcode",
        "codegen",
        "opt",
        "bloom",
        "mpt",
        "phi",
        "falcon",
        "starcoder2",
    ),
    *("nemotron", "persimmon"),
}
_GATED_MLP = frozenset({"modernbert"})
_NO_ROTARY = _ENCODERS - {"modernbert"} | {"gpt2", "gpt_neo", "gpt_bigcode", "opt", "bloom", "mpt"}
_TIED = _ENCODERS | {"gpt2", "gpt_neo", "gpt_bigcode", "opt", "bloom", "mpt", "falcon", "starcoder2", "gemma", "gemma2"}
_QK_NORM = ("qwen3", "gemma3", "olmo2", "olmo3")
_SHARED_LAYERS = frozenset({"albert"})


def shape_fields(config: Any) -> dict[str, Any]:
    """Arguments of `ModelShape` except its name, and "model_type", from a configuration object or its mapping.

    Raises:
        WorkloadError: a size is missing, or the model is no dense stack of decoder or encoder layers.
    """
    values = _plain(config)
    model_type = str(values.get("model_type") or "llama")
    _refuse(values, model_type)
    heads = _size(values, model_type, "num_attention_heads", "n_head", "n_heads", "num_heads")
    hidden_size = _size(values, model_type, "hidden_size", "n_embd", "d_model", "dim")
    return {
        "model_type": model_type,
        "hidden_size": hidden_size,
        "num_heads": heads,
        "num_kv_heads": _kv_heads(values, model_type, heads),
        "head_dim": _head_dim(values, model_type, hidden_size, heads),
        "ffn_size": _first(values, "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim")
        or 4 * hidden_size,
        "num_layers": _size(values, model_type, "num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        "vocab_size": _size(values, model_type, "vocab_size"),
        "causal": model_type not in _ENCODERS,
        "gated": _gated(values, model_type),
        "rotary": model_type not in _NO_ROTARY and not values.get("alibi"),
        "qk_norm": model_type.startswith(_QK_NORM) or bool(_first(values, "use_qk_norm", "qk_layernorm")),
        "head": _head(values, model_type),
        "num_labels": _num_labels(values),
        "tied_embeddings": bool(values.get("tie_word_embeddings", model_type in _TIED)),
    }


def _plain(config: Any) -> Mapping[str, Any]:
    if not isinstance(config, Mapping) and not hasattr(config, "to_dict"):
        raise WorkloadError(f"need a transformers configuration or its mapping, got {type(config).__name__}")
    values: Mapping[str, Any] = config if isinstance(config, Mapping) else config.to_dict()
    text = values.get("text_config")
    return text if isinstance(text, Mapping) and text else values


def _refuse(values: Mapping[str, Any], model_type: str) -> None:
    experts = _first(values, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    if experts:
        raise WorkloadError(
            f"{model_type}: mixture-of-experts models are not modelled ({experts} experts); give the ModelShape of a "
            "dense model that does the same work for a token"
        )
    if values.get("is_encoder_decoder"):
        raise WorkloadError(
            f"{model_type}: encoder-decoder models are not modelled (cross-attention); give the ModelShape of the "
            "stack that takes most of the time"
        )
    if model_type in _SHARED_LAYERS:
        raise WorkloadError(
            f"{model_type}: layers that share their weights are not modelled; give a ModelShape instead"
        )
    if values.get("kv_lora_rank"):
        raise WorkloadError(f"{model_type}: latent attention is not modelled (kv_lora_rank); give a ModelShape instead")


def _first(values: Mapping[str, Any], *names: str) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)


def _size(values: Mapping[str, Any], model_type: str, *names: str) -> Any:
    value = _first(values, *names)
    if value is None:
        raise WorkloadError(
            f"{model_type}: the configuration has none of {', '.join(names)}; give a ModelShape instead"
        )
    return value


def _kv_heads(values: Mapping[str, Any], model_type: str, heads: Any) -> Any:
    if model_type == "falcon" and not values.get("new_decoder_architecture"):
        return 1 if values.get("multi_query") else heads
    found = _first(values, "num_key_value_heads", "num_kv_heads")
    return found or (1 if values.get("multi_query") else heads)


def _head_dim(values: Mapping[str, Any], model_type: str, hidden_size: Any, heads: Any) -> Any:
    given = _first(values, "head_dim")
    if given is not None:
        return given
    if not (isinstance(hidden_size, int) and isinstance(heads, int) and heads > 0) or hidden_size % heads:
        raise WorkloadError(
            f"{model_type}: num_attention_heads={heads!r} must divide hidden_size={hidden_size!r} where head_dim is "
            "not given"
        )
    return hidden_size // heads


def _gated(values: Mapping[str, Any], model_type: str) -> bool:
    names = ("hidden_act", "activation_function", "hidden_activation", "activation")
    activation = str(_first(values, *names) or "gelu")
    return model_type in _GATED_MLP or (model_type not in _PLAIN_MLP and activation in _GATED_ACTIVATIONS)


def _head(values: Mapping[str, Any], model_type: str) -> str:
    architecture = str((values.get("architectures") or [""])[0])
    if "Classification" in architecture or "QuestionAnswering" in architecture:
        return "classification"
    if "MaskedLM" in architecture:
        return "masked_lm"
    if architecture.endswith("Model") and not architecture.endswith("LMHeadModel"):
        return "none"
    return "masked_lm" if model_type in _ENCODERS else "causal_lm"


def _num_labels(values: Mapping[str, Any]) -> Any:
    labels = values.get("id2label")
    return len(labels) if isinstance(labels, Mapping) and labels else values.get("num_labels") or 2
