"""What a run is told: a TOML file, read into plain frozen data and checked before anything else happens."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from privypurse.assignment import METHODS
from privypurse.budgets.budgets import DEFAULT_DELTA
from privypurse.datasets.encoding import Categories, Encoding, Range
from privypurse.errors import InvalidInput
from privypurse.plans import stopping
from privypurse.plans.stopping import Stop
from privypurse.runs.sections import Section, unknown

BUILT_IN = ("adult", "mnist", "fashion-mnist", "cifar10", "svhn")
ACTIVATIONS = ("relu", "tanh")
_SECTIONS = ("data", "budgets", "plan", "model", "optimizer", "training", "individual")
_WHY_PUBLIC = (
    "Privy Purse never takes ranges, categories or classes from the rows: that would tell something about the people "
    "in them that no budget pays for"
)


@dataclass(frozen=True)
class BuiltIn:
    """A data set that `privypurse.datasets` reads, by name."""

    name: str


@dataclass(frozen=True)
class Table:
    """A file of records: which columns go in, by which public constants, and which one is to be learned."""

    path: Path
    label: str
    classes: Categories
    features: Mapping[str, Encoding]
    test: Path | None = None
    person: str | None = None
    """The column of ids: who owns each row."""


@dataclass(frozen=True)
class FromColumns:
    """Everyone's own ε, from the table: the arguments of `Budgets.read`."""

    epsilon: str | None = None
    level: str | None = None
    levels: Mapping[str, float] | None = None
    person: str | None = None
    delta: float | str = DEFAULT_DELTA


@dataclass(frozen=True)
class Simulated:
    """Budgets that nobody granted, for experiments: shares of the records at each ε, drawn by a seed."""

    epsilon: tuple[float, ...]
    shares: tuple[float, ...]
    seed: int = 0
    delta: float = DEFAULT_DELTA


@dataclass(frozen=True)
class NewPlan:
    """A plan to be made: the arguments of `plan`."""

    steps: int
    batch_size: int
    method: str = "sample"
    clip_norm: float = 1.0
    noise_multiplier: float | None = None
    accountant: str = "pld"
    threshold: float | None = None
    extra_steps: int = 0
    stop: Stop | None = None


@dataclass(frozen=True)
class Followed:
    """Whether and how each person's own spending is followed: the arguments of `Individual`."""

    every: int | None = None
    levels: int = 100
    clip: bool = True
    headroom: float = 1.5


@dataclass(frozen=True)
class Model:
    """A network: "mlp", "cnn", or "module:callable", which is imported and called with ``options``."""

    kind: str
    hidden: tuple[int, ...] = (64,)
    activation: str = "relu"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Optimizer:
    """A class of torch.optim and its arguments."""

    name: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Training:
    """How and where it runs, and where its results go."""

    out: Path = Path("privypurse-run")
    max_physical_batch: int | None = None
    max_records_per_person: int | None = None
    checkpoint: Path | None = None
    checkpoint_every: int | None = None
    device: str = "auto"
    seed: int | None = None


@dataclass(frozen=True)
class RunConfig:
    """A whole run. ``plan`` is what to make, or the file of one that was made before."""

    data: BuiltIn | Table
    budgets: FromColumns | Simulated | None
    plan: NewPlan | Path
    model: Model
    optimizer: Optimizer
    training: Training
    individual: Followed | None = None
    default_delta: bool = False
    """Whether nobody chose a δ."""


def read_config(path: str | Path) -> RunConfig:
    """The run that a TOML file describes; anything it cannot mean is an `InvalidInput` that says how to mend it."""
    path = Path(path)
    if not path.is_file():
        raise InvalidInput(f"{path} is no file; `privypurse train --example > {path.name}` writes one to start from")
    try:
        return parse_config(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not UTF-8 text; save it as such") from None
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


def parse_config(text: str) -> RunConfig:
    """The same from the text of such a file."""
    try:
        whole = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"this is no TOML: {error}") from None
    for name in whole:
        if name not in _SECTIONS:
            raise unknown("there is no section", name, _SECTIONS)
    for name in ("data", "plan", "model", "optimizer"):
        if name not in whole:
            raise InvalidInput(f"section [{name}] is missing; `privypurse train --example` shows one")
    data = _data(Section("[data]", whole["data"]))
    plan = _plan(whole["plan"])
    budgets = _budgets(whole.get("budgets"), data, plan)
    if isinstance(data, Table):
        granted = budgets if isinstance(budgets, FromColumns) else FromColumns()
        data = replace(data, person=granted.person or data.person)
        for column in (granted.epsilon, granted.level, data.person):
            if column in data.features:
                raise InvalidInput(
                    f"[data.features] holds {column!r}, which says who granted what: no model may see it"
                )
    return RunConfig(
        data=data,
        budgets=budgets,
        plan=plan,
        model=_model(Section("[model]", whole["model"]), data),
        optimizer=_optimizer(Section("[optimizer]", whole["optimizer"])),
        training=_training(Section("[training]", whole.get("training", {}))),
        individual=_individual(Section("[individual]", whole["individual"])) if "individual" in whole else None,
        default_delta="budgets" in whole and "delta" not in whole["budgets"],
    )


