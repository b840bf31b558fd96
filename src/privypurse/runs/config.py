"""What a run is told: a TOML file, read into plain frozen data and checked before anything else happens."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from privypurse._validate import integer
from privypurse.assignment import METHODS
from privypurse.datasets.encoder import Encoder
from privypurse.datasets.encoding import Categories, Encoding, Flag, Range
from privypurse.datasets.targets import Classes, Flags, Number, Target
from privypurse.errors import InvalidInput
from privypurse.plans import stop_rules
from privypurse.plans.stop_rules import Stop
from privypurse.runs import column_sections
from privypurse.runs.about import About
from privypurse.runs.blanks import require_filled_in
from privypurse.runs.estimated_columns import KINDS, Estimated, PrivateRanges, check_agreement
from privypurse.runs.held_out import HeldOut
from privypurse.runs.sections import By, read, unknown, value
from privypurse.training.callbacks import OTHERS

NO_LEDGER = "none"
"""Instead of an address: no ledger, and that on purpose."""
_NEEDED = ("data", "plan", "model", "optimizer")
_MODEL_KEYS = {"mlp": ("kind", "hidden", "activation"), "cnn": ("kind",)}
Seed = Annotated[int, Meta(ge=0, description="a whole number, 0 or more")]


def _measured(given: Any, place: str) -> str:
    if given == "charged":
        raise InvalidInput(
            f'{place} is "charged", which takes questions that people pay for (docs/queries.md); a file of records '
            'is "public", "released", or of "people" who are not charged'
        )
    if given not in (OTHERS, "public", "released"):
        raise unknown(f"{place}: there is no", str(given), (OTHERS, "public", "released"))
    return str(given)


def _stop(given: Any, place: str) -> Stop:
    if not isinstance(given, dict) or given.get("kind") not in stop_rules.KINDS:
        kind = given.get("kind") if isinstance(given, dict) else given
        raise unknown(f"{place}: there is no kind", str(kind), stop_rules.KINDS)
    return read(stop_rules.KINDS[given["kind"]], {key: each for key, each in given.items() if key != "kind"}, place)


@dataclass(frozen=True)
class BuiltIn:
    """A data set that `privypurse.datasets` reads, by name."""

    name: Literal["adult", "mnist", "fashion-mnist", "cifar10", "svhn"]


@dataclass(frozen=True)
class Table:
    """A file of records: which columns go in, by which public constants, and what is to be learned."""

    table: Path
    features: Annotated[
        Mapping[str, Encoding | Estimated],
        By(column_sections.features),
        Meta(title=f"the columns that go in, each with {column_sections.HOW}"),
    ]
    label: str | None = None
    """The column that is to be learned: with ``classes`` one of these, with ``range`` a number."""
    classes: Annotated[tuple[str, ...], By(column_sections.classes)] | None = None
    range: Annotated[Range, By(column_sections.target_range)] | None = None
    labels: Annotated[tuple[str, ...], By(column_sections.words)] | None = None
    """Instead of ``label``: several columns of true or false."""
    missing: Annotated[tuple[str, ...], By(column_sections.words)] = ()
    """Texts that mean that there is nothing, beside an empty cell."""
    test: Path | None = None
    held_out: HeldOut | None = None
    """Instead of ``test``: a share of the table's people, who take no part in training."""
    measured: Annotated[str, By(_measured)] = OTHERS
    """Whose records the test's are, in the words of `Validation`."""
    groups: Annotated[Mapping[str, Categories], By(column_sections.groups)] = field(default_factory=dict)
    """Columns by whose categories errors are told apart."""
    person: str | None = None
    """The column of ids: who owns each row."""

    def __post_init__(self) -> None:
        if self.test is not None and self.held_out is not None:
            raise InvalidInput("test beside held_out; keep the one or the other")
        if self.measured != OTHERS and self.held_out is not None:
            raise InvalidInput(
                f'measured is {self.measured!r}, but who is held out is of the same people as the rest: "people". '
                "Give public records in a file of their own, as test"
            )
        if self.test is not None and self.test.resolve() == self.table.resolve():
            raise InvalidInput("test must be another file than table: accuracy on people in training is sensitive")
        # Are the columns such as it takes? Those to be estimated are stood for by another kind.
        stood_for = {name: Flag() if isinstance(how, KINDS) else how for name, how in self.features.items()}
        Encoder(stood_for, self.target, self.missing)

    @property
    def estimated(self) -> dict[str, Estimated]:
        """The columns whose ends or categories are asked of the people first."""
        return {name: how for name, how in self.features.items() if isinstance(how, KINDS)}

    @property
    def target(self) -> Target:
        """What is to be learned."""
        if (self.label is None) == (self.labels is None):
            raise InvalidInput("give label, the column that is to be learned, or labels, several of true or false")
        if self.labels is not None:
            if self.classes is not None or self.range is not None:
                raise InvalidInput("labels are true or false: classes and range go with label; leave them out")
            return Flags(self.labels)
        assert self.label is not None
        if self.classes is not None and self.range is None:
            return Classes(self.label, self.classes)
        if self.range is not None and self.classes is None:
            return Number(self.label, self.range)
        raise InvalidInput(
            'label needs either classes, as in ["no", "yes"], or range, as in { low = 0, high = 5000 }. '
            f"{column_sections.WHY_PUBLIC}"
        )

    @property
    def encoder(self) -> Encoder:
        """What turns a table into numbers; public, as all that it is made of."""
        if self.estimated:
            raise InvalidInput(f"{', '.join(self.estimated)} was not estimated yet, so nothing can be encoded")
        known = {name: how for name, how in self.features.items() if not isinstance(how, KINDS)}
        return Encoder(known, self.target, self.missing)


