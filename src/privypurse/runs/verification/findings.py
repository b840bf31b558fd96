"""What looking at a run again came to, line by line."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from privypurse import _notebooks

BEYOND = (
    "that the model came out of training by this plan, with secret noise: no file can show it",
    "that all files were not rewritten together, with their digests: keep a digest of run.json elsewhere",
)
"""What no folder can prove about itself."""


class Verdict(StrEnum):
    FITS = "fits"
    WRONG = "does not fit"
    OPEN = "not checked"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    said: str


@dataclass(frozen=True)
class Verified:
    """What was found in a run's folder. As sensitive as the files that were read (``edition``)."""

    run: Path
    command: str
    """What wrote the run, such as "train"."""
    edition: str
    """ "internal", or "public" where the public files were passed on without the others."""
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing contradicts what the run claims; what could not be checked is told apart."""
        return not self.of(Verdict.WRONG)

    def of(self, verdict: Verdict | str) -> list[Finding]:
        return [each for each in self.findings if each.verdict == verdict]

    def to_json(self) -> dict[str, Any]:
        return {
            "run": str(self.run),
            "command": self.command,
            "edition": self.edition,
            "sound": self.sound,
            "findings": [asdict(each) for each in self.findings],
            "beyond": list(BEYOND),
        }

    def _repr_html_(self) -> str:
        """In a notebook: line by line, and what no folder can prove."""
        wrong, left = (len(self.of(verdict)) for verdict in (Verdict.WRONG, Verdict.OPEN))
        title = "nothing that was checked is wrong" if self.sound else f"{wrong} of {len(self.findings)} do not fit"
        rows = [(each.verdict.value, each.what, each.said) for each in self.findings]
        return _notebooks.shown(
            f"{self.run}: {title}" + (f", {left} not checked" if left else ""),
            _notebooks.table(("", "what", "found"), rows),
            _notebooks.words(f"What no folder can prove: {'; '.join(BEYOND)}."),
            internal=self.edition == "internal",
        )

    def __str__(self) -> str:
        lines = [f"{each.verdict.value:>12}  {each.what}: {each.said}" for each in self.findings]
        return "\n".join([*lines, *(f"{'unprovable':>12}  {each}" for each in BEYOND)])


def fits(what: str, said: str) -> Finding:
    return Finding(what, Verdict.FITS, said)


def wrong(what: str, said: str) -> Finding:
    return Finding(what, Verdict.WRONG, said)


def left_open(what: str, said: str) -> Finding:
    return Finding(what, Verdict.OPEN, said)


def compared(what: str, differences: list[str], said: str) -> Finding:
    """Wrong where there is a difference; the first few are named."""
    if not differences:
        return fits(what, said)
    more = f", and {len(differences) - 3} more" if len(differences) > 3 else ""
    return wrong(what, "; ".join(differences[:3]) + more)
