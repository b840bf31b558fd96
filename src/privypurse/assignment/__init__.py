"""Budgets → plan. Each method is a small object; a string looks up the one with its usual settings."""

from privypurse.assignment.curve_fit import CurveFit
from privypurse.assignment.exclude import Exclude
from privypurse.assignment.method import Assignment, Calibrator, Method
from privypurse.assignment.methods import METHODS
from privypurse.assignment.planner import plan
from privypurse.assignment.sample import Sample
from privypurse.assignment.scale import Scale
from privypurse.assignment.uniform import Uniform

__all__ = [
    "METHODS",
    "Assignment",
    "Calibrator",
    "CurveFit",
    "Exclude",
    "Method",
    "Sample",
    "Scale",
    "Uniform",
    "plan",
]
