"""verify: a run's folder, file by file and claim by claim."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from privypurse.accounting import Progress
from privypurse.errors import InvalidInput
from privypurse.runs.folder import INTERNAL_LIST, PUBLIC_LIST, RunFolder
from privypurse.runs.verification.findings import Finding, Verified, compared, left_open, wrong
from privypurse.runs.verification.published import strangers
from privypurse.runs.verification.question import of_question
from privypurse.runs.verification.rounds import of_rounds
from privypurse.runs.verification.training import Beside, of_training

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger

_INTERNAL = ("plan.json", "metrics.json", "accounts.json", "question.json")


def verify(
    run: str | Path,
    *,
    table: str | Path | None = None,
    checkpoint: str | Path | None = None,
    ledger: Ledger | None = None,
    progress: Progress | None = None,
) -> Verified:
    """Recompute what the run in this folder certified, and compare every file with what was written.

    Each level's ε follows anew from noise, rates, clip norms and steps, by the accountant that the plan names, and
    nothing that the run wrote about it is believed. ``table`` is the file of people that it was trained on, by which
    everybody's grant is compared; ``checkpoint`` the folder whose journal counts its steps; ``ledger`` the one that
    was charged. What cannot be checked, for want of a file or in principle, is told apart from what fits.
    """
    folder = RunFolder.listed(run)
    _require_given(table, checkpoint)
    beside = Beside(
        table=None if table is None else Path(table),
        checkpoint=None if checkpoint is None else Path(checkpoint),
        ledger=ledger,
        progress=progress,
    )
    edition = "internal" if (folder.path / INTERNAL_LIST).exists() else "public"
    claims = tuple(_claims(folder, beside))
    found = (*_files(folder), *claims, *_unused({each.what for each in claims}, beside))
    return Verified(folder.path, folder.command, edition, found)


def _require_given(table: str | Path | None, checkpoint: str | Path | None) -> None:
    """Raise for a path that leads nowhere: that is no fault of the run."""
    from privypurse.training.journal import counted_in  # here: its room is training's

    if table is not None and not Path(table).is_file():
        raise InvalidInput(f"table= is {str(table)!r}, and there is no such file; name the table that was trained on")
    if checkpoint is not None:
        try:
            counted_in(Path(checkpoint))
        except (InvalidInput, ValueError) as error:
            raise InvalidInput(f"checkpoint= is {str(checkpoint)!r}: {error}") from None


def _unused(claims: set[str], beside: Beside) -> Iterator[Finding]:
    """What was given, and nothing compared with it: that is said."""
    given = {"table": beside.table, "journal": beside.checkpoint, "ledger": beside.ledger}
    for what, each in given.items():
        if each is not None and not claims & {what, "claims"}:
            yield left_open(what, "one was given, and no file of this run names one, so nothing was compared with it")


def _files(folder: RunFolder) -> Iterator[Finding]:
    said = f"{len(folder.files):,} files are as they were written"
    try:
        changes = list(folder.changes())
    except InvalidInput as error:  # a name that leads out of the folder
        changes = [str(error)]
    yield compared("files", changes, said)
    links = [name for name in folder.files if (folder.path / name).is_symlink()]
    if links:
        yield left_open("links", f"{_few(links)}: links to files elsewhere, which may change without this folder")
    unpaid = list(strangers(folder))
    if unpaid:
        yield compared("public files", unpaid, "")
    lists = (INTERNAL_LIST, PUBLIC_LIST)
    names = (file.relative_to(folder.path).as_posix() for file in sorted(folder.path.rglob("*")) if file.is_file())
    strange = [name for name in names if name not in folder.files and name not in lists]
    if strange and (folder.path / INTERNAL_LIST).exists():
        yield left_open("other files", f"{_few(strange)}: the run lists no such file, so nothing is known of them")
    if not (folder.path / INTERNAL_LIST).exists() and any((folder.path / name).exists() for name in _INTERNAL):
        yield wrong("internal files", f"{INTERNAL_LIST} is missing beside files that it has to list; put it back")
    if not (folder.path / PUBLIC_LIST).exists():
        yield wrong("public files", f"{PUBLIC_LIST} is missing, which says what may be shown; put it back")


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _claims(folder: RunFolder, beside: Beside) -> Iterator[Finding]:
    """By what wrote the run."""
    kinds = {"train": of_training, "demo": of_training, "federate": of_rounds, "query": of_question}
    if folder.command not in kinds:
        yield wrong(
            "claims", f"written by {folder.command!r}; this release knows {', '.join(kinds)}, and no such run"
        )
        return
    if folder.charged and folder.command != "train":
        yield wrong("facts", f"{PUBLIC_LIST} says who is charged: {folder.charged!r}; of such a run it says nothing")
    try:
        yield from kinds[folder.command](folder, beside)
    except (InvalidInput, OSError, ValueError, KeyError, TypeError, LookupError) as error:
        yield wrong("claims", f"something cannot be read: {error if str(error) else repr(error)}")
