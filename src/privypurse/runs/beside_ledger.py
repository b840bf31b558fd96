"""Signs that people have purses in a ledger which a run does not name: their ε would count anew (rule 14)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from privypurse.errors import InvalidInput
from privypurse.ledger import anchors
from privypurse.runs.config import NO_LEDGER, RunConfig, Table


def refuse_beside_ledger(config: RunConfig) -> None:
    """Raise where files beside a run without a ledger say that one is kept, unless the configuration says "none".

    Noticed are anchors in folders beside its own, or beside its table, which runs and answers under a ledger leave
    there, and the table's own ledger of questions. What lies elsewhere is not. Budgets that nobody granted, and
    seeded runs, take nothing from anybody.
    """
    simulated = config.budgets is not None and config.budgets.simulate is not None
    if config.ledger == NO_LEDGER or config.training.seed is not None or simulated:
        return
    if isinstance(config.data, Table):
        for sign in _signs(config.training.out, config.data.table):
            raise InvalidInput(
                f"{sign}, and this run names no ledger: every ε would count as if nothing had been spent before. "
                'Name it: ledger = "sqlite:///FILE" above the first section (or --ledger, or PRIVYPURSE_LEDGER). If '
                f'these are other people, or it is meant so, write ledger = "{NO_LEDGER}" there'
            )


def _signs(out: Path, table: Path) -> Iterator[str]:
    whole = table.resolve()
    private = whole.with_name(f"{whole.name}.ledger")
    if private.exists():
        yield f"{private} is the ledger of this table, which questions about it are charged to"
    for folder in (out, whole.parent / "run"):  # as one that is to lie there, beside all others
        for file, _ in anchors.of_runs(folder):
            yield f"{file} is the anchor of a ledger"
