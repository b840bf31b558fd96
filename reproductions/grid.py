"""An experiment as a small TOML file: which table of which paper, rows, columns, and how each cell is trained."""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from privypurse.errors import InvalidInput

MEASURES = (
    "accuracy",
    "classes",
    "gap",
    "overall",
    "seconds",
    "planning_seconds",
    "steps",
    "parameters",
    "epsilon",
    "released",
    "loss_correlation",
    "active",
)
PLOTS = ("bars", "lines", "classes", "individual", "active")
METHODS = (
    "none",
    "uniform",
    "sample",
    "scale",
    "curve-fit",
    "curve-fit-as-published",
    "exclude",
    "groups",
    "sampling",
    "adapdp",
    "pdp-sgd",
)
IN_ROUNDS = ("sampling", "adapdp", "pdp-sgd")
"""Methods whose published bookkeeping is another: see `--as-published`."""
_TOP = {"title", "paper", "table", "about", "show", "plot", "seeds", "rows", "columns", "paper_figures"}
_MERGED = ("training", "options", "budgets")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidInput(f"{name} is {value!r}; it must be a whole number, at least {least}")


def _table(name: str, value: Any, known: set[str], *, needed: bool = False) -> None:
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{name} is {value!r}; it must be a table")
    if unknown := value.keys() - known:
        raise InvalidInput(f"{name} has no {min(unknown)!r}; it has {', '.join(sorted(known))}")
    if needed and (missing := known - value.keys()):
        raise InvalidInput(f"{name} needs {min(missing)}")


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a cell is trained."""

    learning_rate: float
    clip_norm: float
    batch_size: int | str
    """Or "all": full-batch gradient descent."""
    steps: int | None = None
    epochs: float | None = None
    momentum: float = 0.0
    extra_steps: int = 0
    stop: Mapping[str, Any] | None = None
    """Private accuracy queries that end the extra steps: every, queries, share (of everyone's purse)."""
    individual: Mapping[str, Any] | None = None
    """looks_per_epoch, clip, headroom."""

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise InvalidInput("[training] needs one of steps and epochs")
        if self.batch_size != "all":
            _whole("[training] batch_size", self.batch_size, 1)
        if self.steps is not None:
            _whole("[training] steps", self.steps, 1)
        _whole("[training] extra_steps", self.extra_steps, 0)
        for name in ("learning_rate", "clip_norm", "epochs"):
            value = getattr(self, name)
            if not (_is_number(value) and value > 0) and not (name == "epochs" and value is None):
                raise InvalidInput(f"[training] {name} is {value!r}; it must be positive")
        if not (_is_number(self.momentum) and 0 <= self.momentum < 1):
            raise InvalidInput(f"[training] momentum is {self.momentum!r}; it must lie in [0, 1)")
        _table("[training] stop", self.stop, {"every", "queries", "share"}, needed=True)
        _table("[training] individual", self.individual, {"looks_per_epoch", "clip", "headroom"})

    def batch(self, records: int) -> int:
        return records if self.batch_size == "all" else min(int(self.batch_size), records)

    def steps_for(self, records: int) -> int:
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, round(self.epochs * records / self.batch(records)))

    def epochs_for(self, records: int) -> float:
        return self.epochs if self.epochs is not None else self.steps_for(records) * self.batch(records) / records


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One cell."""

    data: str
    model: str
    method: str
    delta: float
    training: Training
    budgets: Mapping[str, Any]
    options: Mapping[str, Any]
    accountant: str = "pld"
    records: int | None = None
    pixels: Sequence[float] = (0.0, 1.0)
    """Shift and scale of pixels in [0, 1]: public constants."""
    as_published: bool = False
    quick: bool = False

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InvalidInput(f"method is {self.method!r}; choose one of {', '.join(METHODS)}")
        for name in ("budgets", "options"):
            if not isinstance(getattr(self, name), Mapping):
                raise InvalidInput(f"{name} is {getattr(self, name)!r}; it must be a table")
        if self.method != "none" and "kind" not in self.budgets:
            raise InvalidInput("budgets needs a kind")
        if not (_is_number(self.delta) and 0 < self.delta < 1):
            raise InvalidInput(f"delta is {self.delta!r}; it must lie in (0, 1)")
        if self.records is not None:
            _whole("records", self.records, 1)
        pixels = self.pixels
        if not (
            isinstance(pixels, list | tuple) and len(pixels) == 2 and all(map(_is_number, pixels)) and pixels[1] > 0
        ):
            raise InvalidInput(f"pixels are {pixels!r}; give two numbers, a mean and a positive deviation")

    @property
    def digest(self) -> str:
        """A fingerprint: a finished cell is kept as long as its settings stay what they were."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def kind(self) -> str:
        """The same for settings that run the same code, with other numbers."""
        return json.dumps(_numberless(asdict(self.quickened())), sort_keys=True)

    def quickened(self) -> Settings:
        """A few steps on a few hundred records: does everything once, and says nothing about accuracy."""
        training = replace(
            self.training,
            steps=3,
            epochs=None,
            batch_size=self.training.batch_size if self.training.batch_size == "all" else 16,
            extra_steps=min(self.training.extra_steps, 6),
            stop=None if self.training.stop is None else {**self.training.stop, "every": 3, "queries": 2},
        )
        records = min(self.records or 48, 48)
        return replace(self, training=training, records=records, accountant="rdp", quick=True)


