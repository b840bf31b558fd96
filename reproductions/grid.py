"""Tables with rows and columns: which table of which paper, its figures, and how each cell is trained."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from privypurse._validate import integer, is_real, one_of, real
from privypurse.errors import InvalidInput
from reproductions import data
from reproductions.networks import NARROWER
from reproductions.plans import AS_PUBLISHED, PLANNERS
from reproductions.results import Job, Line, by_key
from reproductions.toml_sections import check_keys, made

QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
MEASURES = {
    "accuracy": "Test accuracy, %",
    "overall": "Test accuracy, %",
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
PLOTS = ("bars", "lines", "classes", "individual", "active", "rounds")
_LATER = {"augmented": False, "views": 1, "average": None, "course": 0, "loss": "cross-entropy"}
LOSSES = ("cross-entropy", "hinge")
FEDERATED = ("personalised", "minimum", "dropout", "none")
"""Liu et al. (2024), §7.2: each at their own ε; all at the smallest; all at the mean, without those who grant less;
no privacy. Minimum and dropout need everybody's ε in one place: they exist in simulations only."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a cell is trained."""

    learning_rate: float
    clip_norm: float
    batch_size: int | str
    """Or "all": full-batch gradient descent."""
    steps: int | None = None
    """In federated training: of a client in each round."""
    epochs: float | None = None
    momentum: float = 0.0
    extra_steps: int = 0
    stop: Mapping[str, Any] | None = None
    """Private accuracy queries that end the extra steps: every, queries, share (of everyone's purse)."""
    individual: Mapping[str, Any] | None = None
    """norm_passes_per_epoch, clip, headroom."""
    augmented: bool = False
    """Whether images are shifted and mirrored anew each time (`networks.ShiftedAndMirrored`)."""
    views: int = 1
    """How often each record goes through the model in a step; the mean of its gradients is clipped."""
    average: float | None = None
    """The decay of the moving average of weights that is judged in the end; None: the last weights."""
    course: int = 0
    """How often the model is judged on the way, at equal distances, the end included."""
    loss: str = LOSSES[0]
    """Or "hinge", that of several classes: torch's `multi_margin_loss`."""

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise InvalidInput("[training] needs one of steps and epochs")
        if self.batch_size != "all":
            integer(self.batch_size, "[training] batch_size")
        if self.steps is not None:
            integer(self.steps, "[training] steps")
        integer(self.extra_steps, "[training] extra_steps", least=0)
        if self.epochs is not None:
            real(self.epochs, "[training] epochs", above=0)
        real(self.learning_rate, "[training] learning_rate", above=0)
        real(self.clip_norm, "[training] clip_norm", above=0)
        real(self.momentum, "[training] momentum", least=0, below=1)
        integer(self.views, "[training] views")
        integer(self.course, "[training] course", least=0)
        one_of(self.loss, "[training] loss", LOSSES)
        if self.average is not None:
            real(self.average, "[training] average", least=0, below=1)
        if not isinstance(self.augmented, bool):
            raise InvalidInput(f"[training] augmented is {self.augmented!r}; it must be true or false")
        if self.stop is not None:
            check_keys("[training] stop", self.stop, needed := {"every", "queries", "share"}, needed)
        if self.individual is not None:
            check_keys("[training] individual", self.individual, {"norm_passes_per_epoch", "clip", "headroom"})

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
class Federation:
    """How clients train together."""

    rounds: int
    client_rate: float = 1.0
    reference: float = 1.0
    """The noise is such that a record with this ε would be drawn like everybody in ordinary training."""
    adversary: str = "server"
    split: str = "silos"
    """"silos": as the data set lies; "evenly": ten clients; "shards": ten with few classes each."""
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    """Of methods that do better with another one."""

    def __post_init__(self) -> None:
        integer(self.rounds, "[federation] rounds")
        real(self.reference, "[federation] reference", above=0)
        one_of(self.split, "[federation] split", ("silos", "evenly", "shards"))
        check_keys("[federation] learning_rates", self.learning_rates, set(FEDERATED))


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What one cell is trained on, for whom, by which method."""

    data: str
    model: str
    method: str
    delta: float
    training: Training
    budgets: Mapping[str, Any]
    options: Mapping[str, Any]
    federation: Federation | None = None
    accountant: str = "pld"
    records: int | None = None
    pixels: Sequence[float] = (0.0, 1.0)
    """Shift and scale of pixels in [0, 1]: public constants."""
    as_published: bool = False
    quick: bool = False

    def __post_init__(self) -> None:
        one_of(self.method, "method", PLANNERS if self.federation is None else FEDERATED)
        for name in ("budgets", "options"):
            if not isinstance(getattr(self, name), Mapping):
                raise InvalidInput(f"{name} is {getattr(self, name)!r}; it must be a table")
        if self.federation is not None and self.training.loss != LOSSES[0]:
            raise InvalidInput(f"clients train by {LOSSES[0]}; [training] loss is {self.training.loss!r}")
        if self.method != "none" and "kind" not in self.budgets:
            raise InvalidInput("budgets needs a kind")
        real(self.delta, "delta", above=0, below=1)
        if self.records is not None:
            integer(self.records, "records")
        pair = isinstance(self.pixels, list | tuple) and len(self.pixels) == 2 and all(map(is_real, self.pixels))
        if not pair or self.pixels[1] <= 0:
            raise InvalidInput(f"pixels are {self.pixels!r}; give two numbers, a mean and a positive deviation")

    def plain(self) -> dict[str, Any]:
        """Without what came later, where it is not used: trainings from before keep their names."""
        found = asdict(self)
        found["training"] = {
            name: value for name, value in found["training"].items() if _LATER.get(name, ...) != value
        }
        return found

    @property
    def kind(self) -> str:
        """The same for cells that run the same code, with other numbers."""
        return json.dumps(_numberless(self.quickened().plain()), sort_keys=True)

    def quickened(self) -> Cell:
        """A few steps on a few dozen records: does everything once, and says nothing about accuracy."""
        training = replace(
            self.training,
            steps=3,
            epochs=None,
            batch_size=self.training.batch_size if self.training.batch_size == "all" else 16,
            extra_steps=min(self.training.extra_steps, 6),
            views=min(self.training.views, 2),
            course=min(self.training.course, 3),
            stop=None if self.training.stop is None else {**self.training.stop, "every": 3, "queries": 2},
        )
        federation = None if self.federation is None else replace(self.federation, rounds=2)
        few = min(self.records or 48, 48)
        made = replace(self, training=training, federation=federation, model=NARROWER.get(self.model, self.model))
        return replace(made, records=few, accountant="rdp", quick=True)


def _numberless(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _numberless(each) for key, each in value.items()}
    return None if is_real(value) or isinstance(value, list | tuple) else value


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
    show, plot = content.get("show", ["accuracy"]), content.get("plot", "bars")
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
