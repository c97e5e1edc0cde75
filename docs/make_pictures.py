"""Makes the pictures in docs/ from emulated plans: `make pictures`, or python docs/make_pictures.py."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from energy_lightning.app.demo import BIG_JOB, GPU_NAME, big_job, picture_of
from energy_lightning.app.outcome import CHOSEN
from energy_lightning.report import draw_frontier, print_comparison

FOLDER = Path(__file__).parent


def main() -> None:
    """Draw, and print the same plans as a table."""
    outcome = big_job()
    print(draw_frontier(picture_of(outcome), FOLDER / "frontier.png"))
    title = f"{BIG_JOB} on 8 x {GPU_NAME}"
    print_comparison(Console(), outcome.references, title=title, emulated=True, chosen=CHOSEN)


if __name__ == "__main__":
    main()
