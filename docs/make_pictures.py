"""Makes the pictures in docs/ from emulated plans: `make pictures`, or python docs/make_pictures.py."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from energy_lightning.app import main as energy_lightning
from energy_lightning.app.demo import BIG_JOB, GPU_NAME, big_job, picture_of
from energy_lightning.app.outcome import CHOSEN
from energy_lightning.report import draw_frontier, print_comparison

FOLDER = Path(__file__).parent
# As in the README.
PLAN = "plan workload=llama3.2_3b workload.tensor_parallel=8 workload.pipeline_parallel=2 workload.num_microbatches=8"
PLAN += " budget=max_slowdown budget.max_slowdown=0.02"


def main() -> None:
    """Draw, and print the same plans as tables."""
    outcome = big_job()
    print(draw_frontier(picture_of(outcome), FOLDER / "frontier.png"))
    title = f"{BIG_JOB} on 8 x {GPU_NAME}"
    print_comparison(Console(), outcome.references, title=title, emulated=True, chosen=CHOSEN)
    with TemporaryDirectory() as folder:
        if energy_lightning([*PLAN.split(), f"output_dir={folder}"]) == 0:
            (FOLDER / "pipeline.png").write_bytes((Path(folder) / "pipeline.png").read_bytes())


if __name__ == "__main__":
    main()
