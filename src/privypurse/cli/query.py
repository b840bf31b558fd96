"""privypurse query: private answers about a table of people, each paying out of their own purse."""

from __future__ import annotations

import argparse
import json
import math
import warnings
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

import privypurse as pp
from privypurse._validate import real
from privypurse.budgets.budgets import DEFAULT_DELTA
from privypurse.cli.arguments import (
    add_ledger_options,
    ledger_is_named,
    number_or_name,
    numbers,
    require_latest_beside,
)
from privypurse.cli.showing import as_it_is, say
from privypurse.cli.table_purses import EPSILON, budgets_of, check_options, private_path, purses_of
from privypurse.errors import PrivyPurseWarning

if TYPE_CHECKING:
    from privypurse.queries import Answer
    from privypurse.queries.table_ledger import Kept

SHORT = "private answers about a table of people, each within their own ε"
LONG = """\
Ask a table of people for a count, a sum, a mean or a histogram. The answer carries Gaussian noise, and everybody whom
the question touches pays for it out of their own purse: their privacy loss over all questions stays within their own
(ε, δ). Whoever cannot pay any more is not counted. Every answer says what it costs at most; nothing that is printed
says who is missing, or how many.

The table is a .csv or .parquet file with one row for each record. What has been spent is kept in a ledger of its own
beside it (people.csv.ledger, its key and its anchor), so that questions of today and tomorrow add up. Keep all three
as long as the data: a new ledger would fill everybody's purse again. With --person, the column of ids, a purse
is a person's: rows may be edited and come in another order, and who is new joins. Without it a purse is that of a
row, by its number, and a table that has changed since is refused. The three files go by the table's name: rename
them with it. Where the anchor of another ledger lies beside the table or here, none is made: name that one, or say
--ledger none if these are other people.

--noise is the standard deviation of the noise. Somebody who counts 1 in an answer is charged (1/noise)², squared
sensitivity over variance: half the noise takes four times as much out of a purse, though the ε of that one answer
only doubles. --cost gives that ε instead, at --at-delta, and solves the noise.

examples (make a table first):
  python3 -c 'print("age,city,pay,epsilon"); [
    print(18 + i % 70, ("Oslo", "Bergen")[i % 3 % 2], 300 + i % 200, 1 + i % 2, sep=",") for i in range(2000)
  ]' > people.csv
  privypurse query people.csv --epsilon epsilon count --where "age >= 65 and city == 'Oslo'" --noise 20
  privypurse query people.csv --epsilon epsilon mean pay --lower 0 --upper 1000 --noise 20
  privypurse query people.csv --epsilon epsilon histogram city --categories Oslo,Bergen --noise 20
  privypurse query people.csv --epsilon epsilon histogram age --edges 0,18,65,120 --noise 20
  privypurse query people.csv --epsilon epsilon count --where "age >= 65" --cost 0.1
  privypurse query people.csv --epsilon epsilon holding 0.1 --cost 0.05

with one ε for all, and a column that says whose record it is (recommended: then the table may change):
  privypurse query visits.parquet --epsilon 1 --person patient sum cost --lower 0 --upper 5000 --noise 50000

With --ledger each person has one purse for life, which trainings and rounds use too (see privypurse ledger --help).
Everybody's ε is then what they granted there:

  export PRIVYPURSE_LEDGER=sqlite:///purses.db PRIVYPURSE_LEDGER_KEY=ledger.key PRIVYPURSE_LEDGER_ANCHOR=anchor.json
  privypurse query stays.parquet --person patient --purpose "to plan wards" count --noise 30

conditions (--where): column names (`in backticks` if they hold spaces), numbers, 'text', dates as '2026-01-31',
== != < <= > >=, in (…), not in, and, or, not, + - * /. A missing cell makes a comparison false.
"""
_BEFORE = """privypurse query TABLE [--epsilon COLUMN|ε] [--delta COLUMN|δ] [--person COLUMN] [--purpose TEXT]
       [--ledger URL [--key FILE] [--anchor FILE]]"""
_BOUNDS = " COLUMN --lower NUMBER --upper NUMBER"
_QUESTIONS = {
    "count": ("how many people", ""),
    "sum": ("the sum of a column", _BOUNDS),
    "mean": ("the mean of a column", _BOUNDS),
    "histogram": ("how many in each category, or between edges", " COLUMN (--categories A,B,… | --edges 0,10,…)"),
    "holding": ("how many of all people can still pay an ε", " ε"),
}


