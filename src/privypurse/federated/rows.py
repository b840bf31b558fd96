"""The rows that a client has: whose each is, and those of people whom it knows."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch.utils.data import Dataset, TensorDataset

from privypurse._storage import digest_of, digest_of_arrays
from privypurse.arrays import AnyArray, FloatArray
from privypurse.budgets import Budgets
from privypurse.budgets.person_ids import applied, ids_of, texts_of
from privypurse.errors import InvalidInput
from privypurse.federated.blank_records import Readable, readable, standing_in
from privypurse.plans import Plan
from privypurse.training.fingerprints import fingerprint

_log = logging.getLogger("privypurse.federated")


@dataclass(frozen=True, eq=False)
class Rows:
    """What a client trains on."""

    records: TensorDataset | Readable = field(repr=False)
    owner: AnyArray | None
    """For each record the place of its owner; None where budgets have no ids."""
    known: AnyArray
    """Which of the rows that were given these are: those of people who are in the budgets."""
    nobody: bool
    """Whether that is none, and the one record here stands in for nobody."""

    @classmethod
    def of(cls, dataset: Dataset[Any], budgets: Budgets, person: Any, example: Any) -> Rows:
        size: int = len(dataset)  # type: ignore[arg-type]
        owner = _owners(budgets, person, size)
        if owner is None:
            return cls(readable(dataset, example), None, np.ones(size, dtype=np.bool_), False)
        known = owner >= 0
        if not known.any():
            return cls(standing_in(dataset, example), np.zeros(1, dtype=np.int64), known, True)
        some = None if known.all() else np.flatnonzero(known)
        return cls(readable(dataset, example, some), owner[known], known, False)

    def told(self, plan: Plan, values: FloatArray) -> FloatArray:
        """For each row that was given the value of its owner's level; 0 where that is nobody here."""
        found = np.zeros(self.known.size)
        if not self.nobody:
            found[self.known] = plan._by_record(values)
        return found


def _owners(budgets: Budgets, person: Any, records: int) -> AnyArray | None:
    """For each record its owner, by id; None where budgets have no ids and hold for the records in order.

    Who has no record, or several, is no error, nor is a record of somebody who is not in the budgets, whose owner is
    -1: a client that fails would tell the server (rule 13). Somebody's records are clipped as one.
    """
    keyed_ids = budgets.keyed_ids()
    if keyed_ids is not None and not records:
        return np.empty(0, dtype=np.int64)
    if keyed_ids is None and person is None:
        if len(budgets) != records:
            raise InvalidInput(f"there are {records:,} records but {len(budgets):,} budgets")
        return None
    if person is None:
        raise InvalidInput("budgets have ids and are matched by id; give person=, the id of each record's owner")
    if keyed_ids is None:
        return applied(keyed_ids, person, "list of budgets", records)[1]  # raises: there is nothing to match
    owner = keyed_ids.units(texts_of(ids_of(person, records)))
    if strange := int((owner < 0).sum()):
        _log.warning("%d records of people who are not in the budgets are left out", strange)
    return owner


def whose_records(dataset: Dataset[Any], budgets: Budgets) -> str:
    """A fingerprint of the records and budgets that a book belongs to."""
    if budgets.person is not None:  # the same people, whatever rows they have (rule 13: people, not rows)
        first = budgets.first_record
        each = (texts_of(budgets.person[first]), budgets.epsilon[first].tolist(), budgets.delta[first].tolist())
        return "by id" + digest_of(sorted(zip(*each, strict=True)))
    # Of files the number alone: a record that can be read today and not tomorrow must not decide about joining.
    tensors = type(dataset) is TensorDataset
    records = fingerprint(dataset) if tensors else f"{len(dataset)} files"  # type: ignore[arg-type]
    return records + digest_of_arrays(budgets.epsilon, budgets.delta, np.asarray(budgets.owner))
