"""What people see of a run: comparison tables, the frontier's picture, summary.json."""

from energy_lightning.report.comparison import ComparisonRow, compare, describe_plan
from energy_lightning.report.console import comparison_table
from energy_lightning.report.pictures import FrontierPicture, draw_frontier
from energy_lightning.report.summary import read_summary, write_json

__all__ = [
    "ComparisonRow",
    "FrontierPicture",
    "compare",
    "comparison_table",
    "describe_plan",
    "draw_frontier",
    "read_summary",
    "write_json",
]