def _numberless(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _numberless(each) for key, each in value.items()}
    return None if _is_number(value) or isinstance(value, list | tuple) else value


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One table or figure of a paper, and how it is repeated."""

    name: str
    title: str
    paper: str
    table: str
    about: str
    show: tuple[str, ...]
    plot: str
    seeds: int
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[str, str], Settings]
    x: Mapping[str, float]
    """Of each row, where rows are the horizontal axis of a plot."""
    figures: Mapping[str, Any]
    """The paper's: measure → row → column."""

    def figure(self, measure: str, row: str, column: str) -> Any:
        """The paper's figure for a cell; None where it prints none."""
        return self.figures.get(measure, {}).get(row, {}).get(column)

    @property
    def quick(self) -> bool:
        """Whether this only tries that everything runs."""
        return any(cell.quick for cell in self.cells.values())

    def quickened(self) -> Experiment:
        """All columns of the first row (of the last too where there are few), once, each for a moment.

        A column that differs from an earlier one by numbers alone would run the same code again and is left out.
        """
        rows = tuple(dict.fromkeys((self.rows[0], self.rows[-1]))) if len(self.columns) < 3 else self.rows[:1]
        kinds: dict[tuple[str, ...], str] = {}
        for column in self.columns:
            kinds.setdefault(tuple(self.cells[row, column].kind for row in rows), column)
        columns = tuple(kinds.values())
        cells = {(row, column): self.cells[row, column].quickened() for row in rows for column in columns}
        return replace(self, rows=rows, columns=columns, cells=cells, seeds=1)

    def as_published(self) -> Experiment:
        """The columns with rounds, charged as published; those of other methods are left out."""
        columns = tuple(
            column for column in self.columns if any(self.cells[row, column].method in IN_ROUNDS for row in self.rows)
        )
        if not columns:
            raise InvalidInput(f"no column of {self.name} has a bookkeeping of its own: {', '.join(IN_ROUNDS)} have")
        names = {column: f"{column}, as published" for column in columns}
        return replace(
            self,
            columns=tuple(names.values()),
            cells={
                (row, names[column]): replace(self.cells[row, column], as_published=True)
                for row in self.rows
                for column in columns
            },
            figures={
                measure: {row: {names.get(c, c): value for c, value in cells.items()} for row, cells in rows.items()}
                for measure, rows in self.figures.items()
            },
        )

    def only(self, rows: Sequence[str] | None, columns: Sequence[str] | None) -> Experiment:
        """Of these rows and columns alone."""
        for what, wanted, known in (("row", rows, self.rows), ("column", columns, self.columns)):
            for name in wanted or ():
                if name not in known:
                    raise InvalidInput(f"{self.name} has no {what} {name!r}; it has {', '.join(map(repr, known))}")
        return replace(
            self,
            rows=tuple(row for row in self.rows if not rows or row in rows),
            columns=tuple(column for column in self.columns if not columns or column in columns),
        )


TABLES = Path(__file__).parent / "tables"


def available() -> list[Path]:
    return [path for path in sorted(TABLES.glob("*.toml")) if "[choice]" not in path.read_text(encoding="utf-8")]


def find(name: str) -> Experiment:
    """An experiment by its name, or by the path of a file."""
    if name.endswith(".toml"):
        return read(Path(name))
    for path in available():
        if path.stem == name:
            return read(path)
    known = ", ".join(path.stem for path in available())
    raise InvalidInput(f"there is no experiment {name!r}; there are {known}")


