"""A model's answers about the rows of a file, written to another file block by block."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from privypurse._storage import replace_file
from privypurse.arrays import FloatArray
from privypurse.budgets import tables
from privypurse.datasets.targets import Classes, Number
from privypurse.errors import InvalidInput
from privypurse.runs.gaps import by_column, never_read
from privypurse.runs.predictor import Predictor

_ENDINGS = (".csv", ".parquet", ".pq")


@dataclass(frozen=True)
class Answered:
    """How many rows were answered, and the columns of which no cell could be read."""

    rows: int
    unread: list[str]


def predict_file(
    predictor: Predictor, table: Path, out: Path, id_column: str | None = None, *, overwrite: bool = False
) -> Answered:
    """Write the answers about each row, in the rows' order.

    Rows are read, answered and written some thousands at a time: memory does not grow with the file. ``id_column`` is
    copied as it is. The file is written whole or not at all, for its owner's eyes: it tells of the people in it.
    """
    if predictor.encoder is None:
        raise InvalidInput("this run's model takes images and no tables; call predict of what pp.load gives")
    names = list(predictor.encoder.columns)
    there = tables.column_names(table)
    _require(table, there, names, id_column)
    _require_out(table, out, overwrite)
    _require_new(id_column, header(predictor))
    wanted = list(dict.fromkeys([*([] if id_column is None else [id_column]), *names]))
    written, totals = 0, np.zeros(predictor.encoder.width)

    def fill(file: BinaryIO) -> None:
        nonlocal written
        written = _write(file, out, _answered(predictor, table, wanted, id_column, totals))

    with tables.unchanged(table):
        replace_file(out, fill)
    return Answered(written, never_read(by_column(totals, predictor.encoder), written))


def header(predictor: Predictor) -> list[str]:
    """The names of the columns that are written, but for the ids'."""
    target, names = predictor.target, predictor.names
    if isinstance(target, Number):
        return ["prediction"]
    probabilities = [f"probability_{name}" for name in names]
    return (
        ["prediction", *probabilities]
        if isinstance(target, Classes)
        else [*(f"prediction_{name}" for name in names), *probabilities]
    )


def _answered(
    predictor: Predictor, table: Path, wanted: list[str], id_column: str | None, totals: FloatArray
) -> Iterator[Any]:
    """Block by block; ``totals`` are the features' sums over all rows so far."""
    for block in tables.blocks(table, wanted):
        inputs = predictor.inputs(block)
        totals += inputs.sum(axis=0, dtype=np.float64)
        answers = predictor.answers_to(inputs)
        ids = {} if id_column is None else {id_column: block[id_column]}
        yield pa.table({**ids, **dict(zip(header(predictor), _columns(predictor, answers), strict=True))})


def _columns(predictor: Predictor, answers: npt.NDArray[np.float32]) -> list[Any]:
    said = predictor.said(answers)
    if isinstance(predictor.target, Number):
        return [said]
    return [*(said.T if said.ndim == 2 else [said]), *answers.T]


def _write(file: BinaryIO, out: Path, parts: Iterator[Any]) -> int:
    """All parts, and how many rows they had."""
    rows = 0
    first = next(parts, None)
    if first is None:
        raise InvalidInput("the table has no rows; give at least one record")
    kind = pyarrow.csv.CSVWriter if out.suffix.lower() == ".csv" else pyarrow.parquet.ParquetWriter
    with kind(file, first.schema) as writer:
        while first is not None:
            writer.write_table(first)
            rows, first = rows + first.num_rows, next(parts, None)
    return rows


def _require(table: Path, there: list[str], names: list[str], id_column: str | None) -> None:
    """Raise unless the table has every column that the model takes, and that of ids.

    Its own names are not listed: of a table without a header they are cells.
    """
    for name in names:
        if name not in there:
            raise InvalidInput(
                f"{table} has no column {name!r}, which the model was trained on{_alike(name, there)}; its first "
                "line has to name the columns as encoder.json does"
            )
    if id_column is not None and id_column not in there:
        raise InvalidInput(f"--id is {id_column!r}, and {table} has no such column{_alike(id_column, there)}")


def _alike(name: str, there: list[str]) -> str:
    near = difflib.get_close_matches(name.lower(), {each.lower(): each for each in there}, n=1, cutoff=0.8)
    return f" (but {next(each for each in there if each.lower() == near[0])!r})" if near else ""


def _require_new(id_column: str | None, made: list[str]) -> None:
    if id_column in made:
        raise InvalidInput(f"--id is {id_column!r}, as a column of answers is called; rename the column of ids")


def _require_out(table: Path, out: Path, overwrite: bool) -> None:
    if out.suffix.lower() not in _ENDINGS:
        raise InvalidInput(f"--out {out} is neither .csv nor .parquet; give it such an ending")
    if out.is_dir() or not out.resolve().parent.is_dir():
        raise InvalidInput(f"--out {out} is a folder, or in none that exists; name a file in an existing folder")
    if out.exists() and out.samefile(table):
        raise InvalidInput(f"--out {out} is the table itself and would be overwritten; name another file")
    if out.exists() and not overwrite:
        raise InvalidInput(f"--out {out} exists; name another file, or replace it with --overwrite")
