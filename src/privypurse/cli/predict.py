"""privypurse predict: what a trained model says about the rows of a new table."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from privypurse.cli.arguments import add_trust_option, need, writing
from privypurse.cli.showing import as_it_is, say

SHORT = "what the model of a run says about the rows of a new table"
LONG = """\
What the model of a run says about the rows of a new table.

RUN is the folder that `privypurse train` wrote, or its public files alone (public.json, model.json, model.pt,
encoder.json); every file in it has to be as it was written. The table needs the columns that the model was trained
on, in any order; others are passed over. A cell that is empty or cannot be read is a missing value, as in training.

The answers have one row for each row of the table, in its order: for classes `prediction` and, for each class,
`probability_CLASS`; for a number `prediction`; for several labels `prediction_LABEL` and `probability_LABEL`. With
--id a column of the table is copied before them. Rows are read and written in blocks, so a table may be larger than
memory. A file that is there is replaced with --overwrite alone.

Using a model costs the people in its training nothing more. The answers tell of the people in the new table: the file
is for its owner's eyes (mode 0600), and no row is printed.

examples:
  privypurse predict privypurse-run new.csv -o answers.csv
  privypurse predict privypurse-run new.parquet --id customer_id -o answers.parquet"""


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", metavar="RUN", help="the folder of a run")
    command.add_argument("table", metavar="TABLE", type=Path, help="the .csv or .parquet file to predict for")
    command.add_argument("-o", "--out", metavar="FILE", type=Path, required=True, help="a .csv or .parquet file")
    command.add_argument("--overwrite", action="store_true", help="FILE may be there, and is replaced")
    command.add_argument("--id", metavar="COLUMN", help="a column of the table to copy beside the answers")
    add_trust_option(command)


def run(options: argparse.Namespace, console: Console) -> None:
    need("predict")
    from privypurse.runs.predictions import predict_file
    from privypurse.runs.predictor import load

    predictor = load(options.folder, trust_code=options.trust_code)
    with writing(options.out):
        answered = predict_file(predictor, options.table, options.out, options.id, overwrite=options.overwrite)
    say(console, f"{answered.rows:,} rows answered, written to {options.out}")
    for column in answered.unread:
        line = f"Of {column!r} no cell could be read: all answers are as if it were missing. See how it is written."
        console.print(f"[bold red]{as_it_is(line)}[/]")
