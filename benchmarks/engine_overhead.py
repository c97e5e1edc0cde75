"""What the partition engine costs without any collective: nanobatched against the plain model, one process.

    OMP_NUM_THREADS=2 python benchmarks/engine_overhead.py --repeats 15

Runs of the two are paired (one after the other, order alternating), so that what else the machine does hits both.
Peak memory is the growth of the resident set over set-up, in a fresh process each (Linux). Times are of forward and
backward, measured on a CPU; on a machine that others use too, the ratio of processor times says more.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from energy_lightning.partition import install
from energy_lightning.types import PhasePlan, Plan

PLANS = {
    "sequential": Plan.sequential(),
    "nanobatched": Plan.single_stage(PhasePlan("forward", None, True), PhasePlan("backward", None, True)),
}
Times = list[tuple[float, float]]  # wall and processor seconds
VARIANTS = ("sequential", "nanobatched", "nanobatched, checkpointing")


def make_model(kind: str, args: argparse.Namespace) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 1024,
        "hidden_size": args.hidden,
        "intermediate_size": 4 * args.hidden,
        "num_hidden_layers": args.layers,
        "num_attention_heads": 8,
        "max_position_embeddings": args.sequence,
    }
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=4))
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForSequenceClassification(BertConfig(**sizes, **no_dropout))


def make_step(kind: str, variant: str | None, args: argparse.Namespace):
    """A function that runs one forward and backward; `variant` None: the plain model."""
    model = make_model(kind, args).train()
    if variant is not None:
        engine = install(model, activation_checkpointing="checkpointing" in variant)
        engine.apply(PLANS[variant.split(",")[0]])
    ids = torch.randint(1, 1024, (args.batch, args.sequence))
    labels = ids if kind == "llama" else torch.zeros(args.batch, dtype=torch.long)

    def step() -> tuple[float, float]:
        model.zero_grad(set_to_none=True)
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss.backward()
        return time.perf_counter() - start_s, time.process_time() - start_cpu_s

    return step


def paired_times_s(kind: str, variant: str, args: argparse.Namespace) -> tuple[Times, Times]:
    steps = [make_step(kind, None, args), make_step(kind, variant, args)]
    times: tuple[Times, Times] = ([], [])
    for repeat in range(-2, args.repeats):  # two for warm-up
        for which in (0, 1) if repeat % 2 else (1, 0):
            measured = steps[which]()
            if repeat >= 0:
                times[which].append(measured)
    return times


def _report_peak_bytes(kind: str, variant: str | None, args: argparse.Namespace, queue) -> None:
    step = make_step(kind, variant, args)
    before = _status_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the high-water mark starts again from here
    for _ in range(3):
        step()
    queue.put(_status_bytes("VmHWM") - before)


def _status_bytes(field: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024  # given in KiB


def peak_bytes(kind: str, variant: str | None, args: argparse.Namespace) -> int:
    """Growth of the resident set over set-up, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_report_peak_bytes, args=(kind, variant, args, queue))
    process.start()
    grown = queue.get()
    process.join()
    return grown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    args = parser.parse_args()
    print(
        f"forward + backward, batch {args.batch}, sequence {args.sequence}, hidden {args.hidden}, {args.layers} layers,"
    )
    print(f"{args.repeats} pairs, {torch.get_num_threads()} threads, torch {torch.__version__}, measured on this CPU\n")
    print(
        "| Model | Execution | Step, s: median (IQR) | Plain, s | Ratio, wall | Ratio, processor | Ratio, peak memory |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for kind in ("llama", "bert"):
        plain_bytes = peak_bytes(kind, None, args)
        for variant in VARIANTS:
            plain, ours = paired_times_s(kind, variant, args)
            pairs = list(zip(plain, ours, strict=True))
            wall, processor = (statistics.median(b[i] / a[i] for a, b in pairs) for i in (0, 1))
            memory = peak_bytes(kind, variant, args) / plain_bytes
            times = f"{_spread(ours)} | {_spread(plain)} | {wall:.3f} | {processor:.3f}"
            print(f"| {kind} | {variant} | {times} | {memory:.2f} |", flush=True)


def _spread(times: Times) -> str:
    walls_s = [wall_s for wall_s, _ in times]
    quartiles = statistics.quantiles(walls_s, n=4)
    return f"{statistics.median(walls_s):.3f} ({quartiles[2] - quartiles[0]:.3f})"


if __name__ == "__main__":
    main()
