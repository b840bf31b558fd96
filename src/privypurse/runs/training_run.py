"""A whole run by its configuration: data, plan, training, results."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from privypurse.accounting import Progress
from privypurse.arrays import FloatArray
from privypurse.budgets.person_ids import Seal
from privypurse.budgets.tables import unchanged
from privypurse.datasets.census import ADULT_ENCODING
from privypurse.datasets.encoder import Encoder
from privypurse.datasets.targets import known
from privypurse.ledger.ledger import Ledger
from privypurse.plans import Plan
from privypurse.plans import file as planfile
from privypurse.runs.beside_ledger import refuse_beside_ledger
from privypurse.runs.config import NO_LEDGER, BuiltIn, RunConfig, Table
from privypurse.runs.curves import curves, require_matplotlib
from privypurse.runs.fingerprint import add_fingerprint
from privypurse.runs.folder import RunFolder, check_free, today
from privypurse.runs.gaps import gaps, unread
from privypurse.runs.measures import MEMBERS, Measured, measure
from privypurse.runs.metrics import facts_of, figures_by_name, history, metrics_of, spending_lines
from privypurse.runs.models import model_of, optimizer_of
from privypurse.runs.objectives import losses_of
from privypurse.runs.plan_facts import steps_are_public, who_is_charged
from privypurse.runs.planning import plan_of
from privypurse.runs.predictor import PARAMETERS, add_network
from privypurse.runs.private_ranges import NAME as RANGES
from privypurse.runs.private_ranges import Released, with_ranges
from privypurse.runs.public_choices import PublicChoices
from privypurse.runs.records import TrainTest, records_of
from privypurse.runs.spent_by_group import spent_by_group
from privypurse.training.devices import device_of
from privypurse.training.evaluation import Score
from privypurse.training.execution import Execution
from privypurse.training.individual.accounting import Individual
from privypurse.training.ledger_account import require_ledger
from privypurse.training.loop import train
from privypurse.training.trained import Trained
from privypurse.training.validation import Validation

_AGAIN = ". Mind that training again spends everyone's ε again"


@dataclass(frozen=True)
class Finished:
    """A run that went to its end."""

    plan: Plan
    trained: Trained
    score: Measured | None
    folder: Path
    ranges: Released | None = None
    """What the people were asked before, for a share of their ε."""


def train_by(
    config: RunConfig,
    *,
    certifying: Progress | None = None,
    planned: Callable[[Plan, list[str]], None] = lambda plan, unread: None,
    bar: bool = False,
    ledger: Ledger | None = None,
) -> Finished:
    """Train what the configuration says and write the results into its folder.

    ``planned`` is called before training begins, with the plan and columns of which nothing could be read,
    ``certifying`` while the plan is made. ``ledger``: opened already, instead of the one in the configuration.
    Guarantee: that of `train`, for the plan in the folder; test figures are of records that took no part in training.
    """
    settings, begun = config.training, today()
    if ledger is None and config.ledger is not None and config.ledger != NO_LEDGER:
        ledger = Ledger.open(config.ledger)
    if config.private_ranges is not None:  # before what is paid for
        _require_free(settings.out)
    ready = _prepared(config, certifying, ledger)
    config, records, plan = ready.config, ready.records, ready.plan
    planned(plan, _unread(ready))
    folder = _begun(config, plan, ready.sealed, begun, ready.ranges, who_is_charged(ledger is not None))
    trained = train(
        ready.model,
        ready.optimizer,
        records.train.tensors(ready.device),
        plan,
        losses_of(records.target),
        individual=None if config.individual is None else Individual(**vars(config.individual)),
        validate=_validation(records, settings.validate_every),
        max_records_per_person=settings.max_records_per_person,
        checkpoint=settings.checkpoint,
        execution=Execution(
            max_physical_batch=settings.max_physical_batch,
            checkpoint_every=settings.checkpoint_every,
            progress=bar,
        ),
        seed=settings.seed,
        ledger=ledger,
        purpose=settings.purpose,
        wide_sums=settings.wide_sums,
    )
    if ledger is not None:
        add_ledger(folder, ledger, trained)
    found = _add_all(folder, config, ready.model, records, plan, trained, PublicChoices.of(config, ledger, begun))
    return Finished(plan, trained, found, settings.out, ready.ranges)


def dry_run(
    config: RunConfig, *, certifying: Progress | None = None, ledger: Ledger | None = None
) -> tuple[Plan, list[str], bool]:
    """The plan of a run, the columns of which nothing could be read, and whether ranges are still to be asked for.

    Nothing is trained or written, nobody is asked or charged; cells of columns to be estimated decide nothing.
    """
    ready = _prepared(config, certifying, ledger, dry=True)
    to_ask = config.private_ranges is not None and ready.ranges is None
    asked = config.data.estimated if to_ask and isinstance(config.data, Table) else {}
    return ready.plan, [each for each in _unread(ready) if each not in asked], to_ask


@dataclass(frozen=True)
class _Prepared:
    """All that is there before the first step."""

    config: RunConfig
    ranges: Released | None
    records: TrainTest
    device: torch.device
    model: nn.Module
    optimizer: torch.optim.Optimizer
    plan: Plan
    sealed: Seal | None


def _prepared(config: RunConfig, certifying: Progress | None, ledger: Ledger | None, dry: bool = False) -> _Prepared:
    settings = config.training
    if ledger is not None:
        ledger.require_latest(settings.out)
    refuse_beside_ledger(config, ledger)
    if settings.plots:
        require_matplotlib()
    device = device_of(settings.device)
    # Features, ids, budgets and seal are read one after the other, and have to be of the same rows.
    with unchanged(*tables_of(config)):
        config, ranges = with_ranges(config, ledger, ask=not dry)
        records = records_of(config.data)
        if settings.seed is not None:
            torch.manual_seed(settings.seed)
        model = model_of(config.model, records.shape, records.outputs).to(device)
        optimizer = optimizer_of(config.optimizer, model)
        if not dry:  # behind what is wrong in the configuration, before what takes long
            _require_free(settings.out)
        # A plan is kept beside a checkpoint: not that of a dry run.
        planning = replace(config, training=replace(settings, checkpoint=None)) if dry else config
        plan = plan_of(planning, len(records.train), certifying, ledger).for_records(records.train.person)
        require_ledger(plan, ledger, settings.seed)  # before a plan is shown that nobody may train by
        sealed = Seal.of(config.data.table) if isinstance(config.data, Table) else None
    plan.require_kept(certifying)  # before anything is shown or written: it may have been altered
    return _Prepared(config, ranges, records, device, model, optimizer, plan, sealed)


def _require_free(out: Path) -> None:
    check_free(out, "model.pt", "metrics.json", hint=_AGAIN)


def _unread(ready: _Prepared) -> list[str]:
    data = ready.config.data
    return unread(ready.records.train, data.encoder) if isinstance(data, Table) else []


def _begun(
    config: RunConfig, plan: Plan, sealed: Seal | None, day: str, ranges: Released | None, charged: str
) -> RunFolder:
    """The folder with what is known before the first step: a run that is broken off has spent by its plan."""
    folder = RunFolder.begin(config.training.out, "train", day, charged)
    folder.add("config.toml", _without_password(config.text))
    folder.add("plan.json", planfile.dumps(plan))
    if sealed is not None:
        add_fingerprint(folder, sealed)
    if ranges is not None:
        folder.add_json(RANGES, ranges.to_json(), public=config.training.seed is None)
    return folder


def tables_of(config: RunConfig) -> list[Path]:
    """The files that rows and consents are read from."""
    files = [config.data.table] if isinstance(config.data, Table) else []
    return files + ([config.budgets.table] if config.budgets is not None and config.budgets.table is not None else [])


def _add_all(
    folder: RunFolder,
    config: RunConfig,
    model: nn.Module,
    records: TrainTest,
    plan: Plan,
    trained: Trained,
    chosen: PublicChoices,
) -> Measured | None:
    """Write what training came to; gives how good the model is on others."""
    settings, seeded = config.training, config.training.seed is not None
    found = None if records.test is None else measure(model, records.test, records.target, records.measured)
    data = config.data.name if isinstance(config.data, BuiltIn) else config.data.table.name
    _add_network(folder, config, records)
    spent = add_results(folder, model, plan, trained, found, data=data, seeded=seeded, chosen=chosen)
    if isinstance(config.data, Table):
        folder.add_json("gaps.json", gaps(records.train, config.data.encoder))
    members = measure(model, records.train, records.target, MEMBERS) if settings.measure_members else None
    # Steps that were computed from how many people there are would be told by a public history, too.
    public = found is not None and not found.internal
    course = [] if public and not steps_are_public(plan, chosen) else history(trained)
    add_measures(folder, found, members, course, plots=settings.plots, seeded=seeded)
    if members is not None and spent is not None:
        folder.add_json("spent_by_group.json", spent_by_group(members, spent[known(records.train.labels)]))
    return found


def _add_network(folder: RunFolder, config: RunConfig, records: TrainTest) -> None:
    """Which network it is, and what turns a table into its inputs, where those are no images."""
    encoder = config.data.encoder if isinstance(config.data, Table) else None
    if isinstance(config.data, BuiltIn) and config.data.name == "adult":
        encoder = Encoder(ADULT_ENCODING, records.target)
    public = config.training.seed is None
    add_network(folder, config.model, records.shape, records.outputs, encoder, public=public)


def _without_password(text: str) -> str:
    """A configuration whose ledger's address, if there is a password in it, is left out."""
    return re.sub(r"(?m)^\s*ledger\s*=.*:[^/\n]*@.*$", "# ledger: its address held a password", text)


