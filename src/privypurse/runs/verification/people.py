"""What a run says of single people: their grants in the table, and what each one spent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.csv

from privypurse.arrays import AnyArray
from privypurse.budgets.person_ids import texts_of
from privypurse.errors import InvalidInput
from privypurse.plans import Plan
from privypurse.runs.config import NewPlan, RunConfig, Table
from privypurse.runs.planning import granted, left_for_training
from privypurse.runs.verification.findings import Finding, compared, fits, left_open, wrong

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger

GRANTS, ALLOWED = "grants", "allowed for this run"
"""What people granted, by the ledger or else by the table; under a ledger, what they allow in the table."""
_SIX_DIGITS = 1e-5
"""spending.csv has six digits of what is promised."""


def of_spending(file: Path, plan: Plan) -> Iterator[Finding]:
    """Everybody is there once, with the ε that the plan promised them, and spent no more."""
    read = pyarrow.csv.ConvertOptions(column_types={"person": pyarrow.string()})
    rows = pyarrow.csv.read_csv(file, convert_options=read)
    promised, spent = (rows[name].to_numpy() for name in ("epsilon_promised", "epsilon_spent"))
    units, differences = _units(rows, plan), []
    if units is None:
        differences.append("spending.csv does not name everybody of the plan who has a record, and each of them once")
    else:
        expected = plan.levels.epsilon[plan.level_of[units]]
        others = ~(np.abs(promised - expected) <= _SIX_DIGITS * expected)
        over = ~(spent <= promised)
        for which, said in ((others, "a promise that is not the plan's"), (over, "more spent than promised")):
            if which.any():
                differences.append(f"{int(which.sum()):,} lines have {said}; the first is {int(np.argmax(which)):,}")
    yield compared("spending", differences, "everybody is there once, with the plan's promise, and spent no more")
    said = "the gradient norms that it was made of are not kept, and it is no promise"
    yield left_open("each one's spending", said)


def _units(rows: pyarrow.Table, plan: Plan) -> AnyArray | None:
    """For each line its person in the plan; None where somebody is missing, strange, or there twice."""
    owner = np.arange(plan.people) if plan.owner is None else plan.owner
    if "person" not in rows.column_names:
        return owner if np.array_equal(rows["record"].to_numpy(), np.arange(plan.records)) else None
    if plan.keyed_ids is None:
        raise InvalidInput("spending.csv names people, and the plan was made without ids")
    ids: AnyArray = np.asarray(rows["person"].to_pylist(), dtype=object)
    units = plan.keyed_ids.units(texts_of(ids))
    quoted = np.flatnonzero(units < 0)  # what a spreadsheet would take for a formula has an apostrophe before it
    if quoted.size:
        bare = np.array([text.removeprefix("'") for text in ids[quoted].tolist()], dtype=object)
        units[quoted] = plan.keyed_ids.units(texts_of(bare))
    return units if np.array_equal(np.sort(units), np.unique(owner)) else None


def of_grants(
    plan: Plan, config: RunConfig | None, table: Path | None, ledger: Ledger | None = None
) -> Iterator[Finding]:
    """Whether the plan keeps what people granted: in the ledger it was made with, in the table, or simulated."""
    if plan.ledger is None:
        yield _in_table(GRANTS, plan, config, table)
        return
    if ledger is None or ledger.id != plan.ledger.id:
        said = (
            f"they are in the ledger {plan.ledger.id}; name it to have them recomputed (--ledger URL of the command)"
        )
        yield left_open(GRANTS, said)
        return
    said = "every entry of the ledger was recomputed: nobody was charged beyond what they granted there"
    yield compared(GRANTS, ledger.verify().problems, said)
    if table is not None:
        yield _in_table(ALLOWED, plan, config, table, ledger)


def _in_table(
    what: str, plan: Plan, config: RunConfig | None, table: Path | None, ledger: Ledger | None = None
) -> Finding:
    """By the table, or by the simulated budgets of the configuration."""
    if config is None or config.budgets is None:
        return left_open(what, "the run does not say where people's budgets are")
    asked, simulated = config.budgets, config.budgets.simulate is not None
    if asked.table is not None and isinstance(config.data, Table) and Path(asked.table) == config.data.table:
        asked = replace(asked, table=None)  # by whatever path it is named now
    if table is None and not simulated:
        said = "that each promise is what its person granted; name the table to compare (--table of the command)"
        return left_open(what, said)
    if asked.table is not None and not Path(asked.table).exists():
        return left_open(what, f"they are in {asked.table}, which is not here; call it where the run was called")
    held_out = config.data.held_out if isinstance(config.data, Table) else None
    try:
        budgets, _ = granted(asked, table, plan.records, ledger, held_out=held_out)
    except InvalidInput as error:
        return wrong(what, f"they cannot be read from {asked.table or table}: {error}")
    if config.private_ranges is not None and isinstance(config.plan, NewPlan):
        budgets, _ = left_for_training(config.private_ranges.share, budgets, config.plan, ledger)
    if plan.keyed_ids is not None:  # whatever the order of rows, and however many somebody has now
        plan = replace(plan, keyed_ids=replace(plan.keyed_ids, one_each=False))
    try:
        plan.check(budgets)
    except InvalidInput as error:
        return wrong(what, str(error))
    said = "simulated budgets of the configuration" if simulated else "grants in the table"
    return fits(what, f"nobody's ε is above the {said}")
