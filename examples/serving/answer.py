"""Answers of an exported run with ONNX Runtime and NumPy alone: python answer.py RUN new.csv"""

import contextlib
import csv
import datetime
import json
import math
import re
import sys

import numpy as np
import onnxruntime

NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?|[iI]nf(inity)?)")


def answers(run, table):
    with open(f"{run}/encoder.json", encoding="utf-8") as file:
        encoder = json.load(file)
    nothing = ["", *encoder["missing"]]
    with open(table, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        for column in encoder["columns"]:
            if column["name"] not in (reader.fieldnames or ()):
                sys.exit(
                    f"{table} has no column {column['name']!r}; its first line has to name it as encoder.json does"
                )
        rows = []
        for row in reader:
            if None in row or None in row.values():  # too many cells, or too few
                sys.exit(
                    f"line {reader.line_num} of {table} does not have one cell for each of the "
                    f"{len(reader.fieldnames)} columns that its first line names; mend that line"
                )
            cells = ((column, row[column["name"]]) for column in encoder["columns"])
            rows.append([number for column, cell in cells for number in encode(column, cell, nothing)])
    return onnxruntime.InferenceSession(f"{run}/export.onnx").run(None, {"features": np.array(rows, np.float32)})[0]


def encode(column, cell, nothing):
    """The numbers that one cell becomes."""
    text = re.sub(r"^(-?[0-9]+)\.0+$", r"\1", cell.strip())
    text = None if text in nothing else text
    if column["kind"] == "category":
        listed = [text == value for value in column["values"]]
        other = text is not None and not any(listed)
        return listed + [other] * column["other"] + [text is None] * column["indicator"]
    value = scaled(column, text) if text is not None else None
    middle = 0.5 if column["kind"] == "flag" or column.get("log") else 0.0
    return [middle if value is None else value] + [value is None] * column["indicator"]


def scaled(column, text):
    """Where a text lies on the column's scale; None where it is no such thing."""
    if column["kind"] == "flag":
        words = {word.lower(): truth for truth in (False, True) for word in column[str(truth).lower()]}
        return words.get(text.lower())
    low, high, value = column["low"], column["high"], None
    if column["kind"] == "number":
        value = float(text) if NUMBER.fullmatch(text) else None
    else:
        low, high = (datetime.date.fromisoformat(end).toordinal() for end in (low, high))
        if column["form"] == "%Y-%m-%d":
            text = re.sub(r"(?s)[T ].*", "", text)  # a time of day is passed over
        with contextlib.suppress(ValueError):
            value = datetime.datetime.strptime(text, column["form"]).toordinal()
    if value is None:
        return None
    distance = min(max(value, low), high) - low
    return math.log1p(distance) / math.log1p(high - low) if column.get("log") else 2 * distance / (high - low) - 1


if __name__ == "__main__":
    for row in answers(*sys.argv[1:]):
        print(*row, sep=",")