def add_options(command: argparse.ArgumentParser) -> None:
    command.usage = f"{_BEFORE}\n       QUESTION …  (count, sum, mean, histogram or holding; then --help)"
    command.add_argument("table", metavar="TABLE", help="the .csv or .parquet file of people")
    who = command.add_argument_group("who holds what")
    for option, sign, usual in (("--epsilon", "ε", EPSILON), ("--delta", "δ", DEFAULT_DELTA)):
        said = f"column of {sign}, or one {sign} for all (default: {usual})"
        who.add_argument(option, metavar=f"COLUMN|{sign}", type=number_or_name, help=said)
    who.add_argument("--person", metavar="COLUMN", help="column of ids: the privacy unit is a person, not a record")
    add_ledger_options(command)
    _add_how(command)
    command.add_argument("--seed", type=int, help="repeatable noise, for tests: NOT private")
    questions = command.add_subparsers(
        title="questions", dest="question", required=True, metavar="QUESTION", prog="privypurse query TABLE"
    )
    for name, (words, arguments) in _QUESTIONS.items():
        question = questions.add_parser(name, help=words)
        _add_question(question, name, arguments)
        _add_how(question, default=argparse.SUPPRESS)  # what stands before the question holds if nothing follows it


def _add_how(command: argparse.ArgumentParser, **default: Any) -> None:
    """What may stand before the question or after it."""
    said = "recorded with the charge in the ledger and shown on receipts; compared with nothing that people granted"
    command.add_argument("--purpose", metavar="TEXT", help=said, **default)
    command.add_argument("--json", action="store_true", help="print the answer as JSON", **default)
    said = "write answer.json there, listed as public"
    command.add_argument("--out", metavar="FOLDER", type=Path, help=said, **default)


def _add_question(question: argparse.ArgumentParser, name: str, arguments: str) -> None:
    rows = "" if name == "holding" else " [--where CONDITION]"
    question.usage = f"{_BEFORE}\n       {name}{arguments} (--noise NUMBER | --cost ε) [--at-delta δ]{rows}"
    if name == "holding":
        question.add_argument("holding", metavar="ε", type=float, help="of one question by itself, at --at-delta")
    elif name != "count":
        question.add_argument("column", metavar="COLUMN")
    if name in ("sum", "mean"):
        for bound in ("--lower", "--upper"):
            what = "public bound of what a person adds"
            question.add_argument(bound, metavar="NUMBER", type=float, required=True, help=what)
    if name == "histogram":
        bins = question.add_mutually_exclusive_group(required=True)
        bins.add_argument("--categories", metavar="A,B,…", help="public values of the column")
        bins.add_argument("--edges", metavar="0,10,…", type=numbers, help="public bounds of bins")
    price = question.add_mutually_exclusive_group(required=True)
    on_both = ", in people, on count and scaled sum" if name == "mean" else ""
    price.add_argument("--noise", metavar="NUMBER", type=float, help=f"standard deviation of the noise{on_both}")
    price.add_argument("--cost", metavar="ε", type=float, help="what it may cost a person, by itself")
    told = "the δ at which costs are told and given (default: 1e-5)"
    question.add_argument("--at-delta", metavar="δ", type=float, default=DEFAULT_DELTA, help=told)
    if rows:
        question.add_argument("--where", metavar="CONDITION", help="which rows to ask (default: all)")


def run(options: argparse.Namespace, console: Console) -> None:
    from privypurse.budgets.tables import read_table, unchanged
    from privypurse.runs.folder import RunFolder, check_free

    check_options(options)
    with unchanged(Path(options.table)):
        table = read_table(options.table)
        budgets = budgets_of(options, table)
    if options.out is not None:  # said before anybody pays
        check_free(options.out, "answer.json")
    if not ledger_is_named(options) and not private_path(Path(options.table)).exists():
        _try_first(table, budgets, options)
    kept = purses_of(options, table, budgets)
    require_latest_beside(kept.ledger, Path(), Path(options.table).resolve().parent)
    if options.out is not None:
        kept.ledger.require_latest(options.out)
        folder = RunFolder.begin(options.out, "query")
    ledger, budgets = kept.ledger, kept.budgets
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivyPurseWarning)  # said below, in red
        analyst = pp.Analyst(
            table,
            budgets,
            person=budgets.person,
            ledger=ledger,
            purpose=options.purpose or "",
            seed=options.seed,
        )
    answer = _asked(analyst, table, options)
    unit = "record" if options.person is None else "person"
    text = json.dumps({**answer.to_json(), "unit": unit}, ensure_ascii=False)
    if options.json:
        console.print(text, markup=False, soft_wrap=True)
        if answer.internal_note:  # for who asks: what goes into a file holds none of it
            say(Console(stderr=True, highlight=False, emoji=False), answer.internal_note)
    else:
        _show(answer, options, console)
        _show_where(kept, options, console)
    if options.out is not None:
        try:
            folder.add("answer.json", text + "\n", public=options.seed is None)
            folder.add_json("question.json", _question(options))
            ledger.write_anchor(folder.path / "anchor.json")
            folder.add("anchor.json", None)
        except OSError as error:
            raise pp.PrivyPurseError(f"{error}: the answer is given, but not in {options.out}") from None


