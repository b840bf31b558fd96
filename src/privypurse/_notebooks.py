"""How objects show themselves in notebooks: a few lines and a table, of what their summaries say.

No script, no file from anywhere, no colour of its own, so that it reads in light and dark. Whatever is put in is
escaped. What is internal says so beside it: a notebook is passed on more easily than a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

SENSITIVE = "internal: keep it as safe as the data"
_MOST = 50
_QUIET = "opacity: 0.75; margin: 0.4em 0"
_MARK = "border: 1px solid currentColor; border-radius: 0.3em; padding: 0 0.4em; font-weight: normal; font-size: 85%"
_TABLE = "border-collapse: collapse; margin: 0.4em 0; font-size: inherit"
_CAPTION = "text-align: left; white-space: nowrap; padding: 0.2em 0"
_CELL = "text-align: right; padding: 0.15em 0.6em"
_HEAD = f"{_CELL}; border-bottom: 1px solid currentColor"


def shown(title: str, *parts: str, internal: bool = False) -> str:
    """A block with a title, and below it these parts, which were made here."""
    mark = f' <span style="{_MARK}">{SENSITIVE}</span>' if internal else ""
    return f'<div><p style="margin: 0.4em 0"><strong>{escape(title)}</strong>{mark}</p>{"".join(parts)}</div>'


def lines(texts: Iterable[str]) -> str:
    """Each in a line of its own."""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts if text)
    return f'<ul style="margin: 0.4em 0; padding-left: 1.2em">{items}</ul>' if items else ""


def words(text: str) -> str:
    """A quiet paragraph."""
    return f'<p style="{_QUIET}">{escape(text)}</p>' if text else ""


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """The first fifty rows."""
    if not rows:
        return ""
    head = "".join(f'<th scope="col" style="{_HEAD}">{escape(name)}</th>' for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:_MOST])
    more = f", the first {_MOST} of {len(rows):,}" if len(rows) > _MOST else ""
    above = f'<caption style="{_CAPTION}">{escape(caption + more)}</caption>' if caption or more else ""
    return f'<table style="{_TABLE}">{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cell(text: str) -> str:
    return f'<td style="{_CELL}">{escape(text)}</td>'