@dataclass(frozen=True)
class Simulated:
    """Budgets that nobody granted, for experiments: shares of the records at each ε, drawn by a seed."""

    epsilon: Annotated[tuple[float, ...], Meta(title="as in epsilon = [1.0, 2.0], shares = [0.6, 0.4]")]
    shares: Annotated[tuple[float, ...], Meta(title="as in epsilon = [1.0, 2.0], shares = [0.6, 0.4]")]
    seed: Seed = 0


@dataclass(frozen=True)
class Grants:
    """Everyone's own ε: columns of a table (the arguments of `Budgets.read`), or simulated."""

    simulate: Simulated | None = None
    table: Path | None = None
    """A file of consents, a row for each person; None: columns of the table of records."""
    epsilon: str | None = None
    level: str | None = None
    levels: Mapping[str, float] | None = None
    person: str | None = None
    delta: Annotated[float | str | None, Meta(description="a number, or the name of a column")] = None
    """None where nobody chose one: the ledger's, without one `DEFAULT_DELTA`."""

    def __post_init__(self) -> None:
        if self.simulate is None:
            return
        if any(given is not None for given in (self.table, self.epsilon, self.level, self.levels, self.person)):
            raise InvalidInput("simulate beside columns of the table; keep the one or the other")
        if isinstance(self.delta, str):
            raise InvalidInput(f"delta is {self.delta!r}; simulated budgets need a number, such as 1e-5")


@dataclass(frozen=True)
class NewPlan:
    """A plan to be made: the arguments of `plan`."""

    batch_size: Annotated[int, Meta(title="the public divisor of each step; where σ is solved, the expected batch")]
    steps: int | None = None
    epochs: float | None = None
    people: int | None = None
    """A public number of people that an epoch draws; None: as many as there are."""
    method: str = "sample"
    clip_norm: float = 1.0
    noise_multiplier: float | None = None
    accountant: Literal["pld", "rdp"] = "pld"
    threshold: float | None = None
    extra_steps: int = 0
    stop: Annotated[Stop, By(_stop)] | None = None
    at_most: float | None = None
    """A public cap, an ε that nobody exceeds; None: what each one grants, in a ledger all that they have left."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise unknown("method: there is no", self.method, METHODS)
        if (self.steps is None) == (self.epochs is None):
            raise InvalidInput("give steps, the number of training steps, or epochs, and not both")
        if self.threshold is not None and self.method != "exclude":
            raise InvalidInput(f'threshold is for method = "exclude", not {self.method!r}')


@dataclass(frozen=True)
class Followed:
    """Whether and how each person's own spending is followed: the arguments of `Individual`."""

    every: int | None = None
    grid_size: int = 100
    exact: bool = True
    headroom: float = 1.5