def _validation(records: TrainTest, every: int | None) -> Validation | None:
    """On the records that take no part in training, as they are tested in the end."""
    if every is None or records.test is None:
        return None
    others, target = records.test, records.target

    def on_others(model: nn.Module) -> dict[str, float]:
        found = measure(model, others, target, records.measured)
        return {} if found is None else figures_by_name(found)

    return Validation(on_others, every, records.measured)


def add_ledger(folder: RunFolder, ledger: Ledger, trained: Trained) -> None:
    """Which run of which ledger this was, and how far that had come: an older copy of it is told by the anchor."""
    folder.add_json("ledger.json", {"ledger": ledger.id, "run": trained.run_id})
    ledger.write_anchor(folder.path / "anchor.json")
    folder.add("anchor.json", None)


def add_results(
    folder: RunFolder,
    model: nn.Module,
    plan: Plan,
    trained: Trained,
    found: Measured | Score | None,
    *,
    data: str,
    seeded: bool,
    chosen: PublicChoices | None = None,
) -> FloatArray | None:
    """What training came to. Of a seeded run nothing is public: who knows the seed can take the noise off.

    Gives what each record's owner really spent, where that was followed.
    """
    facts = facts_of(plan, trained, data, seeded, chosen)
    add_model(folder, model, public=not seeded)
    folder.add_json("facts.json", facts, public=not seeded)
    folder.add_json("metrics.json", metrics_of(facts, plan, trained, found, seeded))
    if trained.spending is None:
        return None
    spent = trained.spending.epsilon()
    folder.add("spending.csv", spending_lines(trained.spending.plan, spent))
    return spent


def add_measures(
    folder: RunFolder,
    found: Measured | None,
    members: Measured | None,
    history: list[dict[str, Any]],
    *,
    plots: bool,
    seeded: bool,
) -> None:
    """How good the model is, in files that say on whom. Those of public or released records are public."""
    if found is not None:
        shown = not found.internal and not seeded
        report = found.report() | ({"history": history} if history else {})
        folder.add_json("test.json", report, public=shown)
        if plots:
            folder.add("curves.svg", curves(history, found), public=shown)
    if members is not None:
        folder.add_json("members.json", members.report())


def add_model(folder: RunFolder, model: nn.Module, *, public: bool) -> None:
    """Its state_dict, on the CPU."""
    state = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    folder.add(PARAMETERS, lambda file: torch.save(state, file), public=public)