def example() -> str:
    """A configuration that runs as it stands, and says what else there is."""
    return resources.files("privypurse.runs").joinpath("example.toml").read_text(encoding="utf-8")


def _data(section: Section) -> BuiltIn | Table:
    name, table = section.text("name"), section.text("table")
    if (name is None) == (table is None):
        raise InvalidInput(
            f"[data] needs either name, one of {', '.join(BUILT_IN)}, or table, a .csv or .parquet file such as "
            '"people.csv"'
        )
    if name is not None:
        section.finish()
        if name not in BUILT_IN:
            raise unknown("[data] name: there is no data set", name, BUILT_IN)
        return BuiltIn(name)
    assert table is not None
    label, classes, test = section.text("label"), section.texts("classes"), section.text("test")
    person = section.text("person")
    features = section.take("features")
    section.finish()
    if label is None:
        raise section.need("label", "the column that is to be learned")
    if classes is None:
        raise section.need("classes", f'the values of {label!r}, as in ["no", "yes"]. {_WHY_PUBLIC}')
    if len(classes) < 2:
        raise section.wrong("classes", list(classes), "at least two values")
    if test is not None and Path(test).resolve() == Path(table).resolve():
        raise section.wrong("test", test, "another file than table: accuracy on people in training is sensitive")
    encodings = _features(features)
    if label in encodings:
        raise InvalidInput(f"[data.features] holds {label!r}, which is what is to be learned; take it out")
    return Table(Path(table), label, Categories(classes), encodings, None if test is None else Path(test), person)


def _features(value: Any) -> dict[str, Encoding]:
    if not isinstance(value, dict) or not value:
        raise InvalidInput(
            "[data.features] must name the columns that go in, each with its range, as in "
            f'age = {{ low = 0, high = 100 }}, or its categories, as in sex = ["female", "male"]. {_WHY_PUBLIC}'
        )
    return {column: _encoding(column, how) for column, how in value.items()}


def _encoding(column: str, how: Any) -> Encoding:
    try:
        if isinstance(how, list):
            values = Section("[data.features]", {column: how}).texts(column)
            assert values is not None
            return Categories(values)
        if isinstance(how, dict):
            section = Section(f"[data.features] {column}", how)
            low, high, log = section.number("low"), section.number("high"), section.flag("log")
            section.finish()
            if low is not None and high is not None:
                return Range(low, high, bool(log))
    except InvalidInput as error:
        raise InvalidInput(f"[data.features] {column}: {error}") from None
    raise InvalidInput(
        f"[data.features] {column} is {how!r}; give its range, as in {{ low = 0, high = 100 }}, or its categories, "
        f'as in ["a", "b"]. {_WHY_PUBLIC}'
    )


def _budgets(value: Any, data: BuiltIn | Table, plan: NewPlan | Path) -> FromColumns | Simulated | None:
    if value is None:
        if isinstance(plan, Path):
            return None
        raise InvalidInput("section [budgets] is missing; `privypurse train --example` shows one")
    section = Section("[budgets]", value)
    delta = section.take("delta")
    delta = DEFAULT_DELTA if delta is None else delta
    if isinstance(delta, bool) or not isinstance(delta, float | int | str):
        raise section.wrong("delta", delta, "a number, or the name of a column")
    simulate = section.section("simulate")
    epsilon, level, person = section.text("epsilon"), section.text("level"), section.text("person")
    levels = section.section("levels")
    section.finish()
    if simulate is not None:
        if any(given is not None for given in (epsilon, level, levels, person)):
            raise InvalidInput("[budgets] has simulate beside columns of the table; keep the one or the other")
        return _simulated(simulate, delta)
    if isinstance(data, BuiltIn):
        raise InvalidInput(
            f"[budgets] of the data set {data.name!r} must be simulated: nobody in it was asked. Write "
            "simulate = { epsilon = [1.0, 2.0, 3.0], shares = [0.34, 0.43, 0.23] }"
        )
    if None not in (person, data.person) and person != data.person:
        raise InvalidInput(
            f"[budgets] person is {person!r} but [data] person is {data.person!r}; name one column of ids"
        )
    person = person or data.person
    return FromColumns(epsilon, level, None if levels is None else _levels(levels), person, delta)


def _levels(section: Section) -> dict[str, float]:
    found = {key: section.number(key) for key in section.left()}
    return {key: value for key, value in found.items() if value is not None}