def read(path: Path) -> Experiment:
    """The experiment in a file, checked whole before anything runs."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not TOML: {error}") from None
    try:
        return _experiment(path.stem, content)
    except InvalidInput as error:
        raise InvalidInput(f"{path.name}: {error}") from None


def _experiment(name: str, content: dict[str, Any]) -> Experiment:
    for key in ("title", "paper", "table", "rows", "columns"):
        if key not in content:
            raise InvalidInput(f"{key} is missing")
    rows, columns = content["rows"], content["columns"]
    for what, entries in (("rows", rows), ("columns", columns)):
        names = [entry.get("name") for entry in entries]
        if not all(isinstance(each, str) for each in names) or len(set(names)) != len(names):
            raise InvalidInput(f"[[{what}]] need a name each, all different")
        if wrong := [entry["x"] for entry in entries if not _is_number(entry.get("x", 0.0))]:
            raise InvalidInput(f"x is {wrong[0]!r}; it must be a number")
    for key in ("title", "paper", "table", "about"):
        if not isinstance(content.get(key, ""), str):
            raise InvalidInput(f"{key} is {content[key]!r}; it must be text")
    _whole("seeds", content.get("seeds", 3), 1)
    if not isinstance(content.get("show", []), list):
        raise InvalidInput(f'show is {content["show"]!r}; it must be a list, such as ["accuracy"]')
    show, plot = tuple(content.get("show", ["accuracy"])), content.get("plot", "bars")
    if unknown := [measure for measure in show if measure not in MEASURES]:
        raise InvalidInput(f"show has {unknown[0]!r}; choose among {', '.join(MEASURES)}")
    if plot not in PLOTS:
        raise InvalidInput(f"plot is {plot!r}; choose one of {', '.join(PLOTS)}")
    shared = {key: value for key, value in content.items() if key not in _TOP}
    figures = content.get("paper_figures", {})
    _check_figures(figures, [row["name"] for row in rows], [column["name"] for column in columns])
    return Experiment(
        name=name,
        title=content["title"],
        paper=content["paper"],
        table=content["table"],
        about=" ".join(content.get("about", "").split()),
        show=show,
        plot=plot,
        seeds=content.get("seeds", 3),
        rows=tuple(row["name"] for row in rows),
        columns=tuple(column["name"] for column in columns),
        cells={(r["name"], c["name"]): _settings(_merged(shared, r, c)) for r in rows for c in columns},
        x={row["name"]: float(row["x"]) for row in rows if "x" in row},
        figures=figures,
    )


def _check_figures(figures: Any, rows: Sequence[str], columns: Sequence[str]) -> None:
    """A figure that belongs to no cell would never be shown."""
    levels = (("measure", MEASURES), ("row", rows), ("column", columns))

    def walk(value: Any, depth: int) -> None:
        if depth == len(levels):
            if not all(map(_is_number, value if isinstance(value, list) else [value])):
                raise InvalidInput(f"paper_figures has {value!r}; a figure is a number or a list of numbers")
            return
        what, known = levels[depth]
        if not isinstance(value, Mapping):
            raise InvalidInput(f"paper_figures has {value!r} where each {what} should be named")
        for name, inside in value.items():
            if name not in known:
                raise InvalidInput(f"paper_figures names the {what} {name!r}, which is not there")
            walk(inside, depth + 1)

    walk(figures, 0)


def _merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Later layers win; the tables in `_MERGED` key by key, but another kind of budgets replaces them whole."""
    out: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if key in ("name", "x"):
                continue
            before = out.get(key)
            if (
                key in _MERGED
                and isinstance(before, dict)
                and before.get("kind") == value.get("kind", before.get("kind"))
            ):
                if key == "training" and ({"steps", "epochs"} & value.keys()):
                    before = {k: v for k, v in before.items() if k not in ("steps", "epochs")}
                out[key] = {**before, **value}
            else:
                out[key] = value
    return out


def _settings(merged: dict[str, Any]) -> Settings:
    fields = {"budgets": {}, "options": {}, **merged}
    try:
        return Settings(**{**fields, "training": Training(**fields.get("training", {}))})
    except TypeError as error:
        raise InvalidInput(f"a cell cannot be made: {_plainly(error)}") from None


def _plainly(error: TypeError) -> str:
    """What Python says of arguments, in the words of the file."""
    where = "[training]" if "Training" in str(error) else "a cell"
    named = re.findall(r"'(\w+)'", str(error))
    if "unexpected" in str(error):
        return f"{where} has no {named[0]}"
    return f"{where} needs {', '.join(named)}" if named else str(error)
