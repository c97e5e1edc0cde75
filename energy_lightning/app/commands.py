"""The table of commands and the way from `energy-lightning NAME ARGUMENTS` to one of them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from energy_lightning.types import EnergyLightningError

EXIT_USER_ERROR = 2


@dataclass(frozen=True, slots=True)
class Command:
    """One command. Its function takes the arguments after the command's name and returns the exit code.

    Attributes:
        summary: one line for the help.
        function: "module:function", imported when the command is used.
    """

    summary: str
    function: str

    def __call__(self, arguments: Sequence[str]) -> int:
        """Run it; the exit code."""
        module, _, name = self.function.partition(":")
        function = cast(Callable[[Sequence[str]], int], getattr(importlib.import_module(module), name))
        return function(arguments)


COMMANDS: dict[str, Command] = {
    "train": Command(
        "train a model with the kareus strategy (Hydra overrides; --help)", "energy_lightning.app.train:train"
    ),
    "plan": Command(
        "plan a cluster job's iteration on an emulated GPU (Hydra overrides; --help)", "energy_lightning.app.plan:plan"
    ),
    "predict": Command(
        "energy of training runs or of inference configurations, beforehand (--help)",
        "energy_lightning.app.predict:predict",
    ),
    "fit": Command("fit an energy predictor to a CSV of measurements (--help)", "energy_lightning.app.fit:fit"),
    "sweep": Command(
        "training or inference runs over many settings, measured or emulated, and their law (--help)",
        "energy_lightning.app.sweep:sweep",
    ),
    "recurring": Command(
        "what a recurring job knows: batch sizes, beliefs, savings (--help)", "energy_lightning.app.recurring:recurring"
    ),
    "doctor": Command(
        "what this machine can measure and control, what a job would use and why (--json)",
        "energy_lightning.app.doctor:doctor",
    ),
    "demo": Command("fine-tune BERT under an emulated GPU and compare plans", "energy_lightning.app.demo:demo"),
}


def usage() -> str:
    """The help text."""
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items())
    return f"usage: energy-lightning COMMAND [ARGUMENTS]\n\ncommands:\n{rows}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` (default: the process's) names; 2 on a user's mistake, with one line saying what."""
    name, *arguments = (sys.argv[1:] if argv is None else list(argv)) or ["--help"]
    if name in ("-h", "--help", "help"):
        print(usage())
        return 0
    if name not in COMMANDS:
        print(f"error: unknown command {name!r}; known: {', '.join(COMMANDS)}", file=sys.stderr)
        return EXIT_USER_ERROR
    try:
        return COMMANDS[name](arguments)
    except EnergyLightningError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
