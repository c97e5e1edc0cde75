"""Step time and peak memory of `kareus` against `ddp`: two gloo processes, BERT hidden 256 x 4 layers, sequence 128,
batch 8 per rank, float32, AdamW, the sequential plan (the one for a CPU).

    python benchmarks/step_time.py --rounds 8 --steps 12

Time: one pair of processes fits with either strategy in turn, `--steps` steps each; a round's figure is the median step
of rank 0 without the first three, its ratio is paired within the round. Memory: a pair of processes per strategy and
repeat; the growth of the resident set's high-water mark over what importing and building the model took, larger rank.
Limits: 1.05 x in time, 1.10 x in memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STRATEGIES = ("ddp", "kareus")
TIME_LIMIT, MEMORY_LIMIT = 1.05, 1.10
NUM_WARMUP_STEPS = 3
BATCH_SIZE, SEQUENCE_LENGTH = 8, 128


def make_trainer(name: str, num_steps: int, callbacks: list[Any]) -> Any:
    """A quiet two-process Trainer with `ddp` or `kareus`."""
    import lightning.pytorch as pl

    from energy_lightning import KareusStrategy, Plan

    strategy = name if name == "ddp" else KareusStrategy(plan=Plan.sequential(), output_dir="/tmp/step_time_kareus")
    return pl.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=2,
        max_steps=num_steps,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def make_module_and_data(num_steps: int) -> tuple[Any, Any]:
    """BERT for classification with random weights, and as many random batches as two ranks take."""
    import lightning.pytorch as pl
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.model = BertForSequenceClassification(
                BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
            )

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            tokens, labels = batch
            return self.model(input_ids=tokens, labels=labels).loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    num_rows = 2 * BATCH_SIZE * num_steps
    tokens = torch.randint(1, 30000, (num_rows, SEQUENCE_LENGTH), generator=torch.Generator().manual_seed(0))
    rows = torch.utils.data.TensorDataset(tokens, tokens[:, 0] % 2)
    return Classifier(), torch.utils.data.DataLoader(rows, batch_size=BATCH_SIZE)


def fit_s(name: str, num_steps: int) -> float:
    """Median time of a step in s."""
    import lightning.pytorch as pl

    class Clock(pl.Callback):
        def __init__(self) -> None:
            self.ends_s: list[float] = []

        def on_train_batch_end(self, *_: Any) -> None:
            self.ends_s.append(time.perf_counter())

    clock = Clock()
    module, data = make_module_and_data(num_steps)
    make_trainer(name, num_steps, [clock]).fit(module, data)
    ends_s = clock.ends_s[NUM_WARMUP_STEPS - 1 :]
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(ends_s))


def peak_bytes() -> int:
    """High-water mark of the resident set."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux: KiB


def work(arguments: argparse.Namespace) -> None:
    """In one of the two processes: write what was seen to the result file of this rank."""
    if arguments.worker == "time":
        order = [STRATEGIES if round_index % 2 else STRATEGIES[::-1] for round_index in range(arguments.rounds)]
        found: Any = [{name: fit_s(name, arguments.steps) for name in names} for names in order]
    else:
        module, data = make_module_and_data(arguments.steps)
        trainer = make_trainer(arguments.worker, arguments.steps, [])
        before = peak_bytes()
        trainer.fit(module, data)
        found = peak_bytes() - before
    Path(f"{arguments.result}.{os.environ['RANK']}").write_text(json.dumps(found))


def launch(worker: str, arguments: argparse.Namespace, result: Path) -> list[Any]:
    """Both ranks' findings."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__]
    options = [f"--worker={worker}", f"--result={result}", f"--rounds={arguments.rounds}", f"--steps={arguments.steps}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run(command + options, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return [json.loads(Path(f"{result}.{rank}").read_text()) for rank in range(2)]


def report(rounds: list[dict[str, float]], memory: dict[str, list[int]]) -> None:
    """The tables."""
    ratio = statistics.median(figures["kareus"] / figures["ddp"] for figures in rounds)
    spread = statistics.pstdev(figures["kareus"] / figures["ddp"] for figures in rounds)
    print("| strategy | step, s (median of rounds) | peak growth, MB |\n| --- | ---: | ---: |")
    for name in STRATEGIES:
        step_s = statistics.median(figures[name] for figures in rounds)
        print(f"| {name} | {step_s:.4f} | {statistics.median(memory[name]) / 1e6:.0f} |")
    memory_ratio = statistics.median(memory["kareus"]) / statistics.median(memory["ddp"])
    print(f"time ratio {ratio:.3f} (median of {len(rounds)} paired rounds, spread {spread:.3f}), limit {TIME_LIMIT}")
    print(f"memory ratio {memory_ratio:.3f} (medians of {len(memory['ddp'])}), limit {MEMORY_LIMIT}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--memory-repeats", type=int, default=2)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--result", default="/tmp/step_time", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments)
        return
    rounds = launch("time", arguments, Path(arguments.result))[0]
    memory: dict[str, list[int]] = {name: [] for name in STRATEGIES}
    for _ in range(arguments.memory_repeats):
        for name in STRATEGIES:
            memory[name].append(max(launch(name, arguments, Path(arguments.result))))
    report(rounds, memory)


if __name__ == "__main__":
    main()
