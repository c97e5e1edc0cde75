"""Published model shapes. Source of each: the model's configuration file on its hub page, or its paper (2026-07)."""

from __future__ import annotations

from typing import Any

_PLAIN: dict[str, Any] = {"gated": False, "rotary": False, "tied_embeddings": True}
_BERT: dict[str, Any] = {**_PLAIN, "causal": False, "head": "masked_lm", "vocab_size": 30522}


def _sizes(hidden: int, heads: int, kv_heads: int, head_dim: int, ffn: int, layers: int) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "ffn_size": ffn,
        "num_layers": layers,
    }


PRESETS: dict[str, dict[str, Any]] = {
    "llama3.2_1b": _sizes(2048, 32, 8, 64, 8192, 16) | {"vocab_size": 128256, "tied_embeddings": True},
    "llama3.2_3b": _sizes(3072, 24, 8, 128, 8192, 28) | {"vocab_size": 128256, "tied_embeddings": True},
    "llama3.1_8b": _sizes(4096, 32, 8, 128, 14336, 32) | {"vocab_size": 128256},
    "llama3.3_70b": _sizes(8192, 64, 8, 128, 28672, 80) | {"vocab_size": 128256},
    "qwen3_1.7b": _sizes(2048, 16, 8, 128, 6144, 28) | {"vocab_size": 151936, "qk_norm": True, "tied_embeddings": True},
    "bert_base": _sizes(768, 12, 12, 64, 3072, 12) | _BERT,
    "bert_large": _sizes(1024, 16, 16, 64, 4096, 24) | _BERT,
    "gpt3_175b": _sizes(12288, 96, 96, 128, 49152, 96) | _PLAIN | {"vocab_size": 50257},
    "bloom_176b": _sizes(14336, 112, 112, 128, 57344, 70) | _PLAIN | {"vocab_size": 250880},
}
