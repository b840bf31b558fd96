"""Who holds what: everyone's privacy budget, whose it is, and where it is read from."""

from privypurse.budgets.budgets import Budgets

__all__ = ["Budgets"]
