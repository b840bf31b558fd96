"""Privy Purse: everyone sets their own privacy budget, and nobody's is overdrawn."""

from privypurse.assignment import plan
from privypurse.budgets import Budgets
from privypurse.errors import InfeasibleBudget, InvalidInput, PrivyPurseError
from privypurse.plans import Plan, Promise, TrainingShape

__version__ = "0.1.0"

__all__ = [
    "Budgets",
    "InfeasibleBudget",
    "InvalidInput",
    "Plan",
    "PrivyPurseError",
    "Promise",
    "TrainingShape",
    "__version__",
    "plan",
]
