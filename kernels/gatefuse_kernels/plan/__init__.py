"""Which kernels with which tiles: (shape, rows, dtype, GPU) -> plan, pure, over measured tables.

No torch here: a plan can be made, read and tested on a machine without a GPU.
"""

from gatefuse_kernels.plan.algorithm import Algorithm, Overlap, Plan
from gatefuse_kernels.plan.buckets import graph_buckets
from gatefuse_kernels.plan.choice import choose, plans_for, shipped
from gatefuse_kernels.plan.device import KNOWN_DEVICES, DeviceProfile, profile_for
from gatefuse_kernels.plan.own_table import PLAN_TABLE_VARIABLE, own_table
from gatefuse_kernels.plan.plan_traffic import plan_traffic
from gatefuse_kernels.plan.row_plans import RowPlans
from gatefuse_kernels.plan.table import PlanTable
from gatefuse_kernels.plan.table_text import format_table, parse_table, read_table
from gatefuse_kernels.tile import MAX_GRID, Tile

__all__ = [
    "KNOWN_DEVICES",
    "MAX_GRID",
    "PLAN_TABLE_VARIABLE",
    "Algorithm",
    "DeviceProfile",
    "Overlap",
    "Plan",
    "PlanTable",
    "RowPlans",
    "Tile",
    "choose",
    "format_table",
    "graph_buckets",
    "own_table",
    "parse_table",
    "plan_traffic",
    "plans_for",
    "profile_for",
    "read_table",
    "shipped",
]
