"""The command line: `energy-lightning COMMAND`. Light to import: torch loads in the processes that train."""

from energy_lightning.app.commands import COMMANDS, Command, main

__all__ = ["COMMANDS", "Command", "main"]
