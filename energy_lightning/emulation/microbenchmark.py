"""The attention block of the overlap microbenchmark, as operators."""

from __future__ import annotations

from energy_lightning.workload import Collective, Operator
from energy_lightning.workload.layers import attention_efficiency

_HIDDEN, _HEADS_PER_GPU, _HEAD_DIM, _SEQUENCE, _SEQUENCES, _GPUS = 2048, 16, 64, 4096, 2, 2
_VALUE_BYTES = 2  # fp16


def attention_microbenchmark() -> tuple[tuple[Operator, ...], Collective]:
    """Forward attention block of one nanobatch on one of 2 GPUs, and the all-reduce that it is overlapped with.

    Hidden 2048, 32 heads, sequence 4096, 2 sequences, tensor parallel 2, fp16. Operator names are those of the
    published measurements (launch and join points), in execution order.
    """
    tokens = _SEQUENCE * _SEQUENCES
    width = _HEADS_PER_GPU * _HEAD_DIM

    def memory(name: str, values: float, num_kernels: int) -> Operator:
        return Operator(name, "memory", 0.0, values * _VALUE_BYTES, num_kernels, "fp16")

    def linear(name: str, inputs: int, outputs: int) -> Operator:
        moved = (inputs * outputs + tokens * (inputs + outputs)) * _VALUE_BYTES
        return Operator(name, "linear", 2.0 * tokens * inputs * outputs, moved, 1, "fp16")

    attention_flops = 4.0 * tokens * _SEQUENCE * width
    efficiency = attention_efficiency(_SEQUENCE, _HEAD_DIM, causal=False)
    operators = (
        memory("bias_dropout_add", 7.5 * tokens * _HIDDEN, 3),
        memory("layernorm", 2 * tokens * _HIDDEN, 1),
        memory("qkv_postprocess", 0, 0),
        linear("linear_qkv", _HIDDEN, 3 * width),
        memory("rotary", 9 * 2 * tokens * width, 10),
        Operator(
            "dot_product_attention",
            "attention",
            attention_flops,
            4 * tokens * width * _VALUE_BYTES,
            1,
            "fp16",
            efficiency,
        ),
        linear("linear_proj", width, _HIDDEN),
    )
    return operators, Collective("all_reduce", tokens * _HIDDEN * _VALUE_BYTES, _GPUS)
