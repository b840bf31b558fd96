"""What the ε of a plan protects, and what may be done with a plan that promises nothing by itself."""

from enum import StrEnum


class Promise(StrEnum):
    """What an ε of the plan protects (rule 7: say what the promise is conditional on).

    A plan that promises something (DATA, PRESENCE) is checked anew before it is used: `PlanBase.require_kept`.
    PART is not read from files and not shown by itself; training takes it, since the whole that it belongs to is
    checked. NONE may be saved and shown, but training refuses it, except for seeded repetitions of a schedule.
    """

    DATA = "data"
    PRESENCE = "presence"
    PART = "part"
    NONE = "none"

    @property
    def text(self) -> str:
        return _TEXTS[self]

    @property
    def text_under_ledger(self) -> str:
        """Of a plan that was made with a ledger: its constants may be given, and grants are public all the same."""
        return _DATA_UNDER_LEDGER if self is Promise.DATA else self.text


_DATA_UNDER_LEDGER = (
    "Each ε protects that person's data, given what everybody granted: under a ledger grants and the caps of earlier "
    "uses count as public, and what of this plan was not given beforehand may follow from them."
)
_TEXTS = {
    Promise.DATA: (
        "Each ε protects that person's data, given the list of budgets: public constants of this plan were "
        "solved from everyone's ε or from their number, so they may tell something about those."
    ),
    Promise.PRESENCE: (
        "Each ε protects that person's data, presence and declared ε: each rate follows from the person's own "
        "ε and constants fixed beforehand."
    ),
    Promise.PART: (
        "This is one round of a larger whole, a schedule or a federation: who is drawn into it is a secret, and what "
        "each ε protects is said by the schedule or by the terms."
    ),
    Promise.NONE: (
        "NO PROMISE. This repeats a published method for comparison; what it really spends is at most what is "
        "called 'certified' or 'spent', and may be more than was promised. Do not train on people's data with it."
    ),
}