@dataclass(frozen=True)
class Model:
    """A network: "mlp", "cnn", or "module:callable", which is imported and called with ``options``."""

    kind: Annotated[str, Meta(title='"mlp", "cnn", or "module:callable"')]
    hidden: Annotated[
        tuple[Annotated[int, Meta(ge=1)], ...], Meta(description="a list of widths of at least 1, as in [64, 32]")
    ] = (64,)
    activation: Literal["relu", "tanh"] = "relu"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Optimizer:
    """A class of torch.optim and its arguments, which the class itself knows."""

    name: Annotated[str, Meta(title='a class of torch.optim, such as "SGD" or "Adam"')]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Training:
    """How and where it runs, and where its results go."""

    out: Path = Path("privypurse-run")
    max_physical_batch: int | None = None
    wide_sums: bool = False
    max_records_per_person: int | None = None
    checkpoint: Path | None = None
    checkpoint_every: int | None = None
    validate_every: int | None = None
    """Steps between two tests of the model while it trains, on the records that take no part in it."""
    plots: bool = False
    """Whether curves of the test are drawn, into curves.svg."""
    measure_members: bool = False
    """Whether people in training are measured too, into members.json: internal, whatever is done with the model."""
    device: str = "auto"
    seed: Seed | None = None
    purpose: str = ""
    """What it is for, as the ledger and people's receipts say it. If it is left out, that of [about]."""

    def __post_init__(self) -> None:
        if self.checkpoint_every is not None and self.checkpoint is None:
            raise InvalidInput("checkpoint_every needs checkpoint, the folder to save the run in")
        if self.validate_every is not None:
            integer(self.validate_every, "validate_every")


@dataclass(frozen=True)
class RunConfig:
    """A whole run. ``plan`` is what to make, or the file of one that was made before."""

    data: BuiltIn | Table
    budgets: Grants | None
    plan: NewPlan | Path
    model: Model
    optimizer: Optimizer
    training: Training
    individual: Followed | None = None
    private_ranges: PrivateRanges | None = None
    """Where columns are estimated: for which share of everybody's ε."""
    ledger: str | None = None
    """The address of the ledger whose people are charged, or `NO_LEDGER`; None where nobody says."""
    about: About = field(default_factory=About)
    text: str = field(default="", repr=False, compare=False)
    """The file that it was read from, to be kept with the run."""


def read_config(path: str | Path) -> RunConfig:
    """The run that a TOML file describes; anything it cannot mean is an `InvalidInput` that says how to mend it."""
    path = Path(path)
    if not path.is_file():
        raise InvalidInput(f"{path} is no file; `privypurse init -o {path.name}` writes one to start from")
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
    require_filled_in(text)
    sections = [name for name in RunConfig.__dataclass_fields__ if name != "text"]
    for name in whole:
        if name not in sections:
            raise unknown("there is no section", name, sections)
    plan_is_a_file = isinstance(whole.get("plan"), str)
    for name in _NEEDED if plan_is_a_file else (*_NEEDED, "budgets"):
        if name not in whole:
            raise InvalidInput(f"section [{name}] is missing; `privypurse init` shows one")
    data = _data(whole["data"])
    plan = Path(whole["plan"]) if plan_is_a_file else read(NewPlan, whole["plan"], "[plan]")
    about = read(About, whole.get("about", {}), "[about]")
    training = read(Training, whole.get("training", {}), "[training]")
    training = replace(training, purpose=training.purpose or about.purpose or "")
    untested = isinstance(data, Table) and data.test is None and data.held_out is None
    if training.validate_every is not None and untested:
        raise InvalidInput("[training] validate_every needs test or held_out under [data]: others than in training")
    plateau = isinstance(plan, NewPlan) and isinstance(plan.stop, stop_rules.StopAtPlateau)
    if plateau and isinstance(data, Table) and data.classes is None:
        raise InvalidInput(
            '[plan] stop with kind "plateau" asks how often the model is right, which needs classes under [data]; '
            'take kind "few", or leave it out'
        )
    if training.plots and untested:
        raise InvalidInput("[training] plots needs test or held_out under [data]: it draws figures of the test")
    ranges = read(PrivateRanges, whole["private_ranges"], "[private_ranges]") if "private_ranges" in whole else None
    check_agreement(data.estimated if isinstance(data, Table) else {}, ranges, plan)
    data, budgets = _agreed(data, read(Grants, whole["budgets"], "[budgets]") if "budgets" in whole else None)
    return RunConfig(
        data=data,
        budgets=budgets,
        plan=plan,
        model=_model(whole["model"], data),
        optimizer=_optimizer(whole["optimizer"]),
        training=training,
        individual=read(Followed, whole["individual"], "[individual]") if "individual" in whole else None,
        private_ranges=ranges,
        ledger=value(str, whole["ledger"], "ledger") if "ledger" in whole else None,
        about=about,
        text=text,
    )


