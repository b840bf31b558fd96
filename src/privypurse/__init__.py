"""Privy Purse: everyone sets their own privacy budget, and nobody's is overdrawn."""

from typing import TYPE_CHECKING, Any

from privypurse.accounting import Filter
from privypurse.assignment import plan
from privypurse.assignment.rounds import schedule
from privypurse.budgets import Budgets
from privypurse.errors import InfeasibleBudget, InvalidInput, PrivyPurseError
from privypurse.plans import Plan, Promise, TrainingShape
from privypurse.plans.schedule import Schedule
from privypurse.plans.stopping import StopAtPlateau, StopWhenFew
from privypurse.queries import Analyst
from privypurse.training.execution import Execution
from privypurse.version import __version__

if TYPE_CHECKING:
    from privypurse.training.clip_norm import median_gradient_norm
    from privypurse.training.fixing import fix
    from privypurse.training.gradients import clipped_sum, per_record_norms
    from privypurse.training.individual.accounting import Individual
    from privypurse.training.loop import train
    from privypurse.training.make_private import make_private
    from privypurse.training.rounds import train_rounds

# Names that need torch are looked up when they are first used, so that planning does not have to load it.
_TRAINING = {
    "clipped_sum": "privypurse.training.gradients",
    "Individual": "privypurse.training.individual.accounting",
    "fix": "privypurse.training.fixing",
    "make_private": "privypurse.training.make_private",
    "median_gradient_norm": "privypurse.training.clip_norm",
    "per_record_norms": "privypurse.training.gradients",
    "train": "privypurse.training.loop",
    "train_rounds": "privypurse.training.rounds",
}


def __getattr__(name: str) -> Any:
    if name not in _TRAINING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    try:
        return getattr(importlib.import_module(_TRAINING[name]), name)
    except ModuleNotFoundError as error:
        raise ImportError(f"privypurse.{name} needs {error.name}: pip install 'privypurse[training]'") from error


def __dir__() -> list[str]:
    return sorted({*globals(), *_TRAINING})


__all__ = [
    "Analyst",
    "Budgets",
    "Execution",
    "Filter",
    "Individual",
    "InfeasibleBudget",
    "InvalidInput",
    "Plan",
    "PrivyPurseError",
    "Promise",
    "Schedule",
    "StopAtPlateau",
    "StopWhenFew",
    "TrainingShape",
    "__version__",
    "clipped_sum",
    "fix",
    "make_private",
    "median_gradient_norm",
    "per_record_norms",
    "plan",
    "schedule",
    "train",
    "train_rounds",
]
