"""Conditions on rows, written as text: ``age >= 65 and city in ("Oslo", "Bergen")``.

A condition holds or does not hold for each row by itself. There is no word in the language for anything about other
rows (a mean, a rank, a position), so what a row adds to an answer depends on that row alone (rule 12:
isolation). Errors depend on the names and kinds of the columns and never on what the rows hold.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from privypurse.arrays import AnyArray
from privypurse.errors import InvalidInput
from privypurse.queries.columns import Column, Dates, Mask, Numbers, Other, Text, Truths, as_float, comparable

_LONGEST = 10_000
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_KNOWS = (
    "a condition may use column names (`in backticks` if they hold spaces), numbers, text, dates as text, True "
    "and False, comparisons, in (…), and, or, not, + - * / and brackets"
)


@dataclass(frozen=True)
class _Constant:
    value: float | bool | str

    @property
    def kind(self) -> str:
        if isinstance(self.value, bool):
            return "true or false"
        return "text" if isinstance(self.value, str) else "numbers"

    def floats(self) -> AnyArray:
        return np.asarray(as_float(self.value))


class Condition:
    """A parsed condition. Parsing needs no columns; `holds` looks them up.

    A missing cell or NaN compares as False with everything, ``!=`` and ``not in`` too; ``not`` turns what it is
    given.
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str) or not text.strip():
            raise InvalidInput(f"a condition must be text such as 'age >= 65', not {text!r}")
        if len(text) > _LONGEST:
            raise InvalidInput(f"a condition of {len(text):,} letters is too long; at most {_LONGEST:,}")
        self.text = text
        self._names: dict[str, str] = {}
        try:
            tree = ast.parse(self._without_backticks(text).strip(), mode="eval")
        except SyntaxError as error:
            raise InvalidInput(f"the condition {text!r} cannot be read: {error.msg}; {_KNOWS}") from None
        except (ValueError, RecursionError, MemoryError):
            raise InvalidInput(f"the condition {text[:80]!r} cannot be read; {_KNOWS}") from None
        self._tree = tree.body

    def _without_backticks(self, text: str) -> str:
        """Names in backticks replaced by names that Python's grammar knows; what stands in quotes is left alone."""

        def stand_in(found: re.Match[str]) -> str:
            if found["name"] is None:
                return found[0]
            known = f"column_{len(self._names)}_in_backticks"
            self._names[known] = found["name"]
            return known

        return re.sub(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|`(?P<name>[^`]+)`", stand_in, text)

    def holds(self, columns: Mapping[str, Column], rows: int) -> Mask:
        """For each row whether the condition holds."""
        try:
            # Warnings about rows (a division by zero) would tell something about them.
            with np.errstate(all="ignore"):
                mask = self._truth(self._tree, columns)
        except RecursionError:
            raise InvalidInput(f"the condition {self.text[:80]!r} is nested too deeply") from None
        return np.array(np.broadcast_to(mask, rows))

    def _truth(self, node: ast.expr, columns: Mapping[str, Column]) -> Mask:
        match node:
            case ast.BoolOp(op, values):
                parts = [self._truth(value, columns) for value in values]
                both = np.logical_and if isinstance(op, ast.And) else np.logical_or
                mask = parts[0]
                for part in parts[1:]:
                    mask = both(mask, part)
                return mask
            case ast.UnaryOp(ast.Not(), operand):
                return np.logical_not(self._truth(operand, columns))
            case ast.Compare(left, ops, comparators):
                mask = np.asarray(True)
                for how, first, second in zip(ops, [left, *comparators], comparators, strict=False):
                    mask = np.logical_and(mask, self._compared(how, first, second, columns))
                return mask
            case ast.Name() | ast.Constant():
                value = self._value(node, columns)
                if isinstance(value, Truths):
                    return value.values
                if isinstance(value, _Constant) and isinstance(value.value, bool):
                    return np.asarray(value.value)
        raise InvalidInput(f"in the condition {self.text!r}, {self._said(node)} is neither true nor false; {_KNOWS}")

    def _compared(self, op: ast.cmpop, left: ast.expr, right: ast.expr, columns: Mapping[str, Column]) -> Mask:
        if isinstance(op, ast.In | ast.NotIn):
            return self._in(left, right, isinstance(op, ast.NotIn), columns)
        if type(op) not in _COMPARISONS:
            raise InvalidInput(f"the condition {self.text!r} compares with something other than == != < <= > >= in")
        first, second = self._value(left, columns), self._value(right, columns)
        if isinstance(second, Dates) and isinstance(first, _Constant):
            first = self._date(first, left)
        if isinstance(first, Dates) and isinstance(second, _Constant):
            second = self._date(second, right)
        self._refuse_unlike(left, first, right, second)
        return _compare(type(op), first, second)

    def _in(self, left: ast.expr, right: ast.expr, negated: bool, columns: Mapping[str, Column]) -> Mask:
        if not isinstance(right, ast.Tuple | ast.List | ast.Set) or not right.elts:
            raise InvalidInput(f"in the condition {self.text!r}, in needs a list of values: in (1, 2, 3)")
        value = self._value(left, columns)
        mask: Mask = np.asarray(False)
        for element in right.elts:
            one = self._value(element, columns)
            if not isinstance(one, _Constant):
                raise InvalidInput(
                    f"in the condition {self.text!r}, the list after in holds {self._said(element)}, "
                    "which is no number and no text"
                )
            listed = self._date(one, element) if isinstance(value, Dates) else one
            self._refuse_unlike(left, value, element, listed)
            mask = np.logical_or(mask, _compare(ast.Eq, value, listed))
        if not negated:
            return mask
        known = np.asarray(True) if isinstance(value, _Constant) else value.known()
        return np.logical_and(known, np.logical_not(mask))

    def _value(self, node: ast.expr, columns: Mapping[str, Column]) -> Column | _Constant:
        match node:
            case ast.Name(name):
                name = self._names.get(name, name)
                if name not in columns:
                    raise InvalidInput(f"the condition {self.text!r} names {name!r}, but {named(columns)}")
                value = columns[name]
                if isinstance(value, Other):
                    raise InvalidInput(
                        f"the condition {self.text!r} names the column {name!r}, which holds {value.what}; "
                        "conditions know numbers, text, true or false, and dates"
                    )
                return value
            case ast.Constant(value) if isinstance(value, bool | int | float | str):
                return _Constant(value)
            case ast.UnaryOp(ast.USub() | ast.UAdd(), operand):
                number, sign = self._number(operand, columns), -1 if isinstance(node.op, ast.USub) else 1
                if isinstance(number, _Constant):  # a whole number stays one
                    return _Constant(sign * number.value)
                return Numbers(sign * number.floats())
            case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC:
                # As floats: whole numbers of a few bits would wrap around.
                first, second = (self._number(side, columns).floats() for side in (left, right))
                return _as_column(_ARITHMETIC[type(op)](first, second))
        raise InvalidInput(f"in the condition {self.text!r}, {self._said(node)} is not allowed; {_KNOWS}")

    def _number(self, node: ast.expr, columns: Mapping[str, Column]) -> Numbers | _Constant:
        value = self._value(node, columns)
        if isinstance(value, Numbers) or (isinstance(value, _Constant) and value.kind == "numbers"):
            return value
        raise InvalidInput(f"the condition {self.text!r} computes with {self._said(node)}, which holds {value.kind}")

    def _date(self, value: _Constant, node: ast.expr) -> Dates:
        try:
            if not isinstance(value.value, str):
                raise ValueError
            return Dates(np.asarray(np.datetime64(value.value)))
        except ValueError:
            raise InvalidInput(
                f"the condition {self.text!r} compares dates with {self._said(node)}; write a date as '2024-12-31'"
            ) from None

    def _refuse_unlike(self, left: ast.expr, first: Any, right: ast.expr, second: Any) -> None:
        if first.kind != second.kind:
            raise InvalidInput(
                f"the condition {self.text!r} compares {self._said(left)} ({first.kind}) with {self._said(right)} "
                f"({second.kind})"
            )

    def _said(self, node: ast.AST) -> str:
        text = ast.unparse(node)
        for known, name in self._names.items():
            text = text.replace(known, f"`{name}`")
        return text[:80]


def named(columns: Mapping[str, Any]) -> str:
    """The end of a sentence about a column that is not there."""
    if not columns:
        return "the data have no named columns; use a callable"
    names = [str(name) for name in columns]
    more = f", … ({len(names)} in all)" if len(names) > 40 else ""
    text = all(isinstance(name, str) for name in columns)
    rename = "" if text else "; names must be text: rename them by data.columns = data.columns.astype(str)"
    return f"the columns are {', '.join(names[:40])}{more}{rename}"


def _as_column(number: AnyArray) -> Numbers | _Constant:
    return _Constant(float(number)) if number.ndim == 0 else Numbers(number)


def _compare(op: type[ast.cmpop], first: Column | _Constant, second: Column | _Constant) -> Mask:
    """Two values of the same kind. Missing cells compare as False."""
    does = _COMPARISONS[op]
    if isinstance(first, _Constant) and isinstance(second, _Constant):
        return np.asarray(does(first.value, second.value))
    if isinstance(first, Text) and isinstance(second, _Constant):
        return first.where(np.asarray(does(first.words, second.value), dtype=bool))
    if isinstance(first, _Constant) and isinstance(second, Text):
        return second.where(np.asarray(does(first.value, second.words), dtype=bool))
    if isinstance(first, Text) and isinstance(second, Text):
        left, right = np.append(first.words, "")[first.codes], np.append(second.words, "")[second.codes]
        return np.asarray(does(left, right), dtype=bool) & first.known() & second.known()
    both = _raw(first, second), _raw(second, first)
    mask = np.asarray(does(*both), dtype=bool)
    for side, raw in zip((first, second), both, strict=True):
        if not isinstance(side, _Constant) and np.ndim(raw):
            mask = mask & side.known()
    return mask


def _raw(value: Any, beside: Any) -> Any:
    if isinstance(value, Dates):
        return value.microseconds()
    if not isinstance(value, _Constant):
        return value.values
    return comparable(value.value, beside.values) if isinstance(beside, Numbers) else value.value
