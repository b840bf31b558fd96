"""What an audit found, by budget group, and the file that it is kept in: ``audit.json``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

import msgspec

from privypurse import _notebooks
from privypurse._storage import replace_text
from privypurse.errors import InvalidInput

FORMAT: Literal["privypurse audit 1"] = "privypurse audit 1"
FILE = "audit.json"

Attack = Literal["canaries", "small-runs", "lira", "loss"]
Reading = Literal["guesses", "f-dp", "gaussian scores"]
BOUNDS: tuple[Reading, ...] = ("guesses", "f-dp")
"""Readings that are lower bounds at the stated confidence; Gaussian scores are an estimate and decide nothing."""


def confidence_of_each(confidence: float, groups: int) -> float:
    """The confidence at which each group's verdict is taken, so that all hold together with this one (Bonferroni).

    A sound run has some group flagged with probability at most 1 - confidence, however groups depend on each other.
    """
    return 1 - (1 - confidence) / groups


def over_groups(confidence: float, groups: int, what: str = "bound") -> Iterator[str]:
    """What the verdict makes of several groups; nothing of one."""
    if groups > 1:
        yield (
            f"Each {what} holds at confidence {confidence:g} by itself. A group is flagged only at "
            f"{confidence_of_each(confidence, groups):.4g}, as {groups} groups ask for (Bonferroni): of sound runs "
            f"at most {100 * (1 - confidence):.2g} % have any flagged."
        )


class _Plain(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Plain data whose fields without a figure are left out of the file."""


class Roc(_Plain, frozen=True, kw_only=True):
    """How often the attack is right about members, against how often it takes others for one."""

    false_positive_rate: tuple[float, ...]
    true_positive_rate: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.false_positive_rate) != len(self.true_positive_rate):
            raise ValueError("roc needs as many true as false positive rates")
        for rates in (self.false_positive_rate, self.true_positive_rate):
            if not all(0 <= rate <= 1 for rate in rates) or list(rates) != sorted(rates):
                raise ValueError("the rates of roc lie in 0 … 1 and never fall")


class Group(_Plain, frozen=True, kw_only=True):
    """People with equal purses: what is claimed for them, and what the attack proves against it."""

    name: str
    claimed_epsilon: float
    """The ε that the plan certifies at ``delta``."""
    delta: float
    flagged: bool
    """Whether the reading named beforehand proves more than is claimed, at `confidence_of_each`."""
    canaries: int | None = None
    targets: int | None = None
    bounds: dict[Reading, float] = {}
    """ε at ``delta`` by reading: "guesses" and "f-dp" are lower bounds, "gaussian scores" is an estimate."""
    auc: float | None = None
    auc_interval: tuple[float, float] | None = None
    roc: Roc | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.claimed_epsilon < math.inf or not 0 < self.delta < 1:
            raise ValueError(f"group {self.name!r} claims ε = {self.claimed_epsilon} at δ = {self.delta}")
        if not all(0 <= bound < math.inf for bound in self.bounds.values()):
            raise ValueError(f"group {self.name!r} has a bound that is no ε: {self.bounds}")
        if any(count is not None and count < 1 for count in (self.canaries, self.targets)):
            raise ValueError(f"group {self.name!r} counts canaries or targets below 1")
        if self.auc is not None and not 0 <= self.auc <= 1:
            raise ValueError(f"group {self.name!r} has auc {self.auc}, outside of 0 … 1")
        if self.auc_interval is not None and not 0 <= self.auc_interval[0] <= self.auc_interval[1] <= 1:
            raise ValueError(f"group {self.name!r} has auc_interval {self.auc_interval}, outside of 0 … 1")

    def above(self, reading: Reading) -> bool:
        """Whether this bound lies above the claim, be it flagged or what chance may show among several groups."""
        return self.bounds.get(reading, 0.0) > self.claimed_epsilon


class Fault(_Plain, frozen=True, kw_only=True):
    """A fault that was planted, which auditor saw it, and what that took."""

    name: str
    seen_by: str
    seen: bool
    seconds: float | None = None


class _Format(msgspec.Struct, frozen=True):
    """What every such file says first."""

    format: Literal["privypurse audit 1"]


class PlanConstants(_Plain, frozen=True, kw_only=True):
    """The plan that was attacked, by its public constants: they say whether it is that of a run.

    No digest: that of a plan proves a guess of who is in it (rule 6). Noise that was solved from everybody's budgets
    is as sensitive here as it is in the plan.
    """

    method: str
    noise_multiplier: float
    clip_norm: float
    batch_size: int
    accountant: str
    steps: int
    """That everybody takes; with those that may follow under the filter, ``all_steps``."""
    all_steps: int
    filter: str | None = None


