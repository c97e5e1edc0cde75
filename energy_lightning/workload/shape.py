"""ModelShape: what of a dense transformer decides its FLOPs and bytes; presets and transformers configs."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, Literal, get_args

from energy_lightning.types import WorkloadError
from energy_lightning.workload.configs import shape_fields
from energy_lightning.workload.presets import PRESETS

Head = Literal["causal_lm", "masked_lm", "classification", "none"]


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

        Understands the usual names (hidden_size or n_embd, ...); configs.py says what is guessed. Mixtures of experts
        and encoder-decoder models are refused.

        Raises:
            WorkloadError: a size is missing, or the model is not a dense transformer.
        """
        fields = shape_fields(config)
        model_type = fields.pop("model_type")
        return cls(name=name or model_type, **fields)


def preset_names() -> tuple[str, ...]:
    """Names of the packaged model shapes."""
    return tuple(PRESETS)