def _simulated(section: Section, delta: float | str) -> Simulated:
    epsilon, shares, seed = section.numbers("epsilon"), section.numbers("shares"), section.whole("seed")
    section.finish()
    if epsilon is None or shares is None:
        raise InvalidInput(
            "[budgets] simulate needs epsilon and shares, as in { epsilon = [1.0, 2.0], shares = [0.6, 0.4] }"
        )
    if isinstance(delta, str):
        raise InvalidInput(f"[budgets] delta is {delta!r}; simulated budgets need a number, such as 1e-5")
    if seed is not None and seed < 0:
        raise section.wrong("seed", seed, "0 or more")
    return Simulated(epsilon, shares, seed or 0, float(delta))


def _plan(value: Any) -> NewPlan | Path:
    if isinstance(value, str):
        return Path(value)
    section = Section("[plan]", value)
    steps, batch_size = section.whole("steps"), section.whole("batch_size")
    method, accountant = section.text("method") or "sample", section.text("accountant") or "pld"
    clip_norm, noise_multiplier = section.number("clip_norm"), section.number("noise_multiplier")
    threshold, extra_steps = section.number("threshold"), section.whole("extra_steps")
    stop = section.section("stop")
    section.finish()
    if steps is None:
        raise section.need("steps", "the number of training steps")
    if batch_size is None:
        raise section.need("batch_size", "the people in a batch: the public divisor of each step")
    if method not in METHODS:
        raise unknown("[plan] method: there is no", method, METHODS)
    if threshold is not None and method != "exclude":
        raise InvalidInput(f'[plan] threshold is for method = "exclude", not {method!r}')
    return NewPlan(
        steps=steps,
        batch_size=batch_size,
        method=method,
        clip_norm=1.0 if clip_norm is None else clip_norm,
        noise_multiplier=noise_multiplier,
        accountant=accountant,
        threshold=threshold,
        extra_steps=extra_steps or 0,
        stop=None if stop is None else _stop(stop),
    )


def _stop(section: Section) -> Stop:
    kind = section.text("kind")
    fields = section.rest()
    if kind not in stopping.KINDS:
        raise unknown("[plan] stop: there is no kind", str(kind), stopping.KINDS)
    try:
        return stopping.from_json({"kind": kind, **fields})
    except (TypeError, InvalidInput) as error:
        needed = {"plateau": "noise (and every, most, patience)", "few": "below and epsilon (and every)"}[kind]
        raise InvalidInput(f"[plan] stop of kind {kind!r} needs {needed}: {error}") from None


def _individual(section: Section) -> Followed:
    every, levels, clip = section.whole("every"), section.whole("levels"), section.flag("clip")
    headroom = section.number("headroom")
    section.finish()
    return Followed(
        every,
        Followed.levels if levels is None else levels,
        Followed.clip if clip is None else clip,
        Followed.headroom if headroom is None else headroom,
    )


def _model(section: Section, data: BuiltIn | Table) -> Model:
    kind = section.text("kind")
    if kind is None:
        raise section.need("kind", '"mlp", "cnn", or "module:callable"')
    if kind == "mlp":
        hidden, activation = section.wholes("hidden"), section.text("activation") or "relu"
        section.finish()
        if hidden is not None and any(width < 1 for width in hidden):
            raise section.wrong("hidden", list(hidden), "the widths of the hidden layers, each at least 1")
        if activation not in ACTIVATIONS:
            raise unknown("[model] activation: there is no", activation, ACTIVATIONS)
        return Model(kind, Model.hidden if hidden is None else hidden, activation)
    if kind == "cnn":
        section.finish()
        if isinstance(data, Table) or data.name == "adult":
            raise InvalidInput('[model] kind is "cnn", which needs images; take "mlp" for tables')
        return Model(kind)
    if kind.count(":") == 1 and all(kind.split(":")):
        options = section.section("options")
        section.finish()
        return Model(kind, options={} if options is None else options.rest())
    raise unknown("[model] kind: there is no", kind, ("mlp", "cnn", "module:callable"))


def _optimizer(section: Section) -> Optimizer:
    name = section.text("name")
    if name is None:
        raise section.need("name", 'a class of torch.optim, such as "SGD" or "Adam"')
    return Optimizer(name, section.rest())  # the class itself knows which arguments it takes


def _training(section: Section) -> Training:
    out, checkpoint, device = section.text("out"), section.text("checkpoint"), section.text("device")
    training = Training(
        out=Training.out if out is None else Path(out),
        max_physical_batch=section.whole("max_physical_batch"),
        max_records_per_person=section.whole("max_records_per_person"),
        checkpoint=None if checkpoint is None else Path(checkpoint),
        checkpoint_every=section.whole("checkpoint_every"),
        device=device or "auto",
        seed=section.whole("seed"),
    )
    section.finish()
    if training.checkpoint_every is not None and training.checkpoint is None:
        raise InvalidInput("[training] checkpoint_every needs checkpoint, the folder to save the run in")
    if training.seed is not None and training.seed < 0:
        raise section.wrong("seed", training.seed, "0 or more")
    return training
