"""`energy-lightning doctor`: what this machine can do, what a job will use and why, and what would permit more."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from rich.console import Console

from energy_lightning.app.doctor_facts import Doctor
from energy_lightning.report.doctor import print_examination

WIDTH = 100  # of tables that do not go to a terminal


def doctor(arguments: Sequence[str], examined_by: Doctor | None = None) -> int:
    """Examine and print; always 0, for a machine without a GPU is no error."""
    parser = argparse.ArgumentParser(
        prog="energy-lightning doctor", description=f"{__doc__} Changes nothing on the machine."
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    options = parser.parse_args(arguments)
    import torch  # noqa: F401 - so that the examination sees what a job would see

    found = (examined_by or Doctor()).examine()
    if options.json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        print_examination(Console() if sys.stdout.isatty() else Console(width=WIDTH), found)
    return 0
