"""People of a table who take no part in training, chosen person by person.

Whether somebody is held out follows from their id and a public seed, through a hash: from no other person, and from
no row's place (rules 12 and 13). A split by shuffling, or one that keeps shares exact, would move others when one
person joins.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from privypurse._validate import real
from privypurse.arrays import AnyArray
from privypurse.budgets.person_ids import texts_of


@dataclass(frozen=True)
class HeldOut:
    """About this share of the people; another seed chooses others."""

    share: Annotated[float, Meta(title="the share of people, as in 0.2")]
    seed: Annotated[int, Meta(ge=0, description="a whole number, 0 or more")] = 0

    def __post_init__(self) -> None:
        real(self.share, "share", above=0, below=1)

    def of(self, ids: AnyArray) -> npt.NDArray[np.bool_]:
        """Whether each record's owner is held out; all records of a person are on one side."""
        begun = hashlib.blake2b(str(self.seed).encode(), digest_size=8, person=b"held out")

        def drawn(text: str) -> int:
            own = begun.copy()
            own.update(b"\0" + text.encode("utf-8", "surrogatepass"))
            return int.from_bytes(own.digest(), "big")

        below = int(self.share * 2**64)
        return np.fromiter((drawn(text) < below for text in texts_of(ids)), dtype=bool, count=ids.size)