def _try_first(table: dict[str, Any], budgets: pp.Budgets, options: argparse.Namespace) -> None:
    """Raise for a question that would be refused, before a ledger is made for it; what comes of it is told nobody."""
    from privypurse.ledger.lifetime import Lifetime
    from privypurse.ledger.private import rungs_of
    from privypurse.queries.ledger_purses import refuse_unpayable

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivyPurseWarning)
        answer = _asked(pp.Analyst(table, budgets, person=budgets.person, seed=options.seed), table, options)
    if options.question != "sum":  # whom any other touches contributes 1 at least
        refuse_unpayable(Lifetime.of(rungs_of(budgets)), 1.0, answer.noise)


def _show_where(kept: Kept, options: argparse.Namespace, console: Console) -> None:
    """Where the answer was charged, and who came into the ledger with it."""
    if ledger_is_named(options):
        where = f"the ledger {kept.ledger.id}, where it stays for life"
    else:
        where = f"{private_path(Path(options.table))}; keep it, its key and its anchor as long as the data"
    if kept.news:
        say(console, kept.news)
    say(console, f"spending is kept in {where}")


def _question(options: argparse.Namespace) -> dict[str, Any]:
    """What was asked, by which the cost of its noise can be worked out again."""
    names = ("question", "column", "where", "lower", "upper", "categories", "edges", "holding", "noise", "cost")
    said = {name: getattr(options, name, None) for name in (*names, "at_delta", "purpose")}
    return {name: value for name, value in said.items() if value is not None}


def _asked(analyst: pp.Analyst, table: dict[str, Any], options: argparse.Namespace) -> Answer:
    real(options.at_delta, "--at-delta", above=0, below=1)
    price = {"noise": options.noise, "cost": options.cost, "delta": options.at_delta}
    if options.question == "holding":
        return analyst.count_holding(options.holding, **price)
    price["where"] = options.where
    if options.question == "count":
        return analyst.count(**price)
    if options.question in ("sum", "mean"):
        ask = getattr(analyst, options.question)
        return ask(options.column, lower=options.lower, upper=options.upper, **price)  # type: ignore[no-any-return]
    if options.edges is not None:
        return analyst.histogram(options.column, edges=options.edges, **price)
    return analyst.histogram(
        options.column, categories=_categories(options.categories, table.get(options.column)), **price
    )


def _show(answer: Answer, options: argparse.Namespace, console: Console) -> None:
    from privypurse.queries.answers import in_short

    if options.question == "histogram":
        shown = Table(as_it_is(options.column), "count")
        shown.columns[1].justify = "right"
        for name, value in zip(_bin_names(options), np.atleast_1d(answer.value), strict=True):
            shown.add_row(as_it_is(name), _rounded(float(value), answer.noise))
        console.print(shown)
    else:
        about = "" if answer.error is None else f" ± about {in_short(answer.error)}"
        value = _rounded(float(answer), answer.error or answer.noise)
        console.print(f"[bold]{options.question}: {value}{about}[/]")
    for note in filter(None, (answer.note, answer.internal_note)):
        say(console, note)
    what = "count and scaled sum" if options.question == "mean" else "each number"
    say(console, f"noise: normal, standard deviation {answer.noise:g} on {what}")
    say(console, f"{answer.says}; whom it does not touch pays nothing")
    if options.seed is not None:
        console.print(f"[bold red]seeded with {options.seed}: a test, NOT private[/]")


def _rounded(value: float, noise: float) -> str:
    """To a hundredth of the noise: further digits mean nothing."""
    return f"{value:.{min(max(0, 2 - math.floor(math.log10(noise))), 12)}f}"


def _bin_names(options: argparse.Namespace) -> list[str]:
    if options.edges is None:
        return _words(options.categories)
    return [f"{low:g} … {high:g}" for low, high in pairwise(options.edges)]


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _categories(text: str, column: Any) -> list[Any]:
    """Public values: text if the column holds text, else numbers or true or false if all of them are."""
    from privypurse.queries.columns import Text
    from privypurse.queries.columns import column as kind_of

    words = _words(text)
    if isinstance(kind_of(column), Text):
        return list(words)
    if all(word.lower() in ("true", "false") for word in words):
        return [word.lower() == "true" for word in words]
    for number in (int, float):  # whole ones stay exact
        with suppress(ValueError):
            return [number(word) for word in words]
    return list(words)
