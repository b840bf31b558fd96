"""What training will do, fixed before it starts: plans and schedules, their stopping rules, files and summaries."""

from privypurse.plans.level_table import LevelTable
from privypurse.plans.plan import Plan
from privypurse.plans.promise import Promise
from privypurse.plans.training_shape import TrainingShape

__all__ = ["LevelTable", "Plan", "Promise", "TrainingShape"]
