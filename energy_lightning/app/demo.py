"""`energy-lightning demo`: a real fine-tuning under an emulated GPU, then a big job rehearsed, in a few minutes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from energy_lightning.app.folder import RunFolder
from energy_lightning.app.outcome import CHOSEN
from energy_lightning.app.rehearsal import rehearse
from energy_lightning.app.train import train
from energy_lightning.callbacks.composition import Outcome
from energy_lightning.report import FrontierPicture, draw_frontier, print_comparison
from energy_lightning.types import Budget, Plan
from energy_lightning.workload import Workload

GPU_NAME = "a100-sxm4-40gb"
OVERRIDES = (
    "model=bert",
    "data=sentiment",
    "data.max_length=40",
    "data.batch_size=16",
    "trainer=cpu",
    "trainer.devices=2",
    "tensor_parallel_size=2",
    "device=emulated",
    "budget=max_slowdown",
    "budget.max_slowdown=0.05",
    "trainer.max_steps=180",
    "trainer.limit_val_batches=20",
    "output_dir=outputs/demo",
)
BUDGET = Budget("max_slowdown", 0.05)
BIG_JOB = "llama3.2_3b_tp8"
BIG_SIZES = {"microbatch_size": 8, "sequence_length": 4096}


def demo(arguments: Sequence[str]) -> int:
    """Run the demo; `arguments` are further overrides of its training. The exit code of the training."""
    console, overrides = Console(), [*OVERRIDES, *arguments]
    folder = Path([o for o in overrides if o.startswith("output_dir=")][-1].partition("=")[2])
    console.rule("1. Fine-tune BERT on movie reviews, two processes, an emulated A100")
    console.print("energy-lightning train " + " ".join(overrides), soft_wrap=True, style="dim")
    exit_code = train(overrides)
    if exit_code:
        return exit_code
    _explain_plan(console, folder)
    console.rule("2. Rehearse a big job: Llama 3.2 3B, tensor parallel over 8 GPUs")
    _show_big_job(console, folder)
    console.rule("3. Where to look next")
    console.print(
        f"{folder}: config.yaml, plan.yaml (edit it and give it back: plan={folder}/plan.yaml), measurements.jsonl, "
        f"metrics.csv, search.png, frontier.png, {BIG_JOB}.png, summary.json\n"
        "examples/: the same from Python.    conf/: every setting.    README.md: real GPUs and their permissions.",
        soft_wrap=True,
        highlight=False,
    )
    return 0


def _explain_plan(console: Console, folder: Path) -> None:
    plan = RunFolder(folder).read()["plan"]
    if plan is not None and not any(phase.nanobatched for phase in Plan.from_dict(plan).stages[0]):
        console.print(
            "So small a model has little communication to hide: two nanobatches would only cost time, and the plan "
            "keeps sequential execution. A big job is another matter:",
            highlight=False,
        )


def big_job() -> Outcome:
    """Frontiers and reference plans of the big job, all emulated."""
    return rehearse(Workload.preset(BIG_JOB, **BIG_SIZES), GPU_NAME, BUDGET)


def picture_of(outcome: Outcome) -> FrontierPicture:
    """The big job's frontier."""
    return FrontierPicture(
        plans=outcome.references,
        chosen=CHOSEN,
        title=f"One iteration of {BIG_JOB} on 8 x {GPU_NAME}",
        frontiers=outcome.frontiers,
        budget=BUDGET,
        emulated=True,
    )


def _show_big_job(console: Console, folder: Path) -> None:
    outcome = big_job()
    title = f"One iteration of {BIG_JOB}, 8 x 4096 tokens, budget {BUDGET}, on 8 x {GPU_NAME}"
    print_comparison(console, outcome.references, title=title, emulated=True, chosen=CHOSEN)
    picture = draw_frontier(picture_of(outcome), folder / f"{BIG_JOB}.png")
    console.print(f"Frontier: {picture}", soft_wrap=True)
