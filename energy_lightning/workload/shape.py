"""ModelShape: what of a dense transformer decides its FLOPs and bytes; presets and transformers configs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from energy_lightning.types import WorkloadError
from energy_lightning.workload.presets import PRESETS

Head = Literal["causal_lm", "masked_lm", "classification", "none"]

_ENCODERS = frozenset({"bert", "roberta", "camembert", "electra", "xlm-roberta", "distilbert", "mpnet", "albert"})
_GATED_ACTIVATIONS = frozenset({"silu", "swish", "gelu_pytorch_tanh"})
_PLAIN_MLP = (
    frozenset({"gpt2", "gpt_neox", "gptj", "opt", "bloom", "phi", "falcon", "gpt_bigcode", "starcoder2"}) | _ENCODERS
)
_LEARNED_POSITIONS = frozenset({"gpt2", "opt", "bloom", "gpt_bigcode"}) | _ENCODERS


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A dense transformer decoder or encoder.

    Attributes:
        name: preset or model name, for people.
        hidden_size, num_heads, num_kv_heads, head_dim, ffn_size, num_layers, vocab_size: as in its configuration.
        causal: decoder with a causal mask (half of the attention scores are computed).
        gated: the MLP has gate and up projections.
        rotary: rotary position embedding.
        qk_norm: q and k are normalised per head.
        head: what follows the stack.
        num_labels: classes of a classification head.
        tied_embeddings: the head shares the embedding's weights.
    """

    name: str
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    num_layers: int
    vocab_size: int
    causal: bool = True
    gated: bool = True
    rotary: bool = True
    qk_norm: bool = False
    head: Head = "causal_lm"
    num_labels: int = 2
    tied_embeddings: bool = False

    def __post_init__(self) -> None:
        sizes = ("hidden_size", "num_heads", "num_kv_heads", "head_dim", "ffn_size", "num_layers", "vocab_size")
        for size in (*sizes, "num_labels"):
            value = getattr(self, size)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise WorkloadError(f"{self.name}: {size} must be a whole number >= 1, got {value!r}")
        if self.num_heads % self.num_kv_heads:
            raise WorkloadError(
                f"{self.name}: num_kv_heads must divide num_heads = {self.num_heads}, got {self.num_kv_heads}"
            )
        if self.head not in get_args(Head):
            raise WorkloadError(f"{self.name}: head must be one of {', '.join(get_args(Head))}, got {self.head!r}")

    @property
    def attention_size(self) -> int:
        """Width of the queries: heads x head dimension."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of keys and values together: 2 x key/value heads x head dimension."""
        return 2 * self.num_kv_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer's linears (norms and biases left out)."""
        attention = self.hidden_size * (2 * self.attention_size + self.kv_size)
        return attention + (3 if self.gated else 2) * self.hidden_size * self.ffn_size

    @property
    def embedding_parameters(self) -> int:
        """Weights of the token embedding."""
        return self.hidden_size * self.vocab_size

    @classmethod
    def preset(cls, name: str) -> ModelShape:
        """A published model by name; WorkloadError naming near ones if unknown."""
        if name not in PRESETS:
            near = difflib.get_close_matches(name, PRESETS, n=3, cutoff=0.4)
            hint = f"did you mean {', '.join(near)}? " if near else ""
            raise WorkloadError(f"unknown workload preset {name!r}; {hint}known: {', '.join(sorted(PRESETS))}")
        return cls(name=name, **PRESETS[name])

    @classmethod
    def from_config(cls, config: Any, *, name: str | None = None) -> ModelShape:
        """From a transformers configuration object or its mapping.

        Understands the usual names (hidden_size or n_embd, ...). Mixture-of-experts models are refused.

        Raises:
            WorkloadError: a size is missing, or the model is not a dense transformer.
        """
        values = dict(config) if isinstance(config, Mapping) else config.to_dict()
        model_type = str(values.get("model_type") or "llama")
        experts = _first(values, "num_local_experts", "num_experts", "n_routed_experts")
        if experts:
            raise WorkloadError(f"{model_type}: mixture-of-experts models are not modelled ({experts} experts)")
        heads = _size(values, model_type, "num_attention_heads", "n_head", "n_heads")
        hidden_size = _size(values, model_type, "hidden_size", "n_embd", "d_model", "dim")
        activation = str(
            _first(values, "hidden_act", "activation_function", "hidden_activation", "activation") or "gelu"
        )
        return cls(
            name=name or model_type,
            hidden_size=hidden_size,
            num_heads=heads,
            num_kv_heads=int(_first(values, "num_key_value_heads") or heads),
            head_dim=int(_first(values, "head_dim") or hidden_size // heads),
            ffn_size=int(_first(values, "intermediate_size", "n_inner", "ffn_dim", "hidden_dim") or 4 * hidden_size),
            num_layers=_size(values, model_type, "num_hidden_layers", "n_layer", "n_layers"),
            vocab_size=_size(values, model_type, "vocab_size"),
            causal=model_type not in _ENCODERS,
            gated=model_type not in _PLAIN_MLP and activation in _GATED_ACTIVATIONS,
            rotary=model_type not in _LEARNED_POSITIONS,
            qk_norm=model_type.startswith("qwen3"),
            head=_head(values, model_type),
            num_labels=_num_labels(values),
            tied_embeddings=bool(values.get("tie_word_embeddings", model_type in _ENCODERS)),
        )


def preset_names() -> tuple[str, ...]:
    """Names of the packaged model shapes."""
    return tuple(PRESETS)


def _first(values: Mapping[str, Any], *names: str) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)


def _size(values: Mapping[str, Any], model_type: str, *names: str) -> int:
    value = _first(values, *names)
    if value is None:
        raise WorkloadError(
            f"{model_type}: the configuration has none of {', '.join(names)}; give a ModelShape instead"
        )
    return int(value)


def _head(values: Mapping[str, Any], model_type: str) -> Head:
    architecture = str((values.get("architectures") or [""])[0])
    if "Classification" in architecture:
        return "classification"
    if "MaskedLM" in architecture:
        return "masked_lm"
    if architecture.endswith("Model"):
        return "none"
    return "masked_lm" if model_type in _ENCODERS else "causal_lm"


def _num_labels(values: Mapping[str, Any]) -> int:
    labels = values.get("id2label")
    return len(labels) if isinstance(labels, Mapping) and labels else int(values.get("num_labels") or 2)
