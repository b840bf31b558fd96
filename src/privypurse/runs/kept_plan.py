"""The plan of a run that may go on later, kept in its checkpoint folder.

Under a ledger a plan follows from what people have left, and that is less once the run has reserved: made again it
would be another plan. So it is made once, and kept before anything is reserved by it.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from privypurse._storage import make_folder, replace_text, synchronise_folder
from privypurse.budgets import Budgets
from privypurse.errors import InvalidInput
from privypurse.plans import Plan, stop_rules
from privypurse.plans import file as planfile
from privypurse.runs.config import NewPlan

NAME = "planned.json"


def kept(folder: Path, asked: NewPlan, budgets: Budgets) -> Plan | None:
    """The plan that the run in this folder began with; None where none has begun.

    It has to be what the configuration asks for, and nobody's ε there may be more than they grant now; people are
    compared by id.
    """
    file = folder / NAME
    if not file.exists():
        return None
    try:
        content = json.loads(file.read_text("utf-8"))
        before, text = dict(content["asked"]), str(content["plan"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{file} cannot be read, so what this run began with is not known: {error!r}") from None
    for name, value in _plain(asked).items():
        if before.get(name) != value:
            raise InvalidInput(
                f"the run in {folder} began with {name} = {before.get(name)!r} under [plan], and now it is "
                f"{value!r}; go on as it began, or name another checkpoint folder for another run"
            )
    plan = planfile.loads(text, Plan, str(file))
    plan.check(budgets)
    return plan


def keep(plan: Plan, folder: Path, asked: NewPlan) -> bool:
    """Write it there, for its owner's eyes; False if somebody else was quicker, whose plan stays."""
    return keep_first(folder / NAME, json.dumps({"asked": _plain(asked), "plan": planfile.dumps(plan)}) + "\n")


def keep_first(file: Path, text: str) -> bool:
    """Write a file that is not there yet, whole and for its owner's eyes; False where there is one, which stays."""
    make_folder(file.parent)
    beside = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    replace_text(beside, text)
    try:
        os.link(beside, file)
    except FileExistsError:
        return False
    finally:
        beside.unlink(missing_ok=True)
    synchronise_folder(file.parent)
    return True


def _plain(asked: NewPlan) -> dict[str, Any]:
    return {**vars(asked), "stop": None if asked.stop is None else stop_rules.to_json(asked.stop)}
