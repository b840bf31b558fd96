"""Tables with rows and columns: which table of which paper, its figures, and how each cell is trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from privypurse._validate import integer, is_real, one_of, real
from privypurse.errors import InvalidInput
from reproductions import data
from reproductions.cell import Cell, Federation, Training
from reproductions.plans import AS_PUBLISHED
from reproductions.results import Job, Line, by_key
from reproductions.toml_sections import made

QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
MEASURES = {
    "accuracy": "Test accuracy, %",
    "overall": "Test accuracy, %",
    "training_accuracy": "Training accuracy, %",
    "public_accuracy": "Test accuracy of what public records alone teach, %",
    "classes": "Test accuracy by class, %",
    "course": "Test accuracy on the way, %, at parts of all steps",
    "course_classes": "Test accuracy by class on the way, %, at parts of all steps",
    "gap": "Largest less smallest of the classes' mean accuracies, points",
    "seconds": "Training, seconds",
    "planning_seconds": "Making the plan, seconds",
    "steps": "Steps",
    "parameters": "Parameters (with those of all models that are averaged)",
    "epsilon": "ε of the records: mean, then quantiles " + ", ".join(map(str, QUANTILES)),
    "released": "The same, privately released at (0.1, δ)",
    "loss_correlation": "Pearson's r of ε and log training loss",
    "class_epsilon": "Mean ε by class",
    "at_largest": "Records within 1 % of the largest ε, %",
    "active": "Records that still contribute: at the first step, after the fixed steps, at the end",
}
PLOTS = ("points", "lines", "classes", "individual", "active", "rounds")


@dataclass(frozen=True, kw_only=True)
class Grid:
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
    cells: Mapping[tuple[str, str], Cell]
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

    def jobs(self) -> list[Job]:
        """Every cell and seed; seed by seed, so that a run that is broken off has whole tables."""
        return [
            Job({"row": row, "column": column}, self.cells[row, column], seed)
            for seed in range(self.seeds)
            for row in self.rows
            for column in self.columns
        ]

    def left(self, lines: Iterable[Line]) -> list[Job]:
        """What has not been trained with these settings, or on data that was made up and is there by now."""
        done = by_key(lines)

        def finished(job: Job) -> bool:
            made_up = done.get(job.key, {}).get("made_up")
            return made_up is not None and not (
                made_up and data.is_there(job.settings.data, job.seed, job.settings.quick)
            )

        return [job for job in self.jobs() if not finished(job)]

    def found(self, lines: Iterable[Line]) -> dict[tuple[str, str], list[Line]]:
        """What has been finished of every cell."""
        done, found = by_key(lines), dict[tuple[str, str], list[Line]]()
        for job in self.jobs():
            if "made_up" in (line := done.get(job.key, {})):
                found.setdefault((job.place["row"], job.place["column"]), []).append(line)
        return found

    def quickened(self) -> Grid:
        """All columns of the first row (of the last too where there are few), once, each for a moment.

        A column that differs from an earlier one by numbers alone would run the same code again and is left out.
        """
        rows = tuple(dict.fromkeys((self.rows[0], self.rows[-1]))) if len(self.columns) < 3 else self.rows[:1]
        kinds: dict[tuple[str, ...], str] = {}
        for column in self.columns:
            kinds.setdefault(tuple(self.cells[row, column].kind for row in rows), column)
        columns = tuple(kinds.values())
        cells = {(row, column): self.cells[row, column].quickened() for row in rows for column in columns}
        return replace(self, name=f"{self.name}-quick", rows=rows, columns=columns, cells=cells, seeds=1)

    def as_published(self) -> Grid:
        """The columns with rounds, charged as published; those of other methods are left out."""
        names = {
            column: f"{column}, as published"
            for column in self.columns
            if any(self.cells[row, column].method in AS_PUBLISHED for row in self.rows)
        }
        if not names:
            known = ", ".join(AS_PUBLISHED)
            raise InvalidInput(f"no column of {self.name} has a bookkeeping of its own: {known} have")
        cells = {(r, names[c]): replace(cell, as_published=True) for (r, c), cell in self.cells.items() if c in names}
        figures = {
            measure: {row: {names.get(c, c): value for c, value in cells.items()} for row, cells in rows.items()}
            for measure, rows in self.figures.items()
        }
        name, columns = f"{self.name}-as-published", tuple(names.values())
        return replace(self, name=name, columns=columns, cells=cells, figures=figures)

    def only(self, rows: Sequence[str] | None, columns: Sequence[str] | None) -> Grid:
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


_TOP = {"title", "paper", "table", "about", "show", "plot", "seeds", "rows", "columns", "paper_figures"}


def grid_of(content: Mapping[str, Any], name: str) -> Grid:
    """A table from its file's content, checked whole before anything runs."""
    for key in ("title", "paper", "table", "rows", "columns"):
        if key not in content:
            raise InvalidInput(f"{key} is missing")
    for key in ("title", "paper", "table", "about"):
        if not isinstance(content.get(key, ""), str):
            raise InvalidInput(f"{key} is {content[key]!r}; it must be text")
    rows, columns = content["rows"], content["columns"]
    for what, entries in (("rows", rows), ("columns", columns)):
        names = [entry.get("name") for entry in entries]
        if not all(isinstance(each, str) for each in names) or len(set(names)) != len(names):
            raise InvalidInput(f"[[{what}]] need a name each, all different")
    show, plot = content.get("show", ["accuracy"]), content.get("plot", "points")
    if not isinstance(show, list):
        raise InvalidInput(f'show is {show!r}; it must be a list, such as ["accuracy"]')
    if unknown := [measure for measure in show if measure not in MEASURES]:
        raise InvalidInput(f"show has {unknown[0]!r}; choose among {', '.join(MEASURES)}")
    one_of(plot, "plot", PLOTS)
    figures = content.get("paper_figures", {})
    _check_figures(figures, [row["name"] for row in rows], [column["name"] for column in columns])
    shared = {key: value for key, value in content.items() if key not in _TOP}
    return Grid(
        name=name,
        title=content["title"],
        paper=content["paper"],
        table=content["table"],
        about=" ".join(content.get("about", "").split()),
        show=tuple(show),
        plot=plot,
        seeds=integer(content.get("seeds", 3), "seeds"),
        rows=tuple(row["name"] for row in rows),
        columns=tuple(column["name"] for column in columns),
        cells={(r["name"], c["name"]): _cell(_merged(shared, r, c)) for r in rows for c in columns},
        x={row["name"]: real(row["x"], "x") for row in rows if "x" in row},
        figures=figures,
    )


