"""One Llama block (or a few) in the partition engine, sized for a GPU or tiny for a rehearsal."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaModel

from energy_lightning.collectives import Collectives
from energy_lightning.partition import PartitionEngine, find_stacks
from energy_lightning.partition.profiling import PartitionKind, PartitionSettings, PreparedPartition, StackCall
from energy_lightning.types import PhasePlan, Plan, Schedule

LAUNCHES: dict[str, tuple[str | None, ...]] = {
    "fwd_attn": ("norm_0", "linear_0", "rope_0", "attn_0", None),
    "fwd_mlp": ("norm_0", "linear_0", "activation_0", None),
    "bwd_mlp": ("norm_0", "linear_1", "activation_0", None),
    "bwd_attn": ("norm_0", "linear_1", "attn_0", "rope_0", None),
}
"""Launch points of each partition; None: not overlapped."""


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Sizes of one rank's part of Llama 3.2 3B under tensor parallelism of 8, 8 sequences of 4096 tokens."""
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")


@dataclass(frozen=True, slots=True)
class Plain:
    """A model and one batch for it."""

    model: LlamaModel
    embeddings: Tensor

    def step(self) -> None:
        """One forward and backward."""
        self.model.zero_grad(set_to_none=True)
        self.model(inputs_embeds=self.embeddings, use_cache=False).last_hidden_state.sum().backward()

    def forward(self) -> None:
        """One forward, with what backward would need."""
        self.model(inputs_embeds=self.embeddings, use_cache=False)


@dataclass(frozen=True, slots=True)
class Block(Plain):
    """A model in the engine."""

    engine: PartitionEngine

    def call(self) -> StackCall:
        """What its stack is called with."""
        seen: list[StackCall] = []
        self.engine.on_call = lambda stack, hidden, call: seen.append(StackCall.of(hidden, call))
        self.forward()
        self.engine.on_call = None
        return seen[0]


def llama_config(args: argparse.Namespace) -> LlamaConfig:
    """One of eight ranks' heads and widths (all of the hidden size), or a tiny model."""
    sizes: dict[str, Any] = {
        "hidden_size": 3072,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 128,
        "intermediate_size": 1024,
        "max_position_embeddings": args.sequence,
    }
    if args.smoke:
        sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
    return LlamaConfig(vocab_size=64, num_hidden_layers=args.layers, **sizes)


def shrink(args: argparse.Namespace) -> None:
    """A rehearsal's sizes."""
    if args.smoke:
        args.batch, args.sequence, args.layers, args.repeats, args.dtype = 4, 8, 2, 2, "float32"


def make_plain(args: argparse.Namespace, device: torch.device) -> Plain:
    """The untouched model and one batch of embeddings, the same every time."""
    torch.manual_seed(0)
    config = llama_config(args)
    dtype = getattr(torch, args.dtype)
    model = LlamaModel(config).to(device, dtype).train()
    shape = (args.batch, args.sequence, config.hidden_size)
    return Plain(model, torch.randn(shape, device=device, dtype=dtype))


def make_block(args: argparse.Namespace, device: torch.device, collectives: Collectives | None) -> Block:
    """The model in an engine whose collectives are `collectives`."""
    plain = make_plain(args, device)
    engine = PartitionEngine(find_stacks(plain.model), collectives=collectives, activation_checkpointing=False)
    return Block(plain.model, plain.embeddings, engine)


def make_alone(args: argparse.Namespace, device: torch.device, *, nanobatched: bool = True) -> Block:
    """The model in an engine without collectives."""
    block = make_block(args, device, None)
    block.engine.apply(plan_with({}, nanobatched=nanobatched))
    return block


def plan_with(schedules: dict[str, Schedule], *, nanobatched: bool) -> Plan:
    """Forward and backward in one mode, with these schedules."""
    forward, backward = (
        {key: schedule for key, schedule in schedules.items() if key.startswith(prefix)} for prefix in ("fwd", "bwd")
    )
    return Plan.single_stage(
        PhasePlan("forward", None, nanobatched, forward), PhasePlan("backward", None, nanobatched, backward)
    )


def prepare(block: Block, key: str, schedule: Schedule | None, collectives: Collectives) -> Callable[[int], None]:
    """A function that executes one nanobatched partition of the block n times."""
    kind = PartitionKind.parse(key, nanobatched=True, has_collective=True, checkpointing=False)
    settings = PartitionSettings(collectives=collectives)
    return PreparedPartition(block.engine.stacks[0], block.call(), kind, schedule, settings).run
