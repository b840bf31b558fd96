"""Privy Purse: everyone sets their own privacy budget, and nobody's is overdrawn."""

from typing import TYPE_CHECKING

from privypurse import federated, rounds
from privypurse._lazy import lazily
from privypurse.accounting import Filter
from privypurse.assignment import plan
from privypurse.assignment.compare import compare
from privypurse.assignment.suggest import suggest
from privypurse.assignment.suggestion import Suggestion
from privypurse.budgets import Budgets
from privypurse.errors import (
    InfeasibleBudget,
    InvalidInput,
    PlanExhausted,
    PrivyPurseError,
    PrivyPurseWarning,
    Unsupported,
)
from privypurse.plans import Plan, Promise, TrainingShape
from privypurse.plans.stop_rules import StopAtPlateau, StopWhenFew
from privypurse.queries import Analyst, Answer
from privypurse.training.execution import Execution
from privypurse.version import __version__

if TYPE_CHECKING:
    from privypurse import losses
    from privypurse.ledger.ledger import Ledger
    from privypurse.runs.predictor import Predictor, load
    from privypurse.runs.verification.findings import Verified
    from privypurse.runs.verification.verify import verify
    from privypurse.training.callbacks import Callback, Figures, LocalLog
    from privypurse.training.clip_norm import median_gradient_norm
    from privypurse.training.fix import fix
    from privypurse.training.gradients import clipped_sum, per_record_norms
    from privypurse.training.individual.accounting import Individual
    from privypurse.training.individual.spending import Spending
    from privypurse.training.loop import train
    from privypurse.training.make_private import make_private
    from privypurse.training.trained import Trained
    from privypurse.training.validation import Validation

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Callback": "privypurse.training.callbacks",
        "Figures": "privypurse.training.callbacks",
        "Individual": "privypurse.training.individual.accounting",
        "Ledger": "privypurse.ledger.ledger",
        "LocalLog": "privypurse.training.callbacks",
        "Predictor": "privypurse.runs.predictor",
        "Spending": "privypurse.training.individual.spending",
        "Trained": "privypurse.training.trained",
        "Validation": "privypurse.training.validation",
        "Verified": "privypurse.runs.verification.findings",
        "clipped_sum": "privypurse.training.gradients",
        "fix": "privypurse.training.fix",
        "load": "privypurse.runs.predictor",
        "losses": "privypurse.losses",
        "make_private": "privypurse.training.make_private",
        "median_gradient_norm": "privypurse.training.clip_norm",
        "per_record_norms": "privypurse.training.gradients",
        "train": "privypurse.training.loop",
        "verify": "privypurse.runs.verification.verify",
    },
)

__all__ = [
    "Analyst",
    "Answer",
    "Budgets",
    "Callback",
    "Execution",
    "Figures",
    "Filter",
    "Individual",
    "InfeasibleBudget",
    "InvalidInput",
    "Ledger",
    "LocalLog",
    "Plan",
    "PlanExhausted",
    "Predictor",
    "PrivyPurseError",
    "PrivyPurseWarning",
    "Promise",
    "Spending",
    "StopAtPlateau",
    "StopWhenFew",
    "Suggestion",
    "Trained",
    "TrainingShape",
    "Unsupported",
    "Validation",
    "Verified",
    "__version__",
    "clipped_sum",
    "compare",
    "federated",
    "fix",
    "load",
    "losses",
    "make_private",
    "median_gradient_norm",
    "per_record_norms",
    "plan",
    "rounds",
    "suggest",
    "train",
    "verify",
]
