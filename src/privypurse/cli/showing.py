"""What the commands print: plans as tables, and bars while one waits."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import privypurse as pp
from privypurse._totals import NOT_KEPT
from privypurse.budgets.budgets import DEFAULT_DELTA
from privypurse.plans import summary
from privypurse.runs.planning import usual_delta

_TURNED = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))  # show what follows in another order
_CONTROL = {code: "\ufffd" for code in (*range(32), *range(127, 160), *_TURNED) if chr(code) not in "\n\t"}
_BRACKET = re.compile(r"(\\*)\[(?=([a-z#/@][^\[]*?\])?)")  # and whether it begins what rich takes for mark-up


def say(console: Console, words: str) -> None:
    """A text as it is, in lines as long as they are."""
    console.print(as_it_is(words), soft_wrap=True)


def show_plan(plan: pp.Plan, console: Console) -> None:
    """The table by level, with what holds for all above it and what is promised below."""
    if plan.ledger is None:
        say(console, NOT_KEPT)
    for line in summary.facts(plan):
        say(console, line)
    if plan.ledger is None:
        table = Table(title=f"plan: {plan.method}", title_justify="left", caption_justify="left")
        for name in summary.COLUMNS:
            table.add_column(name, justify="right")
        for row in plan.by_level():
            table.add_row(*summary.cells(row))
        console.print(table)
        below = [summary.ROUNDED, summary.SENSITIVE]
    else:
        below = [summary.SAVED]
    for line in (plan.promise_text, *below):
        console.print(line, style="dim")


def default_delta(option: str, ledger: pp.Ledger | None = None) -> str:
    """Said where nobody chose one."""
    if ledger is not None:
        least = "" if len({rung.delta for rung in ledger.rungs}) == 1 else ", the smallest of its rungs"
        return f"δ = {usual_delta(ledger):g} for everyone, as in the ledger{least}"
    return f"δ = {DEFAULT_DELTA:g} for everyone, which is the default: choose it with {option}, well below 1 / people"


@contextmanager
def bar(console: Console, what: str, patience: float = 1.0) -> Iterator[Callable[..., None]]:
    """Tells how much is done of how much, and by a third argument of what, once it took ``patience`` seconds."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = Progress(*columns, console=console, transient=True)
    task = shown.add_task(what, total=None)
    begun = time.monotonic()

    def report(done: int, total: int, what: str = what) -> None:
        if not shown.live.is_started and time.monotonic() - begun > patience:
            shown.start()
        shown.update(task, completed=done, total=total, description=what)

    try:
        yield report
    finally:
        if shown.live.is_started:
            shown.stop()


def as_it_is(text: str) -> str:
    """Text as it is: square brackets are no mark-up, and a file's text gives the terminal no commands."""

    def plain(found: re.Match[str]) -> str:
        return found[1] * (1 if found[2] is None else 2) + "\\["  # before mark-up a backslash needs one, too

    return _BRACKET.sub(plain, text.translate(_CONTROL))
