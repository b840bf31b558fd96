"""Questions to personal data: each person pays out of their own purse, and only for what touches them.

From a question to its answer: `rows` and `columns` hold the data, `conditions` and `callables` choose rows and values
without mixing records, `contributions` adds them up by person and clips, `noisy_sums` prices, charges, adds noise
and releases the sum, `answers` says what it cost. `ledger_purses` charges it for life; `table_ledger` keeps purses
beside a table, and `earlier_purses` takes over what files of purses held; `statistics` tells means,
counts and quantiles of one number for each person; `ranges` makes ends for an encoder of a released histogram;
`private_constants` asks for ends and categories out of everybody's share of their purse.
"""

from privypurse.queries.analyst import Analyst
from privypurse.queries.answers import Answer
from privypurse.queries.ledger_purses import LedgerPurses
from privypurse.queries.ranges import quantile_range

__all__ = ["Analyst", "Answer", "LedgerPurses", "quantile_range"]
