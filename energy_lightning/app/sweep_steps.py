"""Training steps of a sweep's run on the device at hand: a random encoder, sharded as asked, measured in windows.

"single" is the plain model; "tp" cuts attention heads and feed-forward columns (torch.distributed.tensor), "fsdp"
parameters, gradients and optimizer states layer by layer (fully_shard). AdamW; float16 and bfloat16 by autocast.
Inputs are random tokens that lie on the device. Not covered: data loading, gradient scaling, evaluation, host energy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from energy_lightning.types import ConfigError

VOCAB_SIZE = 30522  # BERT's, as in the emulated sweep
_LEAST_POSITIONS = 512
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_COLUMN = ("attention.self.query", "attention.self.key", "attention.self.value", "intermediate.dense")
_ROW = ("attention.output.dense", "output.dense")


def encoder(run: Mapping[str, Any], device: torch.device) -> Any:
    """The whole model of `run` (its factors) with random weights on this rank. Waits for no other rank.

    Raises:
        ConfigError: sizes that do not go together. RuntimeError: what torch raises, out of memory among it.
    """
    from transformers import BertConfig, BertForSequenceClassification

    _check(run)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCAB_SIZE,
        num_hidden_layers=run["num_layers"],
        hidden_size=run["hidden_size"],
        num_attention_heads=run["num_heads"],
        intermediate_size=run["ffn_size"],
        max_position_embeddings=max(run["sequence_length"], _LEAST_POSITIONS),
    )
    with device:
        return BertForSequenceClassification(config).train()


def training_step(
    whole: Any, run: Mapping[str, Any], dtype: str, device: torch.device
) -> tuple[Callable[[], None], int]:
    """One step of `run` on this rank (forward, backward, AdamW), and how many weights the rank holds.

    `whole` is this rank's `encoder`, which is cut in place; all ranks do it together.
    """
    model = _sharded(whole, run, device)
    optimizer = torch.optim.AdamW(_groups(model), lr=1e-5)
    share = run["num_gpus"] if run["strategy"] == "fsdp" else 1
    shape = (run["batch_size"] // share, run["sequence_length"])
    tokens = torch.randint(VOCAB_SIZE, shape, device=device)
    labels = torch.randint(2, shape[:1], device=device)
    autocast = _autocast(dtype, device)

    def step() -> None:
        with autocast():
            loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step, sum(_local(parameter).numel() for parameter in model.parameters())


def _check(run: Mapping[str, Any]) -> None:
    if run["hidden_size"] % run["num_heads"]:
        raise ConfigError(f"num_heads={run['num_heads']} does not divide hidden_size={run['hidden_size']}")
    if run["strategy"] == "tp" and (run["num_heads"] % run["num_gpus"] or run["ffn_size"] % run["num_gpus"]):
        raise ConfigError(
            f"tensor_parallel={run['num_gpus']} does not divide num_heads={run['num_heads']} and "
            f"ffn_size={run['ffn_size']}"
        )
    if run["strategy"] == "fsdp" and run["batch_size"] % run["num_gpus"]:
        raise ConfigError(f"batch_size={run['batch_size']} cannot be shared by {run['num_gpus']} GPUs")


def _sharded(model: Any, run: Mapping[str, Any], device: torch.device) -> Any:
    if run["strategy"] == "single":
        return model
    from torch.distributed.device_mesh import init_device_mesh

    mesh, layers = init_device_mesh(device.type, (run["num_gpus"],)), model.bert.encoder.layer
    if run["strategy"] == "tp":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        for layer in layers:
            plan: dict[str, Any] = {name: ColwiseParallel() for name in _COLUMN}
            plan |= {name: RowwiseParallel() for name in _ROW}
            parallelize_module(layer, mesh, plan)
        return model
    from torch.distributed.fsdp import fully_shard

    for module in (*layers, model):
        fully_shard(module, mesh=mesh)
    return model


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    """Parameters cut over ranks and whole ones apart: the optimizer updates a group at once, and cannot mix them."""
    from torch.distributed.tensor import DTensor

    parameters = list(model.parameters())
    cut = [parameter for parameter in parameters if isinstance(parameter, DTensor)]
    whole = [parameter for parameter in parameters if not isinstance(parameter, DTensor)]
    return [{"params": group} for group in (cut, whole) if group]


def _local(parameter: Any) -> torch.Tensor:
    local: torch.Tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return local


def _autocast(dtype: str, device: torch.device) -> Callable[[], Any]:
    if dtype == "fp32":
        return contextlib.nullcontext
    return lambda: torch.autocast(device.type, dtype=DTYPES[dtype])


def agree_on_most(value: float, device: torch.device) -> float:
    """The largest of all ranks' values (its own without other ranks), so that all do the same number of steps."""
    if not dist.is_initialized():
        return value
    shared = torch.tensor(value, dtype=torch.float64, device=device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return float(shared)


def of_all_ranks(value: Any) -> list[Any]:
    """One value a rank, in their order."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
