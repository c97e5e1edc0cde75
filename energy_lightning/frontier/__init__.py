"""Time-energy frontiers, budgets and composition (floor 1: numpy and scipy only)."""

from energy_lightning.frontier.budget import FrontierPoint, choose
from energy_lightning.frontier.compose import PartOption, PartProfile, compose_iteration
from energy_lightning.frontier.noise import Candidate, MergedRepeats, NoisyValue, is_tie, merge_repeats, saving
from energy_lightning.frontier.pareto import FrontierError, hypervolume, pareto_front

__all__ = [
    "Candidate",
    "FrontierError",
    "FrontierPoint",
    "MergedRepeats",
    "NoisyValue",
    "PartOption",
    "PartProfile",
    "choose",
    "compose_iteration",
    "hypervolume",
    "is_tie",
    "merge_repeats",
    "pareto_front",
    "saving",
]
