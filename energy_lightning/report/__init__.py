"""What people see of a run: comparison tables, the frontier's picture, summary.json."""

from energy_lightning.report.comparison import ComparisonRow, compare, describe_plan, describe_schedules
from energy_lightning.report.console import comparison_table, print_comparison
from energy_lightning.report.pictures import FrontierPicture, draw_frontier
from energy_lightning.report.pipeline_picture import draw_pipeline
from energy_lightning.report.search_picture import draw_search
from energy_lightning.report.summary import read_summary, write_json

__all__ = [
    "ComparisonRow",
    "FrontierPicture",
    "compare",
    "comparison_table",
    "describe_plan",
    "describe_schedules",
    "draw_frontier",
    "draw_pipeline",
    "draw_search",
    "print_comparison",
    "read_summary",
    "write_json",
]
