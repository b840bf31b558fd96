"""Places of a configuration that are still to be filled in: told by line and key, with what belongs there."""

from __future__ import annotations

import re

from privypurse.errors import InvalidInput

BLANK = "FILL IN"
_COLUMN = 'a column of the table, as in "{}"'
_MEND = {
    ("data", "label"): _COLUMN.format("left"),
    ("data", "person"): _COLUMN.format("customer_id") + "; where each row is another person, remove the line",
    ("data", "classes"): 'the classes of label, as in ["no", "yes"]; of a number remove the line and give range',
    ("data", "range"): "two public ends, as in { low = 0, high = 5000 }",
    ("budgets", "epsilon"): _COLUMN.format("epsilon") + " that holds everyone's own ε; where choices or ε are in a "
    'file of their own, add table = "consents.csv"',
    ("budgets", "level"): _COLUMN.format("consent") + " that says what each person chose",
    ("budgets", "levels"): "the ε of each choice, as in { strict = 1.0, relaxed = 3.0 }",
}
_FEATURE = (
    "a range, as in { low = 0, high = 100 } or { low = 2015-01-01, high = 2025-12-31 }, categories, as in "
    '["a", "b"], or "flag"; or remove the line, and the column is not used'
)
_SECTION = re.compile(r"\s*\[+([^\]]+)\]+\s*(#.*)?")
_ENTRY = re.compile(r"\s*(\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^=\s#]+)\s*=(.*)")


def require_filled_in(text: str) -> None:
    """Raise where a line still holds `BLANK`, for all such lines at once."""
    section, found, said = "", [], dict[str, int]()
    for number, line in enumerate(text.splitlines(), 1):
        if head := _SECTION.fullmatch(line):
            section = head[1].strip()
            continue
        entry = _ENTRY.match(line)
        if entry is None or BLANK not in entry[2].partition(" #")[0]:
            continue
        key = entry[1].strip("\"'")
        means = _FEATURE if section == "data.features" else _MEND.get((section, key), "a value")
        mend = f"see line {said[means]}" if means in said else f"give {means}"
        said.setdefault(means, number)
        found.append(f"line {number}: {key} under [{section}] is still to be filled in; {mend}")
    if found:
        raise InvalidInput("\n".join(found))