class Cost(_Plain, frozen=True, kw_only=True):
    trainings: int
    seconds: float


class AuditResult(_Plain, frozen=True, kw_only=True):
    """What one audit found.

    ``verdict_reading`` was named before anything was looked at. Audits on members are internal (rule 6), and say so.
    """

    format: Literal["privypurse audit 1"] = msgspec.field(default_factory=lambda: FORMAT)
    attack: Attack
    data: Literal["made up", "members"]
    delta: float
    confidence: float
    """Of each bound by itself, and of the verdict over all groups, which reads each at `confidence_of_each`."""
    verdict_reading: Reading
    groups: tuple[Group, ...]
    cost: Cost
    words: tuple[str, ...] = ()
    """Plain sentences: what was done, and what it means."""
    faults: tuple[Fault, ...] = ()
    edition: Literal["internal"] | None = None
    plan: PlanConstants | None = None
    """None where no one plan was attacked, and in files from before."""
    not_attacked: tuple[str, ...] = ()
    """Levels of the plan that were left out: they tell what somebody chose, and stand in no public report."""

    def __post_init__(self) -> None:
        if (self.data == "members") != (self.edition == "internal"):
            raise ValueError('an audit on members has edition "internal", one on made-up records has none')
        if not 0 < self.confidence < 1 or not 0 < self.delta < 1:
            raise ValueError(f"confidence is {self.confidence} and delta {self.delta}; both lie between 0 and 1")
        if len({group.name for group in self.groups}) < len(self.groups) or not self.groups:
            raise ValueError("groups need names of their own, and there is at least one")

    @property
    def flagged(self) -> bool:
        """Whether some group's claim is refuted."""
        return any(group.flagged for group in self.groups)

    @property
    def confidence_in_words(self) -> str:
        """Of a bound, and of the verdict."""
        each, groups = f"{100 * self.confidence:.4g} %", len(self.groups)
        if groups == 1:
            return each
        stricter = f"{100 * confidence_of_each(self.confidence, groups):.4g} %"
        return (
            f"{each} of each group by itself, and of the verdict over {groups} groups, which asks {stricter} of each"
        )

    def _repr_html_(self) -> str:
        """In a notebook: the verdict, each group's claim and bounds, and what was done.

        Marked as internal whatever it attacked: bounds tell the noise, which may follow from everybody's budgets.
        """
        readings = list(dict.fromkeys(name for group in self.groups for name in group.bounds))
        rows = []
        for group in self.groups:
            found = (f"{group.bounds[name]:.4g}" if name in group.bounds else "" for name in readings)
            verdict = "flagged" if group.flagged else "cleared"
            rows.append((group.name, f"{group.claimed_epsilon:.4g}", *found, verdict))
        names = (name if name in BOUNDS else f"{name} (an estimate, which decides nothing)" for name in readings)
        return _notebooks.shown(
            f"Audit ({self.attack}): {'some claim is refuted' if self.flagged else 'no claim is refuted'}",
            _notebooks.table(("group", "ε claimed", *names, "verdict"), rows, f"at δ = {self.delta:g}"),
            _notebooks.words(f"Confidence: {self.confidence_in_words}."),
            _notebooks.lines(self.words),
            internal=True,
        )

    @property
    def left_out_in_words(self) -> str:
        """The levels that were not attacked; nothing is said of them."""
        some, most = self.not_attacked, 8
        return ", ".join(some[:most]) + (f" and {len(some) - most:,} more" if len(some) > most else "")

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read it back. What is missing, unknown or impossible is an error that names it."""
        try:
            msgspec.json.decode(text, type=_Format)
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise InvalidInput(f"this is no {FILE} of format {FORMAT!r}: {error}; make it anew") from None

    def save(self, folder: Path) -> Path:
        """Write it into the audit's own folder, which is no released run; only its owner may read it."""
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(folder / FILE, self.to_json())
        (folder / FILE).chmod(0o600)
        return folder / FILE

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Of an audit's folder, or the file itself."""
        path = Path(folder)
        path = path / FILE if path.is_dir() else path
        if not path.is_file():
            raise InvalidInput(f"{path} does not exist; name the folder of an audit, which holds {FILE}")
        try:
            return cls.from_json(path.read_bytes())
        except InvalidInput as error:
            raise InvalidInput(f"{path}: {error}") from None
