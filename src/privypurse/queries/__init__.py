"""Questions to personal data: each person pays out of their own purse, and only for what touches them."""

from privypurse.queries.analyst import Analyst
from privypurse.queries.answers import Answer

__all__ = ["Analyst", "Answer"]
