"""What people see of a run: comparison tables, the frontier's picture, summary.json."""

from energy_lightning.report.comparison import ComparisonRow, compare, describe_plan, describe_schedules
from energy_lightning.report.console import comparison_table, print_comparison
from energy_lightning.report.pictures import FrontierPicture, draw_frontier
from energy_lightning.report.summary import read_summary, write_json

__all__ = [
    "ComparisonRow",
    "FrontierPicture",
    "compare",
    "comparison_table",
    "describe_plan",
    "describe_schedules",
    "draw_frontier",
    "print_comparison",
    "read_summary",
    "write_json",
]
