"""Small runs on a table of a few people, for tests of what is made of a run's folder."""

from __future__ import annotations

from pathlib import Path

from privypurse.runs.config import parse_config
from privypurse.runs.training_run import train_by

TWO_STEPS = """
[model]
kind = "mlp"
[optimizer]
name = "SGD"
lr = 0.5
[plan]
steps = 2
batch_size = 2
"""
"""A run as short as one can be; keys of [plan] may follow."""
_CONFIG = """
[data]
table = "{table}"
test = "{others}"
measured = "{measured}"
label = "answer"
classes = ["no", "yes"]
person = "id"
[data.features]
age = {{ low = 0, high = 100 }}
[data.groups]
kind = ["a", "b"]
[budgets]
level = "consent"
levels = {{ strict = 1.0, medium = 2.0, relaxed = 4.0 }}
delta = 1e-5
[plan]
{steps}
batch_size = 10
accountant = "rdp"
{plan}
[model]
kind = "mlp"
hidden = []
[optimizer]
name = "SGD"
lr = 0.1
{more}
[training]
device = "cpu"
out = "{out}"
{training}
"""
LINES = [f"{i % 100},{'ab'[i % 2]},{('no', 'yes')[i % 3 == 0]},{('strict', 'medium')[i % 2]},p{i}" for i in range(40)]
OTHERS = [line.replace(",p", ",o") for line in LINES[:5]]
CROWDS = {
    "all": LINES,
    "other data": ["77,b,no,strict,p0", *LINES[1:]],
    "other budget": ["77,b,no,relaxed,p0", *LINES[1:]],
    "absent": LINES[1:],
}
"""The lines of a table, and what they are when one person differs."""


def trained(
    folder: Path,
    lines: list[str] | None = None,
    *,
    plan: str = "",
    more: str = "",
    training: str = "",
    measured: str = "public",
) -> Path:
    """A run by these lines of a table; ``plan``, ``more`` and ``training`` are lines of its configuration."""
    folder.mkdir(exist_ok=True, parents=True)
    for name, rows in (("people.csv", LINES if lines is None else lines), ("others.csv", OTHERS)):
        (folder / name).write_text("age,kind,answer,consent,id\n" + "\n".join(rows) + "\n", encoding="utf-8")
    places = {"table": folder / "people.csv", "others": folder / "others.csv", "out": folder / "run"}
    length = "" if "epochs" in plan else "steps = 6"
    text = _CONFIG.format(**places, steps=length, measured=measured, plan=plan, more=more, training=training)
    return train_by(parse_config(text)).folder
