"""Time-energy frontiers, budgets and composition (floor 1: numpy and scipy only)."""

from energy_lightning.frontier.budget import FrontierPoint, choose
from energy_lightning.frontier.compose import PartOption, PartProfile, compose_iteration
from energy_lightning.frontier.deadline import solve_deadline, solve_straggler, trace_frontier
from energy_lightning.frontier.noise import Candidate, MergedRepeats, NoisyValue, is_tie, merge_repeats, saving
from energy_lightning.frontier.pareto import FrontierError, hypervolume, pareto_front
from energy_lightning.frontier.pipeline import Option, PipelinePlan, PipelineProblem

__all__ = [
    "Candidate",
    "FrontierError",
    "FrontierPoint",
    "MergedRepeats",
    "NoisyValue",
    "Option",
    "PartOption",
    "PartProfile",
    "PipelinePlan",
    "PipelineProblem",
    "choose",
    "compose_iteration",
    "hypervolume",
    "is_tie",
    "merge_repeats",
    "pareto_front",
    "saving",
    "solve_deadline",
    "solve_straggler",
    "trace_frontier",
]