def _check_figures(figures: Any, rows: Sequence[str], columns: Sequence[str]) -> None:
    """A figure that belongs to no cell would never be shown."""
    names = (("measure", MEASURES), ("row", rows), ("column", columns))

    def walk(value: Any, depth: int) -> None:
        if depth == len(names):
            if not all(map(is_real, value if isinstance(value, list) else [value])):
                raise InvalidInput(f"paper_figures has {value!r}; a figure is a number or a list of numbers")
            return
        what, known = names[depth]
        if not isinstance(value, Mapping):
            raise InvalidInput(f"paper_figures has {value!r} where each {what} should be named")
        for name, inside in value.items():
            if name not in known:
                raise InvalidInput(f"paper_figures names the {what} {name!r}, which is not there")
            walk(inside, depth + 1)

    walk(figures, 0)


def _merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Later layers win; some tables key by key, but another kind of budgets replaces them whole."""
    out: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            before = out.get(key) if key in ("training", "options", "budgets", "federation") else None
            if isinstance(before, dict) and before.get("kind") == value.get("kind", before.get("kind")):
                if key == "training" and {"steps", "epochs"} & value.keys():
                    before = {k: v for k, v in before.items() if k not in ("steps", "epochs")}
                out[key] = {**before, **value}
            elif key not in ("name", "x"):
                out[key] = value
    return out


def _cell(merged: dict[str, Any]) -> Cell:
    training = made(Training, "[training]", merged.get("training", {}))
    federation = merged.get("federation")
    if federation is not None:
        federation = made(Federation, "[federation]", federation)
    fields = {"budgets": {}, "options": {}, **merged, "training": training, "federation": federation}
    return made(Cell, "a cell", fields)
