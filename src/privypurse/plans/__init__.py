"""What training will do, fixed before it starts: plans and schedules, their stopping rules, files and summaries."""

from privypurse.plans.plan import LevelTable, Plan, Promise, TrainingShape

__all__ = ["LevelTable", "Plan", "Promise", "TrainingShape"]