def example() -> str:
    """A configuration that runs as it stands, and says what else there is."""
    return resources.files("privypurse.runs").joinpath("example.toml").read_text(encoding="utf-8")


def _data(given: Any) -> BuiltIn | Table:
    if isinstance(given, dict) and ("name" in given) == ("table" in given):
        raise InvalidInput('[data] needs either name, as in "adult", or table, a .csv or .parquet file')
    if isinstance(given, dict) and "table" in given:
        return read(Table, given, "[data]")
    return read(BuiltIn, given, "[data]")


def _agreed(data: BuiltIn | Table, budgets: Grants | None) -> tuple[BuiltIn | Table, Grants | None]:
    """Data and budgets that name one column of ids, which no model sees, nor what people granted."""
    if isinstance(data, BuiltIn):
        if budgets is not None and budgets.simulate is None:
            raise InvalidInput(
                f"[budgets] of the data set {data.name!r} must be simulated: nobody in it was asked. Write "
                "simulate = { epsilon = [1.0, 2.0, 3.0], shares = [0.34, 0.43, 0.23] }"
            )
        return data, budgets
    granted = budgets or Grants()
    if None not in (granted.person, data.person) and granted.person != data.person:
        raise InvalidInput(
            f"[budgets] person is {granted.person!r} but [data] person is {data.person!r}; name one column of ids"
        )
    data = replace(data, person=granted.person or data.person)
    for column in (granted.epsilon, granted.level, data.person):
        if column in data.features:
            raise InvalidInput(f"[data.features] holds {column!r}, which says who granted what: no model may see it")
        if column in data.target.columns:
            raise InvalidInput(f"[data] is to learn {column!r}, which says who granted what: name another column")
    if data.held_out is not None and (data.person is None or (budgets is not None and budgets.simulate is not None)):
        raise InvalidInput(
            '[data] held_out chooses people by their ids; name the column of ids, person = "…" under [data], and '
            "columns of what they granted under [budgets], or give a file of other people, as test"
        )
    if granted.table is not None and data.person is None:
        raise InvalidInput(
            "[budgets] table holds what people granted, and which of them owns a row is told by ids; name the column "
            'of ids, which both tables have: person = "…" under [data]'
        )
    if budgets is not None and budgets.simulate is None:
        budgets = replace(budgets, person=data.person)
    return data, budgets


def _model(given: Any, data: BuiltIn | Table) -> Model:
    kind = str(given.get("kind")) if isinstance(given, dict) else ""
    own = kind.count(":") == 1 and all(kind.split(":"))
    model = read(Model, given, "[model]", ("kind", "options") if own else _MODEL_KEYS.get(kind))
    if not own and kind not in _MODEL_KEYS:
        raise unknown("[model] kind: there is no", kind, (*_MODEL_KEYS, "module:callable"))
    if kind == "cnn" and (isinstance(data, Table) or data.name == "adult"):
        raise InvalidInput('[model] kind is "cnn", which needs images; take "mlp" for tables')
    return model


def _optimizer(given: Any) -> Optimizer:
    if isinstance(given, dict):
        options = {key: each for key, each in given.items() if key != "name"}
        given = {"options": options} | ({"name": given["name"]} if "name" in given else {})
    return read(Optimizer, given, "[optimizer]")
